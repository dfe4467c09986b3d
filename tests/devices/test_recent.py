"""What is remembered of what never ends."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from devices.recent import Recent


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 8), st.integers())))
def test_the_last_keys_stay_with_their_newest_values(size: int, puts: list[tuple[int, int]]) -> None:
    recent: Recent[int, int] = Recent(size)
    expected: OrderedDict[int, int] = OrderedDict()
    for key, value in puts:
        recent.put(key, value)
        expected[key] = value
        if len(expected) > size:
            expected.popitem(last=False)
        assert len(recent) == len(expected)
        assert {k: recent.get(k) for k in range(9) if k in recent} == expected
        assert all(recent.get(k) is None for k in range(9) if k not in expected)
