"""What may go into a Binding: the API server checks it only when it is too late."""

import pytest

from devices.errors import BindingMetadataError
from devices.keys import check_binding_metadata, is_label_value

LABEL_VALUES = {
    "empty": ("", True),
    "a node name": ("node-1.example.com", True),
    "63 characters": ("n" * 63, True),
    "64 characters": ("n" * 64, False),
    "underscore inside": ("a_b", True),
    "dash in front": ("-a", False),
    "dot at the end": ("a.", False),
    "a blank": ("a b", False),
    "a slash": ("a/b", False),
    "letters of another script": ("é", False),
    "a line end": ("a\n", False),
}


@pytest.mark.parametrize(("text", "accepted"), LABEL_VALUES.values(), ids=LABEL_VALUES)
def test_label_value(text: str, accepted: bool) -> None:
    assert is_label_value(text) is accepted


GOOD_KEYS = ["hami.io/vgpu-node", "a", "A_b.c", "example.com/" + "n" * 63, "p" * 253 + "/n", "a.b-c.d/X"]
BAD_KEYS = {
    "empty": "",
    "no name": "hami.io/",
    "no prefix": "/a",
    "two slashes": "a/b/c",
    "name too long": "hami.io/" + "n" * 64,
    "prefix too long": "p" * 254 + "/n",
    "name with a blank": "hami.io/a b",
    "name that ends in a dash": "a-",
    "underscore in the prefix": "a_b/c",
    "an empty part of the prefix was accepted": "a..b/c",
    "a part of the prefix that begins with a dash was accepted": "a.-b/c",
}


@pytest.mark.parametrize("key", GOOD_KEYS)
def test_good_keys(key: str) -> None:
    check_binding_metadata([(key, "any value\n")], [(key, "v")])


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_bad_keys_are_named(key: str) -> None:
    with pytest.raises(BindingMetadataError) as error:
        check_binding_metadata([(key, "")], [])
    assert str(error.value) == f"annotation key {key!r} is not a qualified name"
    with pytest.raises(BindingMetadataError) as error:
        check_binding_metadata([], [(key, "")])
    assert str(error.value) == f"label key {key!r} is not a qualified name"


def test_capitals_in_a_prefix_pass_for_annotations_alone() -> None:
    check_binding_metadata([("Hami.io/a", "")], [])
    with pytest.raises(BindingMetadataError, match=r"label key 'Hami\.io/a'"):
        check_binding_metadata([], [("Hami.io/a", "")])


def test_a_label_value_that_no_later_write_would_pass() -> None:
    with pytest.raises(BindingMetadataError, match=r"^label hami.io/vgpu-node: 'n{70}' is no label value"):
        check_binding_metadata([], [("hami.io/vgpu-node", "n" * 70)])


def test_total_size_counts_bytes_of_keys_and_values() -> None:
    room = 256 * 1024 - 1
    check_binding_metadata([("k", "v" * room)], [])
    with pytest.raises(BindingMetadataError, match="take 262145 bytes, more than the 262144"):
        check_binding_metadata([("k", "v" * (room - 1) + "é")], [])
