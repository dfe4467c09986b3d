"""A decoder that has read names before against one that has not: whatever comes, in whatever order, both say the same."""

from collections.abc import Sequence

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import RequestError
from scheduler.wire import FilterArgs, FilterDecoder, decode_filter
from tests.builders import container_document, pod

ONE = orjson.dumps(msgspec.to_builtins(pod(container_document(gpu=1), name="one")))
TWO = orjson.dumps(
    msgspec.to_builtins(pod(container_document(gpu=2), name="two", annotations={"a": '],"NodeNames":["'}))
)
BETWEEN = b',"Nodes":null,"NodeNames":'
TAIL = BETWEEN + b'["n1","n2"]'
PODS = (
    ONE,
    TWO,
    b"{}",
    b"null",
    b"5",
    b'{"x":5',
    b'{"metadata":{"name":"',
    b'{"metadata":{"name":"n"' + TAIL + b"}}",
    b'{"metadata":{"name":"\xff"}}',
    ONE + b',"NodeNames":["n9"]',
    ONE + b',"NodeNames":5',
    ONE + b',"Nodes":{"items":[{"metadata":{"name":"n8"}}]}',
    ONE + TAIL,
    ONE + b',"Pod":' + TWO,
    ONE + b",",
)
LISTS = (
    b'["n1","n2"]',
    b'["n2","n1"]',
    b'["n1","n2","n3"]',
    b'["n1"]',
    b"[]",
    b'["n1","n1","n2"]',
    b'["n1", "n2"]',
    b' ["n1","n2"] ',
    b'["\\u006e1","n2"]',
    b'["n1","\\n2"]',
    b'["nowhere","n2"]',
    b'["n1",2]',
    b'["n1","n2"',
    b'["n1","n2"]]',
    b'["n1","\xff"]',
    b"null",
    b'["n1","n2"],"NodeNames":["n3"]',
    b'["n1","n2"],"Pod":' + TWO,
    b'["n1","n2"],"pod":null',
    b'["n1","n2"],"Nodes":{"items":[]}',
)
HEADS = (b'{"Pod":', b'{ "Pod" : ', b'{"pod":', b'{"x":{"Pod":', b'{"NodeNames":["n7"],"Pod":', b'["Pod",', b"")
BETWEENS = (
    BETWEEN,
    BETWEEN,
    b',"NodeNames":',
    b',"nodenames":',
    b',"Nodes": null,"NodeNames":',
    b'","Nodes":null,"NodeNames":',
)
ENDS = (b"}", b"}", b"}\n", b"}}", b"", b"}{")


def requests() -> st.SearchStrategy[bytes]:
    """Mostly as kube-scheduler writes them; the rest comes close."""
    usual = st.tuples(*map(st.sampled_from, (HEADS[:1], PODS[:2], BETWEENS[:1], LISTS, ENDS[:1])))
    strange = st.tuples(*map(st.sampled_from, (HEADS, PODS, BETWEENS, LISTS, ENDS)))
    return (usual | strange).map(b"".join)


def said(decode: FilterDecoder | None, body: bytes) -> FilterArgs | str:
    try:
        return decode_filter(body) if decode is None else decode.decode(body)
    except RequestError as error:
        return str(error)


@given(st.lists(requests(), min_size=1, max_size=12))
def test_names_read_before_are_those_of_reading_them_again(bodies: Sequence[bytes]) -> None:
    decoder = FilterDecoder()
    for body in [*bodies, *bodies]:
        assert said(decoder, body) == said(None, body)


def test_equal_names_are_read_once() -> None:
    decoder = FilterDecoder()
    first = decoder.decode(b'{"Pod":%s%s["n1","n2"]}' % (ONE, BETWEEN))
    other = decoder.decode(b'{"Pod":%s%s["n2","n1"]}' % (ONE, BETWEEN))
    again = decoder.decode(b'{"Pod":%s%s["n1","n2"]}' % (TWO, BETWEEN))
    assert again.pod.name == "two"
    assert again.names is first.names
    assert other.names == ("n2", "n1")


@pytest.mark.parametrize("lists", [1, 5, 100])
def test_only_the_last_few_lists_are_kept(lists: int) -> None:
    decoder = FilterDecoder()
    bodies = [b'{"Pod":%s%s["n%d"]}' % (ONE, BETWEEN, number) for number in range(lists)]
    read = [decoder.decode(body).names for body in bodies]
    kept = [again.names is names for names, again in zip(read, map(decoder.decode, bodies), strict=True)]
    assert kept == [lists <= 4] * lists
