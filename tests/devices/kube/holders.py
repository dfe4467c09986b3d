"""Consumers for reflectors under test."""

from collections.abc import Mapping, Sequence

import msgspec

from devices.kube.seen import SeenObject
from tests.devices.kube.fake_api import Happening


class Meta(msgspec.Struct, rename="camel"):
    name: str
    uid: str
    resource_version: str


class Spec(msgspec.Struct):
    typed: int | None = None


class Thing(msgspec.Struct):
    """A pod, of which the tests read the metadata and one typed field that can be malformed."""

    metadata: Meta
    spec: Spec = msgspec.field(default_factory=Spec)


decode = msgspec.json.Decoder(Thing).decode


class Holder:
    """Holds things by UID and writes down every call. `fail_on` names whose put fails, once."""

    def __init__(self) -> None:
        self.things: dict[str, Thing] = {}
        self.calls: list[str] = []
        self.fail_on = ""
        self.happening = Happening()

    def versions(self) -> dict[str, str]:
        return {uid: thing.metadata.resource_version for uid, thing in self.things.items()}

    def known(self) -> Mapping[str, object]:
        return self.things

    def replace(self, items: Sequence[Thing]) -> None:
        if self.fail_on == "replace":
            self.fail_on = ""
            raise RuntimeError("replace failed")
        self.things = {thing.metadata.uid: thing for thing in items}
        self._said("replace " + ",".join(sorted(thing.metadata.name for thing in items)))

    def put(self, item: Thing) -> None:
        if item.metadata.name == self.fail_on:
            self.fail_on = ""
            raise RuntimeError("put failed")
        self.things[item.metadata.uid] = item
        self._said(f"put {item.metadata.name}@{item.metadata.resource_version}")

    def delete(self, gone: SeenObject) -> None:
        self.things.pop(gone.uid, None)
        self._said(f"delete {gone.name or gone.uid}")

    def _said(self, call: str) -> None:
        self.calls.append(call)
        self.happening.tell()
