"""Scores in single precision (HAMi v2.10 scheduling, worked examples), and the weights of a pod."""

from typing import Any

import pytest

from devices.errors import WeightsError
from devices.requests import DeviceRequest
from devices.score import EQUAL_WEIGHTS, Weights, card_score, node_score, single, weights_of
from tests.builders import card_state, request

CARDS: dict[str, tuple[tuple[int, int, int], Weights, dict[str, Any], str]] = {
    "idle": ((0, 0, 0), Weights(), {}, "0.000000"),
    "one tenant": ((1, 1000, 0), Weights(), {}, "1.651042"),
    "two tenants": ((2, 2000, 0), Weights(), {}, "3.302083"),
    "three tenants": ((3, 3000, 0), Weights(), {}, "4.953125"),
    "compute too": ((1, 1000, 25), Weights(), {}, "4.151042"),
    "full": ((1, 15360, 100), Weights(), {}, "21.000000"),
    "memory counts three times": ((1, 1000, 0), Weights(1, 1, 3), {}, "2.953125"),
    "memory alone": ((1, 1000, 0), Weights(0, 0, 1), {}, "0.651042"),
    "slots twice, no compute": ((4, 6000, 30), Weights(2, 0, 1), {}, "11.906250"),
    "a card of 80 GB": ((2, 30720, 60), Weights(), {"memory_mib": 81920}, "11.750000"),
    "scaled compute": (
        (3, 9000, 130),
        Weights(),
        {"memory_mib": 24576, "slots": 20, "cores": 200},
        "11.662109",
    ),
    "no slots": ((1, 1, 1), Weights(), {"slots": 0}, "0.000000"),
    "no compute": ((1, 1, 1), Weights(), {"cores": 0}, "0.000000"),
    "no memory": ((1, 1, 1), Weights(), {"memory_mib": 0}, "0.000000"),
}


@pytest.mark.parametrize(("used", "weights", "fields", "expected"), CARDS.values(), ids=CARDS)
def test_card(used: tuple[int, int, int], weights: Weights, fields: dict[str, Any], expected: str) -> None:
    asked = [request(memory_mib=1000)]
    assert f"{card_score(card_state('GPU-a', used, **fields), weights, asked):.6f}" == expected


def test_the_request_counts_on_a_card_registered_with_exactly_its_vendor_key() -> None:
    tenanted = card_state("GPU-a", (1, 1000, 0), model="NVIDIA")
    assert f"{card_score(tenanted, EQUAL_WEIGHTS, [request(memory_mib=1000)]):.6f}" == "3.302083"
    assert f"{card_score(tenanted, EQUAL_WEIGHTS, []):.6f}" == "1.651042"


FLIPS = {
    "equal weights": (Weights(), 16.0, 15.0),
    "memory heavy flips the order": (Weights(1, 1, 3), 26.0, 27.0),
    "compute heavy": (Weights(1, 3, 1), 34.0, 17.0),
}
FORTY = DeviceRequest("NVIDIA", 1, 0, 40)


@pytest.mark.parametrize(("weights", "a", "b"), FLIPS.values(), ids=FLIPS)
def test_weights_with_the_request(weights: Weights, a: float, b: float) -> None:
    states = [card_state("GPU-a", used, model="NVIDIA", memory_mib=100) for used in ((1, 10, 90), (7, 20, 10))]
    assert [card_score(state, weights, [FORTY]) for state in states] == [pytest.approx(a), pytest.approx(b)]


def test_several_requests_add_up_one_slot_each() -> None:
    idle = card_state("GPU-a", model="NVIDIA", memory_mib=100)
    two = [DeviceRequest("NVIDIA", 3, 0, 40, 10), DeviceRequest("NVIDIA", 1, 20, None, 5), DeviceRequest("DCU", 1, 50)]
    assert card_score(idle, EQUAL_WEIGHTS, two) == pytest.approx(10 * (0.2 + 0.15 + 0.6))


def test_explicit_memory_beside_a_percentage_scores_by_the_percentage() -> None:
    idle = card_state("GPU-a", model="NVIDIA", memory_mib=100)
    assert card_score(idle, EQUAL_WEIGHTS, [DeviceRequest("NVIDIA", 1, 10, 50)]) == pytest.approx(10 * (0.1 + 0.5))


