"""Kunlun: cards along the links of a board, whole or in slices, and the score for leaving few loose ends."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.boards import loose_ends, on_board
from devices.model import Card, CardState
from tests.devices.vendors.stories import (
    Document,
    admitted,
    cards_of,
    filtered,
    node,
    pod,
    quota_used,
    state,
    told,
    walk_over,
)

XPU, VXPU, MEMORY = "kunlunxin.com/xpu", "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
USE, NOUSE = "hami.io/use-xpu-uuid", "baidu.com/nouse-gpuuuid"
INDEXES = "BAIDU_COM_DEVICE_IDX"


def whole_node(cards: int = 8, name: str = "n1") -> Document:
    return node(name, capacity={XPU: cards})


def sliced_node(*cards: Document, name: str = "n1") -> Document:
    return node(name, {"hami.io/node-register-xpu": list(cards)})


def sliced(number: int, **fields: Any) -> Document:
    card = {"id": f"xpu-{number}", "index": number, "count": 4, "devmem": 98304, "devcore": 100}
    return {**card, "type": "XPU-P800", "health": True, **fields}


def taking(*numbers: int) -> list[Document]:
    return [filtered(pod(f"t{n}", {XPU: 1}, {USE: f"n1-kunlun-{n}"})) for n in numbers]


def indexes(answer: Document) -> list[int]:
    return [int(uuid.rpartition("-")[2]) for container in cards_of(answer, "kunlun") for uuid in container]


CHOICES: dict[str, tuple[tuple[int, ...], int, Any]] = {
    "idle: one": ((), 1, [0]),
    "idle: eight": ((), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
    "15: beside a used card": ((0,), 1, [1]),
    "15: two in its wing": ((0,), 2, [1, 2]),
    "15: four in the other wing": ((0,), 4, [4, 5, 6, 7]),
    "16: four in both wings": ((0, 7), 4, [1, 2, 5, 6]),
    "17: a linked pair": ((0, 1, 2, 4, 5, 6), 2, [3, 7]),
    "a lone card is used first": ((1, 2, 3), 1, [0]),
    "a wing of three before one of two": ((0, 1, 4), 1, [5]),
    "a wing of two before one of three": ((0, 1, 4), 2, [2, 3]),
    "no linked pair": ((0, 1, 2, 5, 6, 7), 2, "1/8 NumaNotFit"),
    "KUN-1: a used card does not shift the wings": ((7,), 4, [0, 1, 2, 3]),
    "four: the first group of four free cards": ((2, 3, 6, 7), 4, [0, 1, 4, 5]),
    "four: the second": ((0, 1, 4, 5), 4, [2, 3, 6, 7]),
    "four: every other card": ((1, 3, 5, 7), 4, [0, 2, 4, 6]),
    "four: the odd ones": ((0, 2, 4, 6), 4, [1, 3, 5, 7]),
    "four: the outer ones": ((1, 2, 5, 6), 4, [0, 3, 4, 7]),
    "four: the inner ones": ((0, 3, 4, 7), 4, [1, 2, 5, 6]),
    "four of five": ((2, 3, 7), 4, [0, 1, 4, 5]),
    "four of six: what remains is linked": ((3, 7), 4, [0, 1, 4, 5]),
    "four of six: the last group where none leaves a link": ((0, 5), 4, [2, 3, 6, 7]),
    "four cards that are no group": ((0, 1, 2, 7), 4, "1/8 NumaNotFit"),
    "three": ((), 3, "1/8 NumaNotFit"),
    "eight of seven": ((5,), 8, "1/8 NumaNotFit"),
}


@pytest.mark.parametrize(("busy", "count", "expected"), CHOICES.values(), ids=CHOICES)
def test_choices_on_one_board(busy: tuple[int, ...], count: int, expected: Any) -> None:
    answer = told([whole_node()], *taking(*busy), filtered(pod("a", {XPU: count})))[-1]
    assert (answer["failed"]["n1"] if isinstance(expected, str) else indexes(answer)) == expected


BOARDS: dict[str, tuple[int, tuple[int, ...], int, Any]] = {
    "KUN-3: the second board, by its own indexes": (16, (0,), 8, [8, 9, 10, 11, 12, 13, 14, 15]),
    "KUN-3: a linked pair of the second board": (16, (*range(8), 8, 9, 10, 12, 13, 14), 2, [11, 15]),
    "KUN-3: no choice across boards": (16, (*range(1, 8), *range(9, 16)), 2, "1/16 NumaNotFit"),
    "KUN-3: boards are tried in turn": (16, (1, 2, 3, 5, 6, 7), 2, [0, 4]),
    "half a board": (12, (0, 1, 4, 5), 4, [2, 3, 6, 7]),
    "half a board is one wing": (12, tuple(range(8)), 4, [8, 9, 10, 11]),
    "four cards": (4, (), 4, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("cards", "busy", "count", "expected"), BOARDS.values(), ids=BOARDS)
def test_choices_on_several_boards(cards: int, busy: tuple[int, ...], count: int, expected: Any) -> None:
    answer = told([whole_node(cards)], *taking(*busy), filtered(pod("a", {XPU: count})))[-1]
    assert (answer["failed"]["n1"] if isinstance(expected, str) else indexes(answer)) == expected


SCORES = {
    "nothing before, one card": ((), 1, 0),
    "nothing before, two": ((), 2, 1000),
    "nothing before, a wing": ((), 4, 2000),
    "nothing before, all": ((), 8, 3000),
    "KUN-2: the second card of a wing closes a loose end": ((0,), 1, 3000),
    "KUN-2: a second pair": ((0, 1), 2, 3000),
    "KUN-2: the other wing": ((0, 1, 2, 3), 4, 3000),
}


@pytest.mark.parametrize(("busy", "count", "score"), SCORES.values(), ids=SCORES)
def test_the_score_prefers_few_loose_ends(busy: tuple[int, ...], count: int, score: int) -> None:
    """Beside the score of what is used: 20 of 24 thirds for every whole card in use."""
    answer = told([whole_node()], *taking(*busy), filtered(pod("a", {XPU: count})))[-1]
    said = float(answer["events"][0][2].rpartition(":")[2].rstrip(")"))
    used = 10 * len(busy) * (1 / 800 + 1 / 8 + 1 / 8)
    assert said == pytest.approx(score + used, abs=0.01)


def test_the_score_counts_each_board_for_itself() -> None:
    """The first board is full; a card of the second is as good as on an idle node."""
    full = filtered(pod("t", {XPU: 8}))
    answer = told([whole_node(16)], full, filtered(pod("a", {XPU: 1})))[-1]
    assert float(answer["events"][0][2].rpartition(":")[2].rstrip(")")) < 1000


def test_kun_5_no_score_beside_other_cards() -> None:
    both = node("n1", {"hami.io/node-register-xpu": [sliced(0)]}, {XPU: 8, VXPU: 4})
    (answer,) = told([both], filtered(pod("a", {XPU: 8})))
    assert answer["events"][0][2].endswith("(n1:0.00)")


LOOSE_ENDS: dict[str, tuple[set[int], int]] = {
    "idle": (set(), 1),
    "one": ({0}, 3),
    "two of a wing": ({0, 1}, 2),
    "one of each": ({0, 4}, 4),
    "a wing": ({0, 1, 2, 3}, 1),
    "all": (set(range(8)), 0),
    "a wing and one": ({0, 1, 2, 3, 4}, 2),
}


@pytest.mark.parametrize(("places", "count"), LOOSE_ENDS.values(), ids=LOOSE_ENDS)
def test_loose_ends(places: set[int], count: int) -> None:
    assert loose_ends(places) == count


LISTS = {
    "use": ({USE: "n1-kunlun-5"}, [5]),
    "the other name": ({"baidu.com/use-gpuuuid": "n1-kunlun-6"}, [6]),
    "both must accept": ({USE: "n1-kunlun-5", "baidu.com/use-gpuuuid": "n1-kunlun-6"}, "8/8 CardUuidMismatch"),
    "exclude": ({NOUSE: "n1-kunlun-0"}, [1]),
    "23: blank is no word": ({USE: "  "}, [0]),
    "refused and used cards: the lists are told": ({USE: "n1-kunlun-7"}, "7/8 CardUuidMismatch"),
}


@pytest.mark.parametrize(("annotations", "expected"), LISTS.values(), ids=LISTS)
def test_uuid_lists(annotations: dict[str, str], expected: Any) -> None:
    steps = taking(7) if expected == "7/8 CardUuidMismatch" else []
    answer = told([whole_node()], *steps, filtered(pod("a", {XPU: 1}, annotations)))[-1]
    assert (answer["failed"]["n1"] if isinstance(expected, str) else indexes(answer)) == expected


INDEX_TEXTS = {
    "one container": ([2], "0,1"),
    "KUN-6: the last container alone": ([2, 4], "4,5,6,7"),
    "a plain one last": ([4, 0], "0,1,2,3"),
    "across the wings": ([4, 2, 1], "6"),
}


@pytest.mark.parametrize(("counts", "text"), INDEX_TEXTS.values(), ids=INDEX_TEXTS)
def test_indexes_of_several_containers(counts: list[int], text: str) -> None:
    first, *more = [{XPU: count} if count else {} for count in counts]
    (answer,) = told([whole_node()], filtered(pod("a", first, more=more)))
    assert answer["annotations"][INDEXES] == text


def test_a_node_that_loses_its_capacity_offers_nothing() -> None:
    answers = told([whole_node()], {"put_node": node("n1")}, filtered(pod("a", {XPU: 1})))
    assert answers[-1]["failed"] == {"n1": "node unregistered"}


SLICES = {
    "0 is the smallest": (0, 24576, 25),
    "the smallest": (24576, 24576, 25),
    "18: one more": (24577, 49152, 50),
    "the whole card": (49153, 98304, 100),
    "no more than that": (500000, 98304, 100),
}


@pytest.mark.parametrize(("asked", "memory", "cores"), SLICES.values(), ids=SLICES)
def test_slices(asked: int, memory: int, cores: int) -> None:
    admission, answer = told([sliced_node(sliced(0))], admitted(pod("a", {VXPU: 1, MEMORY: asked})), filtered("a"))
    resources = admission["pod"]["spec"]["containers"][0]["resources"]
    assert {str(resources[kind][MEMORY]) for kind in ("limits", "requests")} == {str(memory)}
    assert answer["allocation"] == {"XPU": [[{"uuid": "xpu-0", "memory": memory, "cores": cores}]]}


REFUSED = {"negative": -1, "a fraction": "1500m", "bytes": "16Gi", "no number": "much"}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_memory_that_cannot_be_used(value: object) -> None:
    admission, answer = told(
        [sliced_node(sliced(0))],
        admitted(pod("a", {VXPU: 1, MEMORY: value})),
        filtered(pod("b", {VXPU: 1, MEMORY: value})),
    )
    assert f"invalid {MEMORY} value {value} in container main" in admission["message"]
    assert answer["error"] == admission["message"]


QUARTER, HALF = {VXPU: 1, MEMORY: 24576}, {VXPU: 1, MEMORY: 49152}
MUTEX = {"hami.io/gpu-scheduler-policy": "mutex"}
SHARING: dict[str, tuple[list[Document], Document, Any]] = {
    "VXP-1: a used card does not shift the wings": (
        [pod("t", QUARTER, {USE: "xpu-7"})],
        pod("a", {VXPU: 4}),
        [["xpu-0", "xpu-1", "xpu-2", "xpu-3"]],
    ),
    "equal slices share": ([pod("t", QUARTER, {USE: "xpu-2"})], pod("a", QUARTER, {USE: "xpu-2"}), [["xpu-2"]]),
    "others do not": ([pod("t", QUARTER, {USE: "xpu-2"})], pod("a", HALF, {USE: "xpu-2"}), "7/8 CardUuidMismatch"),
    "VXP-2: six cards have no choice": ([], pod("a", {**QUARTER, VXPU: 6}), "1/8 NumaNotFit"),
    "VXP-4: slots do not count": (
        [pod("t", QUARTER, {USE: "xpu-8"})],
        pod("a", QUARTER, {USE: "xpu-8"}),
        [["xpu-8"]],
    ),
    "VXP-5: a smaller card is never whole": ([], pod("a", {VXPU: 1}, {USE: "xpu-9"}), "9/10 CardUuidMismatch"),
    "mutex tells of used cards first": (
        [pod("t", QUARTER, {USE: "xpu-2"})],
        pod("a", QUARTER, {USE: "xpu-2", **MUTEX}),
        "1/8 ExclusiveDeviceAllocateConflict",
    ),
}


@pytest.mark.parametrize(("before", "asking", "expected"), SHARING.values(), ids=SHARING)
def test_slices_on_cards(before: list[Document], asking: Document, expected: Any) -> None:
    uses = str(asking["metadata"]["annotations"])
    further = [sliced(8, count=1)] if "xpu-8" in uses else []
    further += [sliced(8), sliced(9, devmem=65536)] if "xpu-9" in uses else []
    cards = sliced_node(*(sliced(n) for n in range(8)), *further)
    answer = told([cards], *(filtered(one) for one in before), filtered(asking))[-1]
    assert (answer["failed"]["n1"] if isinstance(expected, str) else cards_of(answer, "XPU")) == expected


def test_vxp_3_a_card_whose_id_the_text_cannot_hold_is_left_out() -> None:
    cards = sliced_node(sliced(0, id="0000:3b:00.0"), sliced(1))
    (answer,) = told([cards], filtered(pod("a", {**QUARTER, VXPU: 2})))
    assert answer["failed"] == {"n1": "NodeInsufficientDevice"}


def test_memory_is_limited_in_the_fit() -> None:
    cards = sliced_node(*(sliced(n) for n in range(8)))
    steps = [filtered(pod("t", QUARTER)), filtered(pod("a", HALF)), filtered(pod("b", QUARTER)), quota_used()]
    _, refused, fits, used = told([cards], *steps, quota={MEMORY: 60000})
    assert "1/8 ResourceQuotaNotFit" in refused["failed"]["n1"]
    assert cards_of(fits, "XPU") == [["xpu-0"]]
    assert used[MEMORY] == {"used": 49152, "limit": 60000}


PAIRS = ({0, 4}, {1, 5}, {2, 6}, {3, 7})
SQUARES = ({0, 1, 4, 5}, {2, 3, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}, {0, 3, 4, 7}, {1, 2, 5, 6})
WINGS = (set(range(4)), set(range(4, 8)))


def first_of_all(free: set[int], count: int) -> tuple[int, ...]:
    """The rule's own order over every subset of the free places: (how good, then the first in place order)."""
    sizes = {1: (1, 3, 2, 4), 2: (2, 3, 4), 4: (4,), 8: ()}[count]
    ranked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for subset in combinations(sorted(free), count):
        places = set(subset)
        for n, wing in enumerate(WINGS):
            if places <= wing and len(free & wing) in sizes:
                ranked.append(((0, sizes.index(len(free & wing)), n), subset))
        if count == 2 and places in PAIRS:
            ranked.append(((1,), subset))
        if count == 4 and places in SQUARES:
            rest, rank = free - places, SQUARES.index(places)
            linked = rest in PAIRS or any(rest <= wing for wing in WINGS)
            # Of six free cards: one that leaves a link, the first such; else the last one of all.
            order = rank if len(free) < 6 else rank if linked else 100 - rank
            ranked.append(((1, order), subset))
        if count == 8:
            ranked.append(((0,), subset))
    return min(ranked)[1] if ranked else ()


