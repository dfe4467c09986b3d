"""The allocation text and the MIG reservations: written exactly, read in every form that was ever written."""

import json
from typing import Any

import pytest

from devices.annotations import at_positions, decode, decode_mig, encode, encode_mig, mig_reservations
from devices.errors import AllocationError
from devices.ledger import decode_allocation
from devices.model import Allocation, Entry, MigReservation, Placement, entries_of
from devices.vendor import Placed
from tests.builders import ALLOCATED, container_document, entry, nvidia, nvidia_config, pod

A, B = entry("GPU-a"), entry("GPU-b")

TEXTS: dict[str, tuple[Allocation, str]] = {
    "one card": (((A,),), "GPU-a,NVIDIA,1000,0:;"),
    "two cards in one container": (
        ((entry("GPU-a", 2500, 25), entry("GPU-b", 2500, 25)),),
        "GPU-a,NVIDIA,2500,25:GPU-b,NVIDIA,2500,25:;",
    ),
    "a plain container first lost its position": (((), (A,)), ";GPU-a,NVIDIA,1000,0:;"),
    "a plain container between": (
        ((A,), (), (entry("GPU-b", 4000, 30),)),
        "GPU-a,NVIDIA,1000,0:;;GPU-b,NVIDIA,4000,30:;",
    ),
    "init containers first": (
        ((entry("GPU-a", 8000),), (), (entry("GPU-a", 2000),)),
        "GPU-a,NVIDIA,8000,0:;;GPU-a,NVIDIA,2000,0:;",
    ),
    "consumed": (((), ()), ";;"),
    "first without, second with two, third with one": (
        ((), (entry("GPU-aa02", 6000, 25), entry("GPU-aa01", 6000, 25)), (entry("GPU-aa01"),)),
        ";GPU-aa02,NVIDIA,6000,25:GPU-aa01,NVIDIA,6000,25:;GPU-aa01,NVIDIA,1000,0:;",
    ),
}


@pytest.mark.parametrize(("allocation", "text"), TEXTS.values(), ids=TEXTS)
def test_text(allocation: Allocation, text: str) -> None:
    assert encode(allocation, "NVIDIA") == text
    assert decode(text, "NVIDIA") == allocation


def test_a_text_names_one_vendors_cards_and_every_position() -> None:
    both = ((A, entry("DCU-1", 5, 6, vendor="DCU")), ())
    assert encode(both, "DCU") == "DCU-1,DCU,5,6:;;"
    assert entries_of(both, "NVIDIA") == ((A,), ())


OLD_TEXTS: dict[str, tuple[str, Allocation]] = {
    "empty value is one empty container": ("", ((),)),
    "no closing sign at all": ("GPU-a,NVIDIA,1000,0", ((A,),)),
    "no sign after the last container": (";GPU-a,NVIDIA,1000,0:", ((), (A,))),
    "pieces without comma": ("x:GPU-a,NVIDIA,1000,0:y:;", ((A,),)),
    "an empty card of old writers": (",,0,0:;GPU-a,NVIDIA,1000,0:;", ((), (A,))),
    "more than four fields": ("GPU-a,NVIDIA,1000,0,7,{}:;", ((A,),)),
    "the vendor is the annotation's": ("GPU-a,NVIDIA-Tesla T4,1000,0:;", ((A,),)),
    "signs": ("GPU-a,NVIDIA,+1000,-0:;", ((A,),)),
    "a negative share hands nothing out": (
        "GPU-a,NVIDIA,-1000,-5:;",
        ((Entry("GPU-a", "NVIDIA", 0, 0),),),
    ),
    "the largest": (
        "GPU-a,NVIDIA,2147483647,2147483647:;",
        ((Entry("GPU-a", "NVIDIA", 2147483647, 2147483647),),),
    ),
}


@pytest.mark.parametrize(("text", "allocation"), OLD_TEXTS.values(), ids=OLD_TEXTS)
def test_whatever_was_written_is_read(text: str, allocation: Allocation) -> None:
    assert decode(text, "NVIDIA") == allocation


