"""The cluster of a scenario: objects as given, every change delivered to the ledger at once, and the API the binder needs."""

import asyncio
import copy
from collections.abc import Callable

from devices.kube.errors import Conflict, NotFound
from devices.kube.protocols import JsonObject
from devices.ledger import Ledger
from devices.objects import node_of, pod_of, quota_of
from lab.replay.errors import ReplayError
from lab.replay.scenario import Json

__all__ = ["Cluster", "StillClock", "merge_patch"]

_NOW_S = 1_780_000_000.0


class StillClock:
    """A clock that stands still (in 2026) and in which every wait is over at once, without the event."""

    def now(self) -> float:
        """Always the same moment."""
        return _NOW_S

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Whether the event is set already."""
        return event.is_set()


def merge_patch(target: object, patch: object) -> object:
    """RFC 7386: `null` removes, objects merge, everything else replaces; `target` stays as it is."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def _metadata(document: Json) -> Json:
    metadata = document.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise ReplayError("metadata must be an object")
    return metadata


class Cluster:
    """Pods by (namespace, name), nodes and quotas; each change goes to the ledger before the next step."""

    def __init__(self, ledger: Ledger, clock: StillClock) -> None:
        self.ledger = ledger
        self._clock = clock
        self.pods: dict[tuple[str, str], Json] = {}
        self.nodes: dict[str, Json] = {}

    def resolve(self, document: Json, known: Callable[[str], Json | None]) -> Json:
        """The object itself, or the known one it refers to with the further keys laid over it."""
        if "ref" not in document:
            return copy.deepcopy(document)
        ref = str(document["ref"])
        base = known(ref)
        if base is None:
            raise ReplayError(f"ref {ref!r}: no such object in the cluster at this step")
        merged = merge_patch(base, {key: value for key, value in document.items() if key != "ref"})
        assert isinstance(merged, dict)
        return merged

    def pod_by_ref(self, ref: str) -> Json | None:
        """The pod `namespace/name`."""
        namespace, _, name = ref.partition("/")
        return self.pods.get((namespace, name))

    def put_pod(self, document: Json) -> Json:
        """Create or replace; a replaced pod of another UID is gone first."""
        metadata = _metadata(document)
        key = (str(metadata.setdefault("namespace", "default")), str(metadata["name"]))
        before = self.pods.get(key)
        if before is not None and _metadata(before).get("uid") != metadata.get("uid"):
            self.ledger.delete_pod(str(_metadata(before).get("uid")))
        self.pods[key] = document
        self.ledger.put_pod(pod_of(document), self._clock.now())
        return document

    def delete_pod(self, namespace: str, name: str) -> None:
        """Remove; a pod that is not there is a fault of the scenario."""
        document = self.pods.pop((namespace, name), None)
        if document is None:
            raise ReplayError(f"delete_pod: {namespace}/{name} is not in the cluster")
        self.ledger.delete_pod(str(_metadata(document).get("uid")))

    def put_node(self, document: Json) -> None:
        """Create or replace."""
        self.nodes[str(_metadata(document)["name"])] = document
        self.ledger.put_node(node_of(document))

    def delete_node(self, name: str) -> None:
        """Remove."""
        if self.nodes.pop(name, None) is None:
            raise ReplayError(f"delete_node: {name} is not in the cluster")
        self.ledger.delete_node(name)

    def put_quota(self, document: Json) -> None:
        """Create or replace."""
        self.ledger.put_quota(quota_of(document))

    # What the binder asks of the API server

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        """The pod as stored."""
        found = self.pods.get((namespace, name))
        if found is None:
            raise NotFound(404, "NotFound", f'pods "{name}" not found')
        return found

    async def get_node(self, name: str) -> JsonObject:
        """The node as stored."""
        found = self.nodes.get(name)
        if found is None:
            raise NotFound(404, "NotFound", f'nodes "{name}" not found')
        return found

    async def patch_node(self, name: str, body: JsonObject) -> JsonObject:
        """Merge-patch a node; nothing else writes meanwhile, so preconditions always hold."""
        merged = merge_patch(await self.get_node(name), body)
        assert isinstance(merged, dict)
        self.put_node(merged)
        return merged

    async def bind(
        self,
        namespace: str,
        name: str,
        body: JsonObject,
        timeout_s: float,
        *,
        before_send: Callable[[], None] | None = None,
    ) -> None:
        """Set the node and merge the Binding's annotations and labels into the pod."""
        if before_send is not None:
            before_send()
        pod = await self.get_pod(namespace, name)
        metadata, target = body["metadata"], body["target"]
        assert isinstance(metadata, dict)
        assert isinstance(target, dict)
        spec = pod.get("spec")
        bound = isinstance(spec, dict) and spec.get("nodeName")
        if bound or _metadata(pod).get("uid") != metadata.get("uid"):
            raise Conflict(409, "Conflict", f'Operation cannot be fulfilled on pods/binding "{name}"')
        extra = {key: metadata[key] for key in ("annotations", "labels") if key in metadata}
        merged = merge_patch(pod, {"metadata": extra, "spec": {"nodeName": target["name"]}})
        assert isinstance(merged, dict)
        self.put_pod(merged)