@given(st.sets(st.integers(0, 7)), st.sampled_from([1, 2, 4, 8]))
def test_a_board_gives_the_first_of_all_subsets(free: set[int], count: int) -> None:
    assert on_board(free, count) == first_of_all(free, count)


@st.composite
def card_nodes(draw: st.DrawFn) -> list[CardState]:
    """Up to three boards with cards in any walk order; indexes may have gaps."""
    used = draw(st.lists(st.booleans(), min_size=1, max_size=20))
    step = draw(st.sampled_from([1, 3]))
    walked = draw(st.permutations(range(len(used))))
    return [
        state(Card(f"c-{n:02}", "kunlun", n * step, 100, 98304, 100, "kunlun", healthy=True), slots=int(used[n]))
        for n in walked
    ]


@given(card_nodes(), st.sampled_from([1, 2, 4, 8]))
def test_the_first_board_with_a_choice_gives_it(states: list[CardState], count: int) -> None:
    by_index = sorted(states, key=lambda s: s.card.index)
    expected: list[str] = []
    for start in range(0, len(by_index), 8):
        board = by_index[start : start + 8]
        places = first_of_all({n for n, s in enumerate(board) if not s.used_slots}, count)
        expected = expected or [board[place].card.uuid for place in places]
    came = walk_over(states, "kunlun", {XPU: count})
    if count > len(states):
        assert came == "NodeInsufficientDevice"
    else:
        assert came == (expected or f"1/{len(states)} NumaNotFit")
