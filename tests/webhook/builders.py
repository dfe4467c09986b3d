"""Pods, cards and admissions that state only what a test is about."""

import json
from collections.abc import Mapping

import jsonpatch
import yaml

from devices.config import read
from devices.ledger import Ledger
from devices.objects import node_of, pod_of, quota_of
from webhook.admission import Admission
from webhook.config import AdmissionSettings
from webhook.wire import JsonObject, Operation

OURS = "hami-scheduler"


def container(name: str = "main", /, **fields: object) -> JsonObject:
    """Names in `fields` that are resources' short names become limits: `container(gpu=1, gpumem=3000)`."""
    short = ("gpu", "gpumem", "gpucores", "gpumem_percentage", "priority")
    limits = {f"nvidia.com/{key.replace('_', '-')}": fields.pop(key) for key in short if key in fields}
    made: JsonObject = {"name": name, **fields}
    if limits:
        made["resources"] = {"limits": limits}
    return made


def pod(
    *containers: JsonObject,
    init: tuple[JsonObject, ...] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: object,
) -> JsonObject:
    metadata: JsonObject = {"name": "a", "namespace": "default", "uid": "uid-a"}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    made: JsonObject = {"metadata": metadata, "spec": {"containers": list(containers), **spec}}
    if init:
        made["spec"] = {"initContainers": list(init), **spec, "containers": list(containers)}
    return made


def ours(*containers: JsonObject, **fields: object) -> JsonObject:
    """A pod as it is once `/webhook` has made it ours."""
    return pod(*containers, **{"schedulerName": OURS, **fields})  # type: ignore[arg-type] # fields of several types in one mapping


def applied(pod: JsonObject, patch: list[Operation]) -> JsonObject:
    """The pod after the patch, both through JSON as on the wire."""
    after: JsonObject = jsonpatch.apply_patch(json.loads(json.dumps(pod)), json.dumps(patch))
    return after


def card(uuid: str, **fields: object) -> JsonObject:
    return {
        "id": uuid,
        "count": 10,
        "devmem": 15360,
        "devcore": 100,
        "type": "NVIDIA-Tesla T4",
        "mode": "hami-core",
        "health": True,
        **fields,
    }


class Cluster:
    """A ledger and the admission over it."""

    def __init__(self, nvidia: Mapping[str, object] | None = None, /, **settings: object) -> None:
        self.config = read(yaml.safe_dump({"nvidia": dict(nvidia or {})}))
        self.ledger = Ledger(self.config)
        self.settings = AdmissionSettings(**settings)  # type: ignore[arg-type] # fields of several types in one mapping
        self.admission = Admission(self.settings, self.config, self.ledger)

    def node(self, name: str, *cards: JsonObject) -> "Cluster":
        annotations = {"hami.io/node-nvidia-register": json.dumps(cards)}
        self.ledger.put_node(
            node_of(
                {
                    "metadata": {"name": name, "annotations": annotations},
                    "status": {"allocatable": {"nvidia.com/gpu": str(10 * len(cards))}},
                }
            )
        )
        return self

    def quota(self, name: str = "q", namespace: str = "default", **hard: object) -> "Cluster":
        limits = {f"limits.nvidia.com/{key}": str(value) for key, value in hard.items()}
        self.ledger.put_quota(quota_of({"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": limits}}))
        return self

    def placed(self, memory_mib: int, uid: str = "uid-t", namespace: str = "default") -> "Cluster":
        """A pod that holds memory of card `GPU-a` on node `n1`."""
        self.ledger.put_pod(
            pod_of(
                {
                    "metadata": {
                        "name": "t",
                        "namespace": namespace,
                        "uid": uid,
                        "annotations": {
                            "hami.io/vgpu-node": "n1",
                            "hami.io/vgpu-devices-allocated": f"GPU-a,NVIDIA,{memory_mib},0:;",
                        },
                    },
                    "spec": {"nodeName": "n1", "containers": [container(gpu=1, gpumem=memory_mib)]},
                }
            ),
            0.0,
        )
        return self