NODES = {
    "two cards of 8000": ([(1, 2000, 25), (0, 0, 0)], 8000, "3.00"),
    "the same, fuller": ([(1, 6000, 75), (0, 0, 0)], 8000, "8.00"),
    "one T4 with one tenant": ([(1, 1000, 0)], 15360, "1.65"),
}


@pytest.mark.parametrize(("used", "memory_mib", "expected"), NODES.values(), ids=NODES)
def test_node(used: list[tuple[int, int, int]], memory_mib: int, expected: str) -> None:
    assert f"{node_score([card_state('GPU-a', one, memory_mib=memory_mib) for one in used]):.2f}" == expected


def test_the_same_tenant_weighs_a_quarter_on_four_cards() -> None:
    states = [card_state("GPU-a", (1, 1000, 0)), *(card_state("GPU-b") for _ in range(3))]
    assert f"{node_score(states[:1]):.6f}" == "1.651042"
    assert f"{node_score(states):.6f}" == "0.412760"


@pytest.mark.parametrize("field", ["slots", "cores", "memory_mib"])
def test_a_node_without_one_of_them_scores_0(field: str) -> None:
    without: dict[str, Any] = {field: 0}
    assert node_score([card_state("GPU-a", (1, 1, 1), **without)]) == 0
    assert node_score([]) == 0


def test_single_precision_shows_in_what_is_printed() -> None:
    assert f"{single(1.065):.2f}" == "1.07"
    assert f"{1.065:.2f}" == "1.06"
    assert single(16777217) == 16777216
    assert f"{single(single(1.78) - 1_000_000):.2f}" == "-999998.25"


KEY = "hami.io/device-scoring-weights"
WEIGHTS = {
    "all": ("slot=1,core=2,memory=3", Weights(1, 2, 3)),
    "another order, blanks": (" memory = 3 ,slot=1, core=2 ", Weights(1, 2, 3)),
    "zeros but one": ("slot=0,core=0,memory=1", Weights(0, 0, 1)),
    "signs": ("slot=+1,core=-0,memory=1", Weights(1, 0, 1)),
    "largest": (f"slot={2**63 - 1},core=1,memory=1", Weights(2**63 - 1, 1, 1)),
}


@pytest.mark.parametrize(("text", "weights"), WEIGHTS.values(), ids=WEIGHTS)
def test_weights(text: str, weights: Weights) -> None:
    assert weights_of({KEY: text}) == weights


def test_no_annotation_means_equal_weights() -> None:
    assert weights_of({}) == EQUAL_WEIGHTS == Weights(1, 1, 1)


BAD_WEIGHTS = {
    "empty": ("", "expected slot, core, and memory weights"),
    "two entries": ("slot=1,core=1", "expected slot, core, and memory weights"),
    "four entries": ("slot=1,core=1,memory=1,slot=1", "expected slot, core, and memory weights"),
    "no value": ("slot=1,core,memory=1", "expected key=value entries"),
    "twice": ("slot=1,slot=2,memory=1", 'duplicate "slot" weight'),
    "unknown": ("slot=1,cores=1,memory=1", 'unknown weight "cores"'),
    "no number": ("slot=x,core=1,memory=1", '"slot" weight must be an integer'),
    "fraction": ("slot=1.5,core=1,memory=1", '"slot" weight must be an integer'),
    "nothing": ("slot=,core=1,memory=1", '"slot" weight must be an integer'),
    "underscore": ("slot=1_0,core=1,memory=1", '"slot" weight must be an integer'),
    "beyond 64 bits": (f"slot={2**63},core=1,memory=1", '"slot" weight must be an integer'),
    "5000 digits ended in another error": (f"slot={'9' * 5000},core=1,memory=1", '"slot" weight must be an integer'),
    "negative": ("slot=-1,core=1,memory=1", '"slot" weight must not be negative'),
    "all zero": ("slot=0,core=0,memory=0", "at least one weight must be positive"),
}


@pytest.mark.parametrize(("text", "problem"), BAD_WEIGHTS.values(), ids=BAD_WEIGHTS)
def test_bad_weights(text: str, problem: str) -> None:
    with pytest.raises(WeightsError) as error:
        weights_of({KEY: text})
    assert str(error.value) == f'invalid {KEY} annotation "{text}": {problem}'
