from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.core_masks import cores_of, first_window, lowest_free
from devices.model import Card, CardState


def row(used: str) -> list[CardState]:
    """Devices by index, `x` in use, `-` unhealthy; given in no particular order."""
    states = [
        CardState(
            Card(f"d{n}", "V", n, 2, 0, 3, "V", healthy=sign != "-"), used_slots=int(sign == "x"), healthy=sign != "-"
        )
        for n, sign in enumerate(used)
    ]
    return states[::-1]


WINDOWS = {
    "anywhere": ("x...", 2, 1, [1, 2]),
    "at multiples": ("x...", 2, 2, [2, 3]),
    "an unhealthy one breaks it": (".-..", 2, 1, [2, 3]),
    "none is long enough": (".x.x", 2, 1, []),
    "never": ("....", 2, 0, []),
    "more than there are": ("..", 4, 1, []),
    "all": ("....", 4, 4, [0, 1, 2, 3]),
}


@pytest.mark.parametrize(("used", "count", "step", "expected"), WINDOWS.values(), ids=WINDOWS)
def test_the_first_window(used: str, count: int, step: int, expected: list[int]) -> None:
    assert [state.card.index for state in first_window(row(used), count, step)] == expected


@given(st.integers(0, 255), st.integers(1, 8), st.integers(0, 8))
def test_lowest_free_cores_are_the_first_of_all_choices(used: int, cores: int, count: int) -> None:
    free = [core for core in range(cores) if not used >> core & 1]
    choices = list(combinations(free, min(count, len(free))))
    assert cores_of(lowest_free(used, cores, count)) == min(choices)