MISSING = "pod annotation format error, missing fields, do not use nodeName in task spec"
UNREADABLE = {
    "two fields": ("GPU-a,NVIDIA:;", MISSING),
    "three fields": ("GPU-a,NVIDIA,1000:;", MISSING),
    "three fields of an empty card": (",,0:;", MISSING),
    "memory": ("GPU-a,NVIDIA,x,0:;", "invalid memory field: 'x' is no 32-bit whole number"),
    "memory with a blank": ("GPU-a,NVIDIA, 1,0:;", "invalid memory field: ' 1' is no 32-bit whole number"),
    "no memory": ("GPU-a,NVIDIA,,0:;", "invalid memory field: '' is no 32-bit whole number"),
    "a sign alone": ("GPU-a,NVIDIA,-,0:;", "invalid memory field: '-' is no 32-bit whole number"),
    "memory beyond 32 bits": (
        "GPU-a,NVIDIA,2147483648,0:;",
        "invalid memory field: '2147483648' is no 32-bit whole number",
    ),
    "cores": ("GPU-a,NVIDIA,1,1.5:;", "invalid core field: '1.5' is no 32-bit whole number"),
    "cores below 32 bits": (
        "GPU-a,NVIDIA,1,-2147483649:;",
        "invalid core field: '-2147483649' is no 32-bit whole number",
    ),
    "one bad container spoils the pod": ("GPU-a,NVIDIA,1,0:;GPU-b:;GPU-b,NVIDIA:;", MISSING),
    "5000 digits": (
        f"GPU-a,NVIDIA,{'9' * 5000},0:;",
        f"invalid memory field: '{'9' * 5000}' is no 32-bit whole number",
    ),
}


