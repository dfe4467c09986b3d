"""What is written is read the same, and garbage raises the reader's own error and no other."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from devices.annotations import at_positions, decode, decode_mig, encode, encode_mig
from devices.config import read
from devices.errors import (
    AllocationError,
    ConfigError,
    DeviceError,
    LockError,
    QuantityError,
    RegistrationError,
    WeightsError,
)
from devices.model import Allocation, Card, MigReservation
from devices.node_lock import LockValue
from devices.node_lock import parse as parse_lock
from devices.quantity import parse, whole
from devices.registration import CardList, encode_text, ordered, read_json, read_pair_scores, read_text
from devices.score import weights_of
from tests.builders import registration
from tests.strategies import (
    allocations,
    any_text,
    cards,
    int32,
    json_values,
    mig_reservation_lists,
    near_objects,
    near_texts,
    plain_text,
)

texts = any_text | near_texts


@given(allocations)
def test_allocations(allocation: Allocation) -> None:
    text = encode(allocation, "NVIDIA")
    assert decode(text, "NVIDIA") == (allocation or ((),))
    assert text.count(";") == len(allocation)


@given(allocations, st.lists(st.booleans(), min_size=1, max_size=5))
def test_no_card_is_lost_or_doubled_by_bringing_it_to_its_position(decoded: Allocation, asking: list[bool]) -> None:
    found = at_positions(decoded, asking)
    assert len(found) == len(asking)
    assert [e for entries in found for e in entries] == [e for entries in decoded for e in entries]


@given(mig_reservation_lists())
def test_mig_reservations(reservations: tuple[MigReservation, ...]) -> None:
    assert decode_mig(encode_mig(reservations)) == reservations


@given(st.integers(0, 4_000_000_000), plain_text, plain_text)
def test_locks(at_s: int, namespace: str, name: str) -> None:
    for value in (LockValue(float(at_s), namespace, name), LockValue(float(at_s))):
        assert parse_lock(value.text()) == value


@st.composite
def text_cards(draw: st.DrawFn) -> Card:
    return Card(
        draw(plain_text),
        "DCU",
        index=draw(int32),
        slots=draw(int32),
        memory_mib=draw(int32),
        cores=draw(int32),
        model=draw(st.just("") | plain_text),
        numa=draw(st.integers(1 - 2**31, 2**31 - 1)),
        mode=draw(st.just("") | plain_text),
        healthy=draw(st.booleans()),
    )


@given(st.lists(text_cards(), unique_by=lambda card: card.uuid, min_size=1, max_size=4))
def test_the_older_registration(listed: list[Card]) -> None:
    assert read_text(encode_text(listed), "DCU") == CardList(ordered(listed))


@given(st.lists(st.sampled_from("abcd"), unique=True, min_size=1), st.data())
def test_registrations_with_zero_values_left_out(letters: list[str], data: st.DataObject) -> None:
    listed = [data.draw(cards(f"GPU-{letter}", data.draw(st.integers(0, 3)))) for letter in letters]
    assert read_json(registration(*listed), "NVIDIA") == CardList(ordered(listed))


# Quantities

SUFFIXES = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12),
    st.sampled_from(sorted(SUFFIXES)),
)
def test_decimal_quantities_are_exact(number: Decimal, suffix: str) -> None:
    expected = number.scaleb(SUFFIXES[suffix])
    found = parse(f"{number:f}{suffix}")
    assert Decimal(found.numerator) / Decimal(found.denominator) == expected


@given(st.integers(1 - 2**63, 2**63 - 1), st.sampled_from(["", "k", "M", "Ki", "Mi", "e2"]))
def test_whole_numbers_with_suffixes(number: int, suffix: str) -> None:
    factor = {"": 1, "k": 1000, "M": 10**6, "Ki": 1024, "Mi": 1024**2, "e2": 100}[suffix]
    if abs(number * factor) < 2**63:
        assert whole(f"{number}{suffix}") == number * factor
    else:
        with pytest.raises(QuantityError, match="out of range"):
            whole(f"{number}{suffix}")


@given(texts | st.integers() | st.floats() | json_values)
@example(10**400)
@example(math.nan)
def test_any_value_is_a_quantity_or_refused(value: Any) -> None:
    only(QuantityError, parse, value)
    only(QuantityError, whole, value)


# Garbage


def only(error: type[DeviceError], reader: Callable[..., object], *arguments: Any) -> None:
    """Reading works or raises this very error."""
    try:
        reader(*arguments)
    except error:
        return


REGISTRATION_FIELDS = (
    "id",
    "index",
    "count",
    "devmem",
    "devcore",
    "type",
    "numa",
    "mode",
    "health",
    "migProfiles",
    "custominfo",
    "ID",
    "placements",
    "uuid",
    "score",
)
MIG_FIELDS = ("containerIndex", "deviceIndex", "gpuUUID", "profile", "placement", "migUUID", "gpuInstanceID", "start")


@given(texts)
def test_garbage_texts(text: str) -> None:
    only(AllocationError, decode, text, "NVIDIA")
    only(AllocationError, decode_mig, text)
    only(RegistrationError, read_json, text, "NVIDIA")
    only(RegistrationError, read_text, text, "NVIDIA")
    only(RegistrationError, read_pair_scores, text)
    only(LockError, parse_lock, text)
    only(WeightsError, weights_of, {"hami.io/device-scoring-weights": text})


@given(st.lists(near_texts, max_size=4).map(",".join))
def test_garbage_of_the_right_number_of_parts(text: str) -> None:
    only(AllocationError, decode, f"GPU-a,NVIDIA,{text}:;", "NVIDIA")
    only(RegistrationError, read_text, f"a,1,2,3,{text}:", "NVIDIA")
    only(LockError, parse_lock, f"2026-08-01T06:00:00Z,{text}")
    only(WeightsError, weights_of, {"hami.io/device-scoring-weights": f"slot={text},core=1,memory=1"})


@given(st.lists(near_objects(REGISTRATION_FIELDS), min_size=1, max_size=3))
def test_json_of_almost_cards_costs_those_cards_alone(documents: list[dict[str, Any]]) -> None:
    sound = {"id": "the sound one", "count": 1}
    listed = read_json(json.dumps([*documents, sound]), "NVIDIA")
    assert "the sound one" in {card.uuid for card in listed.cards}
    assert len(listed.cards) + len(listed.problems) == len(documents) + 1
    only(RegistrationError, read_pair_scores, json.dumps(documents))


@given(st.lists(near_objects(MIG_FIELDS), max_size=3) | json_values)
def test_json_of_almost_reservations(document: Any) -> None:
    only(AllocationError, decode_mig, json.dumps(document))


CONFIG_FIELDS = (
    "resourceCountName",
    "resourceMemoryName",
    "defaultMemory",
    "memoryFactor",
    "gpuCorePolicy",
    "migProfileAllowlist",
    "models",
    "odd",
)


@given(near_texts | near_objects(CONFIG_FIELDS).map(lambda section: yaml.safe_dump({"nvidia": section})))
def test_garbage_configurations(text: str) -> None:
    only(ConfigError, read, text)
