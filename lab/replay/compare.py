"""Comparing what came with what was expected, as the recorded scenarios define it."""

import json
from collections.abc import Callable, Iterator, Mapping

from devices.errors import QuantityError
from devices.quantity import parse
from lab.replay.scenario import Json

__all__ = ["differences"]

_DEVICE_QUOTA_DENIAL = "exceeding resource quota"


def _same_quantity(a: object, b: object) -> bool:
    if not isinstance(a, str | int | float) or not isinstance(b, str | int | float):
        return False
    try:
        return parse(a) == parse(b)
    except QuantityError:
        return False


def _same(expected: object, came: object, quantities: bool = False) -> bool:
    """Equal but for empty objects, empty lists and null, which equal absence; quantities by value below `resources`."""
    if isinstance(expected, dict) or isinstance(came, dict):
        left = expected if isinstance(expected, dict) else {}
        right = came if isinstance(came, dict) else {}
        if (not _is_empty(expected) and not isinstance(expected, dict)) or (
            not _is_empty(came) and not isinstance(came, dict)
        ):
            return False
        return all(_same(left.get(key), right.get(key), quantities or key == "resources") for key in {*left, *right})
    if isinstance(expected, list) and isinstance(came, list):
        return len(expected) == len(came) and all(_same(a, b, quantities) for a, b in zip(expected, came, strict=True))
    if _is_empty(expected) and _is_empty(came):
        return True
    return (expected == came and type(expected) is type(came)) or (quantities and _same_quantity(expected, came))


def _is_empty(value: object) -> bool:
    return value is None or value in ({}, [])


def _shown(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _row(what: str, expected: object, came: object, equal: Callable[[object, object], bool]) -> Iterator[str]:
    if not equal(expected, came):
        yield f"{what}: expected {_shown(expected)}, came {_shown(came)}"


def _exact(expected: object, came: object) -> bool:
    return expected == came and (type(expected) is type(came) or not isinstance(expected, bool))


def _message(expected: object, came: object) -> bool:
    if expected == _DEVICE_QUOTA_DENIAL and isinstance(came, str):
        return came.startswith(_DEVICE_QUOTA_DENIAL)
    return expected == came


def _annotation(expected: object, came: object) -> bool:
    """The value itself, two JSON texts by content, null for absent or empty."""
    if expected is None:
        return not came
    if expected == came:
        return True
    try:
        left, right = json.loads(str(expected)), json.loads(str(came))
    except ValueError:
        return False
    return isinstance(left, dict | list) and left == right


def _admit(expect: Json, came: Json) -> Iterator[str]:
    yield from _row("allowed", expect["allowed"], came.get("allowed"), _exact)
    if "pod" in expect:
        yield from _row("pod", expect["pod"], came.get("pod"), _same)
    if "message" in expect:
        yield from _row("message", expect["message"], came.get("message"), _message)
    if "code" in expect:
        yield from _row("code", expect["code"], came.get("code"), _exact)


def _filter(expect: Json, came: Json) -> Iterator[str]:
    for key in ("node", "error", "failed", "allocation"):
        if key in expect:
            yield from _row(key, expect[key], came.get(key), _exact)
    stored = came.get("annotations")
    annotations = expect.get("annotations", {})
    if isinstance(annotations, dict):
        for key, value in annotations.items():
            yield from _row(
                f"annotation {key}", value, stored.get(key) if isinstance(stored, dict) else None, _annotation
            )
    emitted = came.get("events")
    wanted = expect.get("events", [])
    for event in wanted if isinstance(wanted, list) else ():
        if not isinstance(emitted, list) or event not in emitted:
            yield f"event: expected {_shown(event)}, came {_shown(emitted)}"


def _rows(expect: Json, came: Json) -> Iterator[str]:
    for name, row in expect.items():
        got = came.get(name)
        if isinstance(row, dict):
            for key, value in row.items():
                yield from _row(f"{name} {key}", value, got.get(key) if isinstance(got, dict) else None, _exact)


def _bind(expect: Json, came: Json) -> Iterator[str]:
    yield from _row("error", expect["error"], came.get("error"), _exact)


_COMPARE: Mapping[str, Callable[[Json, Json], Iterator[str]]] = {
    "admit": _admit,
    "filter": _filter,
    "bind": _bind,
    "usage": _rows,
    "quota": _rows,
}


def differences(kind: str, expect: Json, came: Json) -> list[str]:
    """Every difference, what was expected and what came; empty when the step is as recorded."""
    return list(_COMPARE[kind](expect, came))