@pytest.mark.parametrize(("text", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable(text: str, problem: str) -> None:
    with pytest.raises(AllocationError) as error:
        decode(text, "NVIDIA")
    assert str(error.value) == problem


# Shifted text

SHIFTED: dict[str, tuple[Allocation, list[bool], Allocation]] = {
    "as many positions as containers": (((A,), ()), [False, True], ((A,), ())),
    "a lost init container": (((A,),), [False, True], ((), (A,))),
    "lost positions before and between": (((A,), (B,)), [False, True, False, True], ((), (A,), (), (B,))),
    "an empty list that was kept is no card": (((), (A,)), [False, False, True], ((), (), (A,))),
    "more lists than containers that ask: counted on the last one": (
        ((A,), (B,)),
        [True, False, False],
        ((A,), (), (B,)),
    ),
    "nobody asks": (((A,),), [False, False], ((), (A,))),
    "several lists that nobody asks for are all counted": (
        ((A,), (B,), (A,)),
        [True, False, False, False],
        ((A,), (), (), (B, A)),
    ),
    "fewer lists than containers that ask": (((A,),), [True, True], ((A,), ())),
    "longer than the pod": (((A,), (), (B,)), [True, False], ((A,), (B,))),
    "longer than the pod, two on the last": (((A,), (B,)), [True], ((A, B),)),
    "a pod without containers": (((A,),), [], ()),
}


@pytest.mark.parametrize(("decoded", "asking", "expected"), SHIFTED.values(), ids=SHIFTED)
def test_shifted_text(decoded: Allocation, asking: list[bool], expected: Allocation) -> None:
    assert at_positions(decoded, asking) == expected


def test_shifted_text_of_a_pod_goes_to_the_containers_that_ask() -> None:
    init = [container_document("plain")]
    carried = pod(container_document(gpu=1), init=init, annotations={ALLOCATED: "GPU-a,NVIDIA,1000,0:;"})
    assert decode_allocation(carried, [nvidia()]) == ((), (A,))


def test_a_container_whose_values_are_malformed_still_asks() -> None:
    init = [container_document("plain")]
    for asks in (
        container_document(gpu=1, gpumem="16Gi"),
        container_document(requests={"gpu": 1}, gpumem="16Gi"),
    ):
        carried = pod(asks, container_document("log"), init=init, annotations={ALLOCATED: "GPU-a,NVIDIA,1000,0:;"})
        assert decode_allocation(carried, [nvidia()]) == ((), (A,), ())


def test_a_pod_without_the_annotation_has_empty_positions() -> None:
    assert decode_allocation(pod(init=[container_document("i")]), nvidia_config().vendors) == ((), ())


# MIG reservations

ONE = {
    "containerIndex": 1,
    "deviceIndex": 0,
    "gpuUUID": "GPU-a",
    "profile": "2g.10gb",
    "placement": {"start": 0, "size": 2},
}
RUNTIME = {"migUUID": "MIG-1", "gpuInstanceID": 0, "computeInstanceID": 0}
RESERVED = MigReservation(1, 0, "GPU-a", "2g.10gb", Placement(0, 2))


def test_reservations_are_written_as_the_plugin_reads_them() -> None:
    assert encode_mig([RESERVED]) == (
        '[{"containerIndex":1,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb","placement":{"start":0,"size":2}}]'
    )
    assert encode_mig([]) == ""


def test_reservations_are_read() -> None:
    assert decode_mig(json.dumps([ONE])) == (RESERVED,)
    assert decode_mig("") == ()
    assert decode_mig("[]") == ()


def test_what_the_plugin_adds_is_kept_and_0_is_a_valid_id() -> None:
    (found,) = decode_mig(json.dumps([{**ONE, **RUNTIME, "x": 1}]))
    assert found.runtime == ("MIG-1", 0, 0)
    assert json.loads(encode_mig([found])) == [{**ONE, **RUNTIME}]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ONE.items() if name != key}


REJECTED: dict[str, tuple[Any, str]] = {
    "negative container": (
        [{**ONE, "containerIndex": -1}],
        "MIG reservation 0: containerIndex and deviceIndex must not",
    ),
    "negative device": ([{**ONE, "deviceIndex": -1}], "MIG reservation 0: containerIndex and deviceIndex must not"),
    "empty uuid": ([{**ONE, "gpuUUID": ""}], "MIG reservation 0: gpuUUID and profile must not be empty"),
    "empty profile": ([{**ONE, "profile": ""}], "MIG reservation 0: gpuUUID and profile must not be empty"),
    "size 0": ([{**ONE, "placement": {"start": 0, "size": 0}}], "MIG reservation 0: placement must have a size"),
    "negative start": ([{**ONE, "placement": {"start": -1, "size": 1}}], "MIG reservation 0: placement must have"),
    "one runtime field": ([{**ONE, "migUUID": "MIG-1"}], "MIG reservation 0: migUUID, gpuInstanceID and compute"),
    "two runtime fields": (
        [{**ONE, "gpuInstanceID": 0, "computeInstanceID": 0}],
        "MIG reservation 0: migUUID, gpuInstanceID and computeInstanceID go together",
    ),
    "the same place twice": ([ONE, ONE], "MIG reservation 1: containerIndex 1, deviceIndex 0 stands twice"),
    "one bad entry spoils all": ([ONE, {**ONE, "profile": ""}], "MIG reservation 1: gpuUUID and profile"),
    "no list": ({}, "the MIG reservations cannot be read"),
    "null": (None, "the MIG reservations cannot be read"),
    "null entry": ([None], "the MIG reservations cannot be read"),
    "no uuid": ([without("gpuUUID")], "the MIG reservations cannot be read"),
    "no placement": ([without("placement")], "the MIG reservations cannot be read"),
    "index as text": ([{**ONE, "containerIndex": "1"}], "the MIG reservations cannot be read"),
}


@pytest.mark.parametrize(("document", "problem"), REJECTED.values(), ids=REJECTED)
def test_rejected(document: Any, problem: str) -> None:
    with pytest.raises(AllocationError, match=f"^{problem}"):
        decode_mig(json.dumps(document))


NO_JSON = {
    "cut": "[",
    "no text": "\ud800",
    "unknown fields nested beyond any reader ended in another error": '[{"x":' + "[" * 100_000,
}


@pytest.mark.parametrize("text", NO_JSON.values(), ids=NO_JSON)
def test_no_json(text: str) -> None:
    with pytest.raises(AllocationError, match=r"^the MIG reservations cannot be read"):
        decode_mig(text)


def test_device_positions_count_the_cards_of_one_vendor() -> None:
    first, second = (entry("GPU-m", 9984, 29, profile="2g.10gb", placement=Placement(n, 2)) for n in (0, 2))
    allocation = ((), (entry("DCU-1", vendor="DCU"), A, first, second))
    assert mig_reservations(allocation) == (
        MigReservation(1, 1, "GPU-m", "2g.10gb", Placement(0, 2)),
        MigReservation(1, 2, "GPU-m", "2g.10gb", Placement(2, 2)),
    )


def test_the_vendors_own_annotation_says_the_same_and_is_empty_without_instances() -> None:
    hooks = nvidia().hooks
    assert hooks.annotate is not None
    placed = Placed(pod(), "n1", {}, 0)
    two = tuple(entry("GPU-m", 9984, 29, profile="2g.10gb", placement=Placement(n, 2)) for n in (0, 2))
    assert hooks.annotate(nvidia(), ((), two), placed) == {
        "hami.io/vgpu-mig-allocations": encode_mig(mig_reservations(((), two)))
    }
    assert hooks.annotate(nvidia(), ((A,),), placed) == {"hami.io/vgpu-mig-allocations": ""}
