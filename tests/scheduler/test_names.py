"""Names as they come: what is not read says the same as what is, and an index finds what a dict does."""

import json
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.names import NameIndex, OfferedNames
from scheduler.roster import Roster

NAMES = st.one_of(
    st.integers(0, 30).map(lambda number: f"node-{number:02d}"),
    st.text(st.sampled_from("ab.-"), max_size=70),
    st.text(st.sampled_from('a,"[]\\\n\0é'), max_size=5),
)
PIECES = st.lists(st.sampled_from(['"', ",", "[", "]", "a", "\\", " ", "é", "\n", '","', '["', '"]']), max_size=12)


def is_plain(names: list[str]) -> bool:
    return bool(names) and all(name.isascii() and name.isprintable() and not {'"', "\\"} & set(name) for name in names)


@given(st.lists(NAMES, max_size=8))
@example(["a", "b"])
def test_a_plain_list_is_as_the_strings_in_it(names: list[str]) -> None:
    written = orjson.dumps(names)
    if not is_plain(names):
        with pytest.raises(ValueError, match="plain"):
            OfferedNames(written)
        return
    offered = OfferedNames(written)
    assert [offered[place] for place in range(len(names))] == names
    assert offered[-1] == names[-1]
    assert len(offered) == len(names)
    assert offered == tuple(names) == tuple(offered)
    assert offered[1:] == tuple(names[1:])
    assert offered[0] == names[0]
    assert offered == OfferedNames(orjson.dumps(names)) != OfferedNames(orjson.dumps([*names, "more"]))
    assert hash(offered) == hash(tuple(names))


@given(PIECES)
@example(['["', "a", '"]'])
@example(['["', "a", '" ,"', "b", '"]'])
def test_what_is_taken_for_a_plain_list_is_one(pieces: list[str]) -> None:
    written = "".join(pieces)
    try:
        offered = OfferedNames(written.encode())
    except ValueError:
        return
    assert offered == tuple(json.loads(written))


@given(st.lists(NAMES, unique=True, max_size=30), st.data())
def test_the_index_finds_what_a_dict_does(names: list[str], data: st.DataObject) -> None:
    place_of = {name: place for place, name in enumerate(names)}
    index = NameIndex(names)
    known = [name for name in names if is_plain([name])]
    among = st.sampled_from(known) if known else st.nothing()
    asked = data.draw(st.lists(st.one_of(among, NAMES.filter(lambda name: is_plain([name]))), min_size=1, max_size=20))
    found = index.of(OfferedNames(orjson.dumps(asked)))
    if is_plain(["", *names]) or not names:
        assert (found is None) is not bool(names)
    if found is not None:
        assert found.tolist() == [place_of.get(name, -1) for name in asked]


FLEETS = {
    "racks": [f"worker-{a}-rack-0{b}" for a in range(10) for b in range(10)],
    "addresses": [f"ip-10-{n % 7}-{n // 7 % 250}-{n % 250}.eu-central-1.compute.internal" for n in range(5000)],
    "numbers": [f"node-{n}" for n in range(5000)],
    "one a word": [f"{n:08d}" for n in range(5000)],
    "apart at the end of a word": [f"node--{a}-node--{b}" for a in range(10) for b in range(10)],
}


@pytest.mark.parametrize("names", FLEETS.values(), ids=FLEETS)
def test_usual_names_have_keys_of_their_own(names: list[str]) -> None:
    names = list(dict.fromkeys(names))
    index, places = NameIndex(names), list(range(len(names)))
    Random(1).shuffle(places)
    found = index.of(OfferedNames(orjson.dumps([names[place] for place in places])))
    assert found is not None
    assert found.tolist() == places
    unknown = index.of(OfferedNames(orjson.dumps([names[3], "nobody", "x" * 300, names[4]])))
    assert unknown is not None
    assert unknown.tolist() == [3, -1, -1, 4]


@given(st.lists(NAMES, unique=True, max_size=10), st.lists(NAMES, max_size=10), st.randoms(use_true_random=False))
def test_a_roster_finds_all_that_are_there_whatever_their_order(
    names: list[str], others: list[str], random: Random
) -> None:
    slot_of = {name: slot for slot, name in enumerate(names, 1)}
    roster = Roster(slot_of)
    asked = [*names[::2], *others, *others[:2]]
    random.shuffle(asked)
    missing = tuple(sorted({name for name in asked if name not in slot_of}))
    expected = sorted(set(asked) & set(names))
    for offered in (asked, OfferedNames(orjson.dumps(asked)) if is_plain(asked) else tuple(asked)):
        places, nowhere = roster.find(offered)
        assert roster.names[places].tolist() == expected
        assert roster.slots[places].tolist() == [slot_of[name] for name in expected]
        assert nowhere == missing


@pytest.mark.parametrize("key", [0, 2**64 - 1])
def test_names_whose_keys_are_equal_are_told_apart(key: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.names._keys", lambda words: np.full(len(words), key, np.uint64))
    index = NameIndex(["a"])
    found = index.of(OfferedNames(b'["a","b"]'))
    assert found is not None
    assert found.tolist() == [0, -1]
    assert NameIndex(["a", "b"]).of(OfferedNames(b'["b"]')) is None
    assert Roster({"a": 5, "b": 7}).find(OfferedNames(b'["b"]'))[0].tolist() == [1]
