"""The scenario format, read strictly: an unknown key, flag, step or expectation is an error, never ignored."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.replay.errors import ReplayError

__all__ = ["FLAGS", "Json", "Scenario", "Step", "find", "read_scenario"]

Json = dict[str, object]

FLAGS: Mapping[str, object] = {
    "gpu-scheduler-policy": "spread",
    "node-scheduler-policy": "binpack",
    "scheduler-name": "hami-scheduler",
    "force-overwrite-default-scheduler": True,
    "node-label-selector": "",
    "node-lock-timeout": "5m",
    "node-lock-retry-timeout": "28s",
    "enable-ascend": False,
    "enable-iluvatar": False,
}
"""The flags a scenario may set, with their defaults there."""

_TOP = {
    "name": str,
    "about": str,
    "area": str,
    "flags": dict,
    "device_config": dict,
    "nodes": list,
    "quotas": list,
    "steps": list,
    "corrected": list,
}
_NEEDED = ("name", "about", "area", "nodes", "steps")
_EXPECT: Mapping[str, frozenset[str] | None] = {
    "admit": frozenset({"allowed", "pod", "message", "code"}),
    "filter": frozenset({"node", "failed", "error", "allocation", "annotations", "events"}),
    "bind": frozenset({"error"}),
    "usage": None,
    "quota": None,
}
"""Keys of an expectation; None: any name, each with the sub-keys below."""
_ROW = {"usage": frozenset({"used", "memory", "cores"}), "quota": frozenset({"used", "limit"})}
_VALUES: Mapping[str, tuple[str, ...]] = {
    "admit": ("pod", "namespace"),
    "filter": ("pod", "nodes"),
    "bind": ("namespace", "name", "uid", "node"),
    "delete_pod": ("namespace", "name"),
    "delete_quota": ("namespace", "name"),
    "usage": ("node",),
    "quota": ("namespace",),
}
_OBJECTS = ("put_pod", "put_node", "put_quota")
_KINDS = (*_VALUES, *_OBJECTS, "delete_node")


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its kind, its value, and what must come (None for steps that answer nothing)."""

    kind: str
    value: object
    expect: Json | None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One story: a cluster, steps, expectations. `where` names file and line, `document` is the text as read."""

    where: str
    name: str
    flags: Json
    device_config: Json
    nodes: tuple[Json, ...]
    quotas: tuple[Json, ...]
    steps: tuple[Step, ...]
    document: Json


def _object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise ReplayError(f"{where}: expected an object, got {type(value).__name__}")
    return value


def _keys(value: Json, needed: tuple[str, ...], known: frozenset[str] | None, where: str) -> None:
    missing = [key for key in needed if key not in value]
    if missing:
        raise ReplayError(f"{where}: {', '.join(missing)} missing")
    unknown = sorted(set(value) - known) if known is not None else []
    if unknown:
        accepted = ", ".join(sorted(known or ()))
        raise ReplayError(f"{where}: unknown key {', '.join(unknown)}; accepted are {accepted}")


def _expectation(kind: str, value: object, where: str) -> Json:
    expect = _object(value, where)
    known = _EXPECT[kind]
    _keys(expect, ("allowed",) if kind == "admit" else ("error",) if kind == "bind" else (), known, where)
    if known is None:
        for name, row in expect.items():
            _keys(_object(row, f"{where}.{name}"), (), _ROW[kind], f"{where}.{name}")
    if kind == "filter":
        for name in ("failed", "allocation", "annotations"):
            _object(expect.get(name, {}), f"{where}.{name}")
        if not isinstance(expect.get("events", []), list):
            raise ReplayError(f"{where}.events: expected a list")
    return expect


def _named(value: Json, where: str) -> None:
    if "ref" not in value and not isinstance(_object(value.get("metadata", {}), f"{where}.metadata").get("name"), str):
        raise ReplayError(f"{where}: metadata.name missing")


def _step(document: object, where: str) -> Step:
    step = _object(document, where)
    kinds = [key for key in step if key != "expect"]
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise ReplayError(
            f"{where}: unknown step {', '.join(kinds) or 'without kind'}; accepted is one of {', '.join(_KINDS)}"
        )
    kind = kinds[0]
    value, where = step[kind], f"{where} {kind}"
    if ("expect" in step) != (kind in _EXPECT):
        raise ReplayError(f"{where}: expect is {'missing' if kind in _EXPECT else 'not for this step'}")
    if kind == "delete_node":
        if not isinstance(value, str):
            raise ReplayError(f"{where}: expected a node's name")
    elif kind in _OBJECTS:
        _named(_object(value, where), where)
    else:
        _keys(_object(value, where), _VALUES[kind], frozenset(_VALUES[kind]), where)
    if kind in ("admit", "filter"):
        content = _object(value, where)
        _named(_object(content["pod"], f"{where}.pod"), f"{where}.pod")
        nodes = content.get("nodes", [])
        if not isinstance(nodes, list) or not all(isinstance(node, str) for node in nodes):
            raise ReplayError(f"{where}.nodes: expected a list of names")
    return Step(kind, value, _expectation(kind, step["expect"], f"{where}.expect") if kind in _EXPECT else None)


def read_scenario(document: object, where: str) -> Scenario:
    """A scenario from its JSON. Raises `ReplayError`."""
    top = _object(document, where)
    _keys(top, _NEEDED, frozenset(_TOP), where)
    for key, kind in _TOP.items():
        if key in top and not isinstance(top[key], kind):
            raise ReplayError(f"{where}.{key}: expected {kind.__name__}, got {type(top[key]).__name__}")
    flags = _object(top.get("flags", {}), f"{where}.flags")
    _keys(flags, (), frozenset(FLAGS), f"{where}.flags")
    lists: dict[str, list[Json]] = {}
    for key in ("nodes", "quotas"):
        items = top.get(key, [])
        assert isinstance(items, list)
        lists[key] = [_object(item, f"{where}.{key}[{n}]") for n, item in enumerate(items)]
        for n, item in enumerate(lists[key]):
            _named(item, f"{where}.{key}[{n}]")
    steps = top["steps"]
    assert isinstance(steps, list)
    if not steps:
        raise ReplayError(f"{where}.steps: no step")
    return Scenario(
        where,
        str(top["name"]),
        flags,
        _object(top.get("device_config", {}), f"{where}.device_config"),
        tuple(lists["nodes"]),
        tuple(lists["quotas"]),
        tuple(_step(step, f"{where}.steps[{n}]") for n, step in enumerate(steps)),
        top,
    )


def find(paths: list[Path]) -> Iterator[tuple[Path, int | None, Scenario]]:
    """Every scenario of the files and folders, in order of their names; the number is the line in a JSONL file.

    Raises `ReplayError` for a path without scenarios, an unreadable file and every fault in one.
    """
    for path in paths:
        files = [path] if path.is_file() else sorted(f for f in path.rglob("*") if f.suffix in (".json", ".jsonl"))
        if not files:
            raise ReplayError(f"{path}: no scenario there (files end in .json or .jsonl)")
        for file in files:
            yield from _in_file(file)


def _in_file(file: Path) -> Iterator[tuple[Path, int | None, Scenario]]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReplayError(f"{file}: cannot be read: {error}") from error
    lines = file.suffix == ".jsonl"
    found = False
    for number, raw in enumerate(text.splitlines() if lines else [text], start=1):
        if lines and not raw.strip():
            continue
        where = f"{file}:{number}" if lines else str(file)
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise ReplayError(f"{where}: not JSON: {error}") from error
        found = True
        yield file, number if lines else None, read_scenario(document, where)
    if not found:
        raise ReplayError(f"{file}: no scenario in it")
