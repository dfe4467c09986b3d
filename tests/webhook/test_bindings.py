"""`/validate` on Bindings: who binds what, and pods that change while we look."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from devices.kube.errors import NotFound, Unreachable
from devices.kube.protocols import JsonObject
from tests.webhook.builders import Cluster, container, ours, pod
from webhook.admission import Verdict
from webhook.bindings import Bindings
from webhook.config import AdmissionSettings
from webhook.requester import Requester

MALLORY = Requester("mallory")
KUBE_SCHEDULER = Requester("system:kube-scheduler")
OURS = Requester("system:serviceaccount:slotwise-system:slotwise-scheduler")
LISTED = "list the account with --scheduler-accounts, in ConfigMap slotwise-policy and in the webhook's matchConditions"


class Stored:
    """An API server's pods; counts how often it is asked."""

    def __init__(self, *pods: JsonObject, fault: Exception | None = None) -> None:
        self._pods = {str(metadata(pod)["name"]): pod for pod in pods}
        self._fault = fault
        self.reads: list[tuple[str, str]] = []

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        self.reads.append((namespace, name))
        if self._fault is not None:
            raise self._fault
        if name not in self._pods:
            raise NotFound(404, "NotFound", f'pods "{name}" not found')
        return self._pods[name]


class Silent(Stored):
    """Never answers."""

    async def get_pod(self, namespace: str, name: str) -> JsonObject:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def metadata(document: JsonObject) -> Mapping[str, object]:
    found = document["metadata"]
    assert isinstance(found, dict)
    return found


def binding(**fields: object) -> JsonObject:
    return {"metadata": {"name": "a", "uid": "uid-a", **fields}, "target": {"kind": "Node", "name": "n1"}}


async def judged(
    given: JsonObject,
    by: Requester,
    stored: Stored | None,
    resource: str = "pods/binding",
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Verdict:
    bindings = Bindings(AdmissionSettings(**settings), Cluster().config, stored)  # type: ignore[arg-type] # fields of several types in one mapping
    return await bindings.judge(given, "default", "a", resource, by)


PLAIN = pod(container())
DEVICE = ours(container(gpu=1))


@dataclass
class Row:
    stored: JsonObject | None
    message: str = ""
    code: int = 200
    reason: str | None = None
    by: Requester = MALLORY
    given: JsonObject = field(default_factory=binding)
    resource: str = "pods/binding"
    reads: int = 1
    settings: dict[str, object] = field(default_factory=dict)


ROWS = {
    "a device pod, by kube-scheduler": Row(DEVICE, by=KUBE_SCHEDULER, reads=0),
    "a device pod, by ours with the allocation": Row(
        DEVICE, by=OURS, given=binding(annotations={"hami.io/vgpu-node": "n1"}), reads=0
    ),
    "kube-scheduler needs no UID, whatever the path": Row(
        DEVICE, by=KUBE_SCHEDULER, given={"metadata": {"name": "a"}}, resource="bindings", reads=0
    ),
    "a device pod, by somebody": Row(
        DEVICE,
        f"pod default/a asks for NVIDIA cards, so mallory may not bind it: leave it to hami-scheduler, or {LISTED}",
        403,
        "binding",
    ),
    "a device pod whose scheduler was never ours": Row(
        pod(container(gpu=1)),
        f"pod default/a asks for NVIDIA cards, so mallory may not bind it: leave it to default-scheduler, or {LISTED}",
        403,
        "binding",
    ),
    "a device pod of a scheduler that may have them": Row(
        pod(container(gpu=1), schedulerName="volcano"), settings={"foreign_schedulers": frozenset({"volcano"})}
    ),
    "a plain pod, by somebody": Row(PLAIN),
    "a plain pod without the UID": Row(
        PLAIN,
        f"a Binding of mallory must carry metadata.uid of pod default/a: set it, or {LISTED}",
        403,
        "binding",
        given={"metadata": {"name": "a"}},
        reads=0,
    ),
    "a pod that is another by now": Row(
        PLAIN,
        "the Binding is for pod uid-b, but default/a is uid-a",
        409,
        "binding",
        given=binding(uid="uid-b"),
    ),
    "the old path, where a UID does not arrive": Row(
        PLAIN,
        f"mallory may bind through pods/a/binding only, where metadata.uid is kept: send it there, or {LISTED}",
        403,
        "binding",
        resource="bindings",
        reads=0,
    ),
    "a pod that is not there yet": Row(None, "pod default/a is not there", 404, "pod-unavailable"),
    "an account more that counts as a scheduler": Row(
        DEVICE, reads=0, settings={"scheduler_accounts": frozenset({"mallory"})}
    ),
    "a listed group": Row(
        DEVICE,
        by=Requester("system:serviceaccount:team:x", frozenset({"system:serviceaccounts:team"})),
        reads=0,
        settings={"scheduler_accounts": frozenset({"system:serviceaccounts:team"})},
    ),
    "an allocation, by somebody": Row(
        PLAIN,
        "annotation hami.io/vgpu-node is written by the system alone, not by mallory: leave it as it is,"
        " or have the account listed with --key-writers and in ConfigMap slotwise-policy",
        403,
        "protected-key",
        given=binding(annotations={"hami.io/vgpu-node": "n1"}),
        reads=0,
    ),
    "an allocation, by a scheduler that writes none": Row(
        DEVICE,
        "annotation hami.io/bind-phase is written by the system alone, not by system:kube-scheduler: leave it as it is,"
        " or have the account listed with --key-writers and in ConfigMap slotwise-policy",
        403,
        "protected-key",
        KUBE_SCHEDULER,
        binding(annotations={"hami.io/bind-phase": "success"}),
        reads=0,
    ),
    "the label": Row(
        PLAIN,
        "label hami.io/vgpu-node is written by the system alone, not by mallory: leave it as it is,"
        " or have the account listed with --key-writers and in ConfigMap slotwise-policy",
        403,
        "protected-key",
        given=binding(labels={"hami.io/vgpu-node": "n1"}),
        reads=0,
    ),
    "annotations of the user's own": Row(PLAIN, given=binding(annotations={"hami.io/node-scheduler-policy": "spread"})),
    "the name of another pod": Row(
        PLAIN,
        "object is not a Binding: metadata.name 'b' must be that of the request, 'a'",
        400,
        "not-a-pod",
        given=binding(name="b"),
        reads=0,
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
async def test_binding(row: Row) -> None:
    stored = Stored(*([row.stored] if row.stored is not None else []))
    verdict = await judged(row.given, row.by, stored, row.resource, row.settings)
    assert (verdict.message, verdict.code, verdict.reason) == (row.message, row.code, row.reason)
    assert verdict.allowed is (row.reason is None)
    assert stored.reads == [("default", "a")] * row.reads


async def test_an_api_server_that_does_not_answer_refuses() -> None:
    verdict = await judged(binding(), MALLORY, Stored(fault=Unreachable("connection refused")))
    assert (verdict.code, verdict.reason) == (503, "pod-unavailable")
    assert verdict.message == "pod default/a cannot be read: connection refused: try again"


async def test_silence_ends_before_the_api_server_gives_us_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webhook.bindings._READ_S", 0.01)
    verdict = await judged(binding(), MALLORY, Silent())
    assert verdict.message == "pod default/a cannot be read: no answer in time: try again"


async def test_without_an_api_server_the_bindings_of_others_are_refused() -> None:
    verdict = await judged(binding(), MALLORY, None)
    assert (verdict.code, verdict.message) == (503, "what a Binding is about cannot be read: no API server")
    assert (await judged(binding(), KUBE_SCHEDULER, None)).allowed
