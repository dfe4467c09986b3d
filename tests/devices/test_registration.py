"""How nodes say which cards they have: the JSON list, the older text list, pair scores, the cordon list."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices import registration as reading
from devices.errors import RegistrationError
from devices.model import Card, MigProfile, Placement
from devices.registration import (
    cordoned,
    encode_text,
    ordered,
    parse_bool,
    read_json,
    read_pair_scores,
    read_text,
    with_pair_scores,
)
from tests.builders import PAIR_SCORES, REGISTER, card, mig_card, node, nvidia, registration

SHORTEST = {"id": "GPU-a"}
"""A card whose plugin left out every zero value."""


def only(document: Any) -> Card:
    listed = read_json(json.dumps([document]), "NVIDIA")
    assert listed.problems == ()
    (card,) = listed.cards
    return card


def test_a_full_card() -> None:
    document = {
        "id": "GPU-b",
        "index": 1,
        "count": 10,
        "devmem": 15360,
        "devcore": 100,
        "type": "NVIDIA-Tesla T4",
        "numa": 1,
        "mode": "hami-core",
        "health": True,
        "custominfo": {"NetworkID": 3},
    }
    assert only(document) == card("GPU-b", index=1, numa=1, custom={"NetworkID": 3})


def test_omitted_values_are_zero_and_a_missing_health_is_unhealthy() -> None:
    assert only(SHORTEST) == Card(uuid="GPU-a", vendor="NVIDIA")
    assert only(SHORTEST).healthy is False


def test_null_says_nothing() -> None:
    assert only({"id": "GPU-a", "count": None, "health": None, "migProfiles": None, "custominfo": None}) == only(
        SHORTEST
    )


def test_unknown_fields_are_ignored_and_the_vendor_is_the_readers() -> None:
    assert only({**SHORTEST, "devicevendor": "AMD", "migtemplate": [1]}) == only(SHORTEST)


CASES_OF_NAMES = {
    "capitals": {"ID": "GPU-a", "DevMem": 5},
    "as Go names the fields": {"Id": "GPU-a", "Devmem": 5},
    "of two that differ in case the last one counts": {"devmem": 4, "id": "GPU-a", "DEVMEM": 5},
    "null beside a value in another case does not hide it": {"devmem": 5, "id": "GPU-a", "DEVMEM": None},
}


@pytest.mark.parametrize("document", CASES_OF_NAMES.values(), ids=CASES_OF_NAMES)
def test_names_in_any_case(document: Any) -> None:
    assert only(document).memory_mib == 5


def test_the_camel_case_name_lost_to_its_lower_case_twin() -> None:
    profile = {"name": "1g.5gb", "memorymb": 1, "memoryMB": 4864}
    assert only({**SHORTEST, "migProfiles": [profile]}).mig_profiles[0].memory_mib == 4864


def test_mig_profiles() -> None:
    assert only(json.loads(registration(mig_card()))[0]) == mig_card()
    bare = only({**SHORTEST, "migProfiles": [{"name": "1g.5gb", "placements": [{"size": 1}]}]})
    assert bare.mig_profiles == (MigProfile("1g.5gb", 0, 0, 0, (Placement(0, 1),)),)


MALFORMED_CARDS: dict[str, tuple[Any, str]] = {
    "a null element crashed the reader": (None, "card 1: expected an object, got null"),
    "a list": ([], "card 1: expected an object, got a list"),
    "text": ("GPU-b", "card 1: expected an object, got text"),
    "no id": ({"count": 1}, "card 1: the card has no id"),
    "empty id": ({"id": ""}, "card 1: the card has no id"),
    "id with a separator of the allocation text": (
        {"id": "a,b"},
        "card 1: id 'a,b' must not contain ',', ':' or ';'",
    ),
    "id with a colon": ({"id": "a:b"}, "card 1: id 'a:b' must not contain ',', ':' or ';'"),
    "id with a semicolon": ({"id": "a;b"}, "card 1: id 'a;b' must not contain ',', ':' or ';'"),
    "id that is a number": ({"id": 1}, "card 1: field 'id' must be text, got a number"),
    "fraction": ({"id": "b", "devmem": 1.0}, "card 1: field 'devmem' must be a whole number, got a fraction"),
    "number as text": ({"id": "b", "count": "10"}, "card 1: field 'count' must be a whole number, got text"),
    "boolean number": ({"id": "b", "devcore": True}, "card 1: field 'devcore' must be a whole number, got a boolean"),
    "beyond 32 bits": (
        {"id": "b", "devmem": 2**31},
        "card 1: field 'devmem' is 2147483648, accepted are 0 to 2147483647",
    ),
    "beyond 64 bits": ({"id": "b", "count": 10**25}, "card 1: field 'count' must be a whole number, got a fraction"),
    "negative count": ({"id": "b", "count": -1}, "card 1: field 'count' is -1, accepted are 0 to 2147483647"),
    "negative index": ({"id": "b", "index": -1}, "card 1: field 'index' is -1, accepted are 0 to 2147483647"),
    "health as text": ({"id": "b", "health": "true"}, "card 1: field 'health' must be true or false, got text"),
    "health as number": ({"id": "b", "health": 1}, "card 1: field 'health' must be true or false, got a number"),
    "custom info that is no object": (
        {"id": "b", "custominfo": [1]},
        "card 1: field 'custominfo' must be an object, got a list",
    ),
    "profiles that are no list": (
        {"id": "b", "migProfiles": {}},
        "card 1: field 'migProfiles' must be a list, got an object",
    ),
    "a null profile": (
        {"id": "b", "migProfiles": [None]},
        "card 1: migProfiles[0]: expected an object, got null",
    ),
    "a placement without size was taken for one that conflicts with none": (
        {"id": "b", "migProfiles": [{"placements": [{"start": 1}]}]},
        "card 1: migProfiles[0].placements[0]: field 'size' is 0, accepted are 1 to 2147483647",
    ),
    "a placement before the card": (
        {"id": "b", "migProfiles": [{"placements": [{"start": -1, "size": 1}]}]},
        "card 1: migProfiles[0].placements[0]: field 'start' is -1, accepted are 0 to 2147483647",
    ),
}


@pytest.mark.parametrize(("element", "problem"), MALFORMED_CARDS.values(), ids=MALFORMED_CARDS)
def test_a_malformed_card_is_left_out_with_its_reason(element: Any, problem: str) -> None:
    listed = read_json(json.dumps([SHORTEST, element]), "NVIDIA")
    assert (listed.cards, listed.problems) == ((Card(uuid="GPU-a", vendor="NVIDIA"),), (problem,))


NO_LISTS = {
    "no JSON": ("{", "the card list is not JSON"),
    "empty text": ("", "the card list is not JSON"),
    "the older text": ("GPU-a,10,7680,100,NVIDIA-Tesla P4,0,true:", "the card list is not JSON"),
    "nested beyond any reader": ("[" * 100_000, "the card list is not JSON"),
    "no valid text": ("\ud800", "the card list is not JSON"),
    "null": ("null", "must be a JSON list, got null"),
    "an object": ("{}", "must be a JSON list, got an object"),
    "an empty list": ("[]", "the card list is empty"),
}


@pytest.mark.parametrize(("text", "problem"), NO_LISTS.values(), ids=NO_LISTS)
def test_no_card_list(text: str, problem: str) -> None:
    with pytest.raises(RegistrationError, match=problem):
        read_json(text, "NVIDIA")


def test_a_duplicate_uuid_counts_once() -> None:
    listed = read_json(json.dumps([{**SHORTEST, "count": 1}, {**SHORTEST, "count": 2}]), "NVIDIA")
    assert [c.slots for c in listed.cards] == [1]
    assert listed.problems == ("card GPU-a: registered twice, the first one counts",)


def test_cards_come_by_index_then_uuid_however_the_plugin_lists_them() -> None:
    cards = (card("GPU-b"), card("GPU-c"), card("GPU-a", index=1))
    for listing in (cards, cards[::-1], (cards[2], *cards[:2])):
        assert [c.uuid for c in read_json(registration(*listing), "NVIDIA").cards] == ["GPU-b", "GPU-c", "GPU-a"]
        assert ordered(listing) == cards


# The older text


def test_nine_fields() -> None:
    listed = read_text("GPU-a,10,7680,100,NVIDIA-Tesla P4,1,true,2,mps:", "NVIDIA")
    assert listed.cards == (card(memory_mib=7680, model="NVIDIA-Tesla P4", numa=1, index=2, mode="mps"),)
    assert listed.problems == ()


def test_seven_fields_mean_index_0_and_hami_core() -> None:
    (found,) = read_text("GPU-a,10,15360,100,NVIDIA-Tesla T4,0,true:", "NVIDIA").cards
    assert found == card()


@pytest.mark.parametrize("text", [":", "::"])
def test_separators_alone_are_zero_cards_and_no_error(text: str) -> None:
    listed = read_text(text, "DCU")
    assert (listed.cards, listed.problems) == ((), ())


def test_no_separator_at_all() -> None:
    with pytest.raises(RegistrationError, match=r"^node annotation missing device separator$"):
        read_text("GPU-a,10,7680,100,P4,0,true", "NVIDIA")


def test_negative_shares_of_a_text_list_are_none() -> None:
    (found,) = read_text("a,-1,-2,-3,m,-1,true:", "DCU").cards
    assert (found.slots, found.memory_mib, found.cores, found.numa) == (0, 0, 0, -1)


GOOD = "b,1,2,3,m,0,true,1,hami-core:"
MALFORMED_SEGMENTS = {
    "no comma": ("GPU-a:", 'malformed node annotation segment: "GPU-a"'),
    "two fields": ("a,1:", "unexpected field count 2 in node annotation"),
    "six fields": ("a,1,2,3,m,0:", "unexpected field count 6 in node annotation"),
    "eight fields": ("a,1,2,3,m,0,true,0:", "unexpected field count 8 in node annotation"),
    "ten fields": ("a,1,2,3,m,0,true,0,x,y:", "unexpected field count 10 in node annotation"),
    "count": ("a,x,2,3,m,0,true:", "invalid count field: 'x'"),
    "memory": ("a,1,1.5,3,m,0,true:", "invalid memory field: '1.5'"),
    "core": ("a,1,2,,m,0,true:", "invalid core field: ''"),
    "numa": ("a,1,2,3,m,1_0,true:", "invalid numa field: '1_0'"),
    "health": ("a,1,2,3,m,0,yes:", "invalid health field: 'yes'"),
    "index": ("a,1,2,3,m,0,true, 1,x:", "invalid index field: ' 1'"),
    "index below 0": ("a,1,2,3,m,0,true,-1,x:", "index field must not be negative: -1"),
    "beyond 32 bits": ("a,2147483648,2,3,m,0,true:", "invalid count field: '2147483648'"),
    "5000 digits ended in another error": (f"a,{'9' * 5000},2,3,m,0,true:", f"invalid count field: '{'9' * 5000}'"),
    "digits of another script": ("a,١,2,3,m,0,true:", "invalid count field: '١'"),
    "no id": (",1,2,3,m,0,true:", "card: the card has no id"),
}


@pytest.mark.parametrize(("segment", "problem"), MALFORMED_SEGMENTS.values(), ids=MALFORMED_SEGMENTS)
def test_a_malformed_segment_is_left_out_with_its_reason(segment: str, problem: str) -> None:
    listed = read_text(segment + GOOD, "DCU")
    assert [c.uuid for c in listed.cards] == ["b"]
    assert listed.problems == (problem,)


def test_the_writer_writes_nine_fields_and_closes_each_card() -> None:
    written = encode_text((card(memory_mib=7680, model="NVIDIA-Tesla P4"), card("b", healthy=False, numa=1, index=1)))
    assert written == (
        "GPU-a,10,7680,100,NVIDIA-Tesla P4,0,true,0,hami-core:b,10,15360,100,NVIDIA-Tesla T4,1,false,1,hami-core:"
    )


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_true(text: str) -> None:
    assert parse_bool(text) is True


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_false(text: str) -> None:
    assert parse_bool(text) is False


@pytest.mark.parametrize("text", ["", "yes", "tRUE", " true", "2"])
def test_neither(text: str) -> None:
    assert parse_bool(text) is None


# Pair scores, cordon, and the node as a whole

SCORES = '[{"uuid":"GPU-a","score":{"GPU-b":100}},{"uuid":"GPU-b","score":{"GPU-a":100}}]'


def test_pair_scores() -> None:
    assert read_pair_scores(SCORES) == {"GPU-a": {"GPU-b": 100}, "GPU-b": {"GPU-a": 100}}
    assert read_pair_scores('[{"uuid":"GPU-a"}]') == {"GPU-a": {}}


UNREADABLE_SCORES = {
    "no JSON": ("{", "the pair scores are not JSON"),
    "no list": ("{}", "the pair scores must be a JSON list, got an object"),
    "null element": ("[null]", r"pair scores \[0\]: expected an object, got null"),
    "fraction": ('[{"uuid":"a","score":{"b":1.5}}]', "the score of 'b' must be a whole number, got 1.5"),
    "boolean": ('[{"uuid":"a","score":{"b":true}}]', "the score of 'b' must be a whole number, got True"),
    "too large": ('[{"uuid":"a","score":{"b":4294967296}}]', "the score of 'b' must be a whole number, got 4294967296"),
    "no object": ('[{"uuid":"a","score":[]}]', "field 'score' must be an object, got a list"),
    "uuid is no text": ('[{"uuid":1}]', "field 'uuid' must be text, got a number"),
}


@pytest.mark.parametrize(("text", "problem"), UNREADABLE_SCORES.values(), ids=UNREADABLE_SCORES)
def test_unreadable_scores_leave_the_cards_usable(text: str, problem: str) -> None:
    with pytest.raises(RegistrationError, match=problem):
        read_pair_scores(text)
    listed = nvidia().read_node(node("n1", card(), annotations={PAIR_SCORES: text}))
    assert listed.cards == (card(),)
    assert len(listed.problems) == 1
    assert listed.problems[0].startswith(f"annotation {PAIR_SCORES} is ignored: ")


def test_scores_go_to_their_cards_and_a_card_without_a_row_keeps_none() -> None:
    a, b, c = with_pair_scores((card("GPU-a"), card("GPU-b"), card("GPU-c")), read_pair_scores(SCORES))
    assert [dict(one.pair_scores) for one in (a, b, c)] == [{"GPU-b": 100}, {"GPU-a": 100}, {}]


def test_a_node_with_scores() -> None:
    listed = nvidia().read_node(node("n1", card("GPU-a"), card("GPU-b"), annotations={PAIR_SCORES: SCORES}))
    assert [dict(one.pair_scores) for one in listed.cards] == [{"GPU-b": 100}, {"GPU-a": 100}]
    assert listed.problems == ()


def test_scores_without_a_card_list() -> None:
    with pytest.raises(RegistrationError, match=f"annotation {REGISTER} is missing"):
        nvidia().read_node(node("n1", annotations={PAIR_SCORES: SCORES}))


CORDONS = {
    "none": ("", set()),
    "one": ("GPU-a", {"GPU-a"}),
    "trimmed": (" GPU-a , GPU-b", {"GPU-a", "GPU-b"}),
    "empty items": (",,GPU-a,", {"GPU-a"}),
}


@pytest.mark.parametrize(("text", "uuids"), CORDONS.values(), ids=CORDONS)
def test_cordon(text: str, uuids: set[str]) -> None:
    assert cordoned(text) == uuids


_VALUES: st.SearchStrategy[Any] = st.sampled_from(
    (
        "GPU-a",
        "GPU-b",
        "GPU:c",
        "",
        0,
        1,
        8,
        -1,
        -0.0,
        1.0,
        2**31 - 1,
        2**31,
        10**20,
        True,
        False,
        None,
        [],
        {},
        "é\x00",
    )
)
_NAMES = ("id", "index", "count", "devmem", "devcore", "type", "numa", "mode", "health")
_ODD = ("ID", "DevMem", "migProfiles", "customInfo", "unheard")
_PLAIN: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"id": st.sampled_from(("GPU-a", "GPU-b", "GPU-c"))},
    optional={name: st.integers(0, 2**31 - 1) for name in ("index", "count", "devmem", "devcore", "numa")}
    | {"type": st.text(max_size=4), "mode": st.text(max_size=4), "health": st.booleans()},
)
_CARDS = st.one_of(_PLAIN, st.dictionaries(st.sampled_from((*_NAMES, *_ODD)), _VALUES, max_size=4), _VALUES)


def _read(text: str) -> object:
    try:
        return read_json(text, "NVIDIA")
    except RegistrationError as error:
        return str(error)


@given(st.lists(_CARDS, max_size=4) | _VALUES, st.sampled_from(("", "", "", " ", "x", "]")))
def test_the_quick_reading_of_a_list_is_the_other_one(document: object, behind: str) -> None:
    text = json.dumps(document) + behind
    quick = _read(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "_quick_cards", lambda text, vendor: None)
        assert quick == _read(text)


def test_lists_as_plugins_write_them_are_read_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "read_cards", None)
    text = node("n", card("b", index=1), card("a")).annotations[REGISTER]
    assert [found.uuid for found in read_json(text, "NVIDIA").cards] == ["a", "b"]
