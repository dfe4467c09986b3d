"""Vastai: dies kept together on their physical card, and what makes a node one of dies."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.model import Card, CardState
from tests.devices.vendors.stories import cards_of, filtered, node, pod, state, told, walk_over

VA = "vastaitech.com/va"


def document(number: int, aic: object = None, strategy: str = "die", **fields: Any) -> dict[str, Any]:
    custom = {"DeviceStrategy": strategy} | ({} if aic is None else {"AIC": aic})
    card = {"id": f"va-{number}", "index": number, "count": 1, "devmem": 16384, "type": "Vastai-VA16", "health": True}
    return {**card, "custominfo": custom, **fields}


def va_node(*cards: dict[str, Any], name: str = "n1") -> dict[str, Any]:
    return node(name, {"hami.io/node-va-register": list(cards)})


CHOICES = {
    "both dies of one physical card": (["a", "a", "b"], 2, [["va-1", "va-0"]]),
    "the larger physical card first": (["a", "b", "b", "b", "a"], 3, [["va-3", "va-2", "va-1"]]),
    "of equal ones the lowest name": (["b", "b", "a", "a"], 2, [["va-3", "va-2"]]),
    "then the next one": (["a", "a", "b"], 3, [["va-2", "va-1", "va-0"]]),
    "a single die is the preferred one": (["a", "a", "b"], 1, [["va-2"]]),
    "all there are need no physical card": ([None, "a"], 2, [["va-1", "va-0"]]),
}


@pytest.mark.parametrize(("aics", "count", "expected"), CHOICES.values(), ids=CHOICES)
def test_dies_stay_together(aics: list[str | None], count: int, expected: list[list[str]]) -> None:
    cards = va_node(*(document(number, aic) for number, aic in enumerate(aics)))
    (answer,) = told([cards], filtered(pod("a", {VA: count})))
    assert cards_of(answer, "Vastai") == expected


WITHOUT_AIC = {
    "VAS-1: dies without physical card are too few": ([None, "a", None], "1/3 AllocatedCardsInsufficientRequest"),
    "VAS-1: a number is no physical card": ([1, 2, 3], "0/3 AllocatedCardsInsufficientRequest"),
}


@pytest.mark.parametrize(("aics", "expected"), WITHOUT_AIC.values(), ids=WITHOUT_AIC)
def test_dies_that_cannot_be_grouped(aics: list[object], expected: str) -> None:
    cards = va_node(*(document(number, aic) for number, aic in enumerate(aics)))
    (answer,) = told([cards], filtered(pod("a", {VA: 2})))
    assert answer["failed"] == {"n1": expected}


FIRST_CARD = {
    "a die in the first place groups them all": (("die", "card", "card"), [["va-1", "va-0"]]),
    "a card in the first place groups none": (("card", "die", "die"), [["va-2", "va-1"]]),
}


@pytest.mark.parametrize(("strategies", "expected"), FIRST_CARD.values(), ids=FIRST_CARD)
def test_one_card_decides_for_the_node(strategies: tuple[str, ...], expected: list[list[str]]) -> None:
    aics = ("a", "a", "b")
    cards = [document(n, aic, strategy) for n, (aic, strategy) in enumerate(zip(aics, strategies, strict=True))]
    (answer,) = told([va_node(*cards)], filtered(pod("a", {VA: 2})))
    assert cards_of(answer, "Vastai") == expected


def test_mutex_refuses_dies_of_a_used_physical_card_only_where_dies_are_handed_out() -> None:
    taken = pod("t", {VA: 1}, {"vastaitech.com/use-gpuuuid": "va-0"})
    mutex = pod("a", {VA: 1}, {"hami.io/gpu-scheduler-policy": "mutex", "vastaitech.com/use-gpuuuid": "va-1"})
    for strategy, expected in (("die", "1/2 CardUuidMismatch, 1/2 ExclusiveDeviceAllocateConflict"), ("card", None)):
        cards = va_node(document(0, "a", strategy), document(1, "a", strategy))
        _, answer = told([cards], filtered(taken), filtered(mutex))
        assert answer["failed"].get("n1") == expected, strategy


SCORES = {
    "one physical card": (["a", "a"], "1.00"),
    "two of three on one": (["a", "a", "b"], "0.67"),
    "a die without physical card": (["a", None], "0.00"),
}


@pytest.mark.parametrize(("aics", "score"), SCORES.values(), ids=SCORES)
def test_the_score_is_the_part_on_one_physical_card(aics: list[str | None], score: str) -> None:
    cards = va_node(*(document(number, aic) for number, aic in enumerate(aics)))
    (answer,) = told([cards], filtered(pod("a", {VA: len(aics)})))
    assert answer["events"][0][2].endswith(f"(n1:{score})")


def test_whole_cards_have_no_score_of_their_own() -> None:
    (answer,) = told([va_node(document(0, "a", "card"), document(1, "a", "card"))], filtered(pod("a", {VA: 2})))
    assert answer["events"][0][2].endswith("(n1:0.00)")


def test_the_count_is_limited_in_the_fit() -> None:
    cards = va_node(*(document(number, "a") for number in range(3)))
    _, answer = told([cards], filtered(pod("a", {VA: 1})), filtered(pod("b", {VA: 1})), quota={VA: 1})
    assert "ResourceQuotaNotFit" in answer["failed"]["n1"]


def test_compute_is_whatever_the_plugin_says_100() -> None:
    cards = va_node(document(0, "a", devcore=8))
    (answer,) = told([cards], filtered(pod("a", {VA: 1})))
    assert answer["allocation"] == {"Vastai": [[{"uuid": "va-0", "memory": 0, "cores": 0}]]}


@st.composite
def die_nodes(draw: st.DrawFn) -> list[CardState]:
    """Dies in walk order; the last of the walk is a die, so that the node hands out dies."""
    dies = draw(
        st.lists(
            st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans(), st.integers(0, 1)), min_size=1, max_size=7
        )
    )
    return [
        state(
            Card(f"va-{number}", "Vastai", number, 1, model="Vastai", healthy=healthy, custom=_custom(aic)), slots=used
        )
        for number, (aic, healthy, used) in reversed(list(enumerate(dies)))
    ]


def _custom(aic: str | None) -> dict[str, object]:
    return {"DeviceStrategy": "die"} if aic is None else {"DeviceStrategy": "die", "AIC": aic}


@given(die_nodes(), st.integers(1, 4))
def test_the_choice_is_the_first_of_all_subsets(states: list[CardState], count: int) -> None:
    passing = [place for place, s in enumerate(states) if s.healthy and not s.used_slots]
    aics = [states[place].card.custom.get("AIC") for place in range(len(states))]
    sizes = {aic: sum(aics[place] == aic for place in passing) for aic in aics}
    came = walk_over(states, "Vastai", {VA: count})
    if count == 1 or len(passing) <= count:
        taken = passing[:count] if len(passing) >= count else None
    else:
        # Larger physical cards first, then the lower name, then walk order.
        ranks = sorted((-sizes[aics[p]], str(aics[p]), p) for p in passing if aics[p] is not None)
        subsets = [sorted(subset) for subset in combinations(ranks, count)]
        taken = [place for _, _, place in min(subsets)] if subsets else None
    if taken is None:
        assert isinstance(came, str)
    else:
        assert came == [states[place].card.uuid for place in taken]
