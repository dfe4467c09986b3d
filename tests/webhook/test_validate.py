"""`/validate`: every refusal on the final pod, and what only it refuses."""

from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from tests.webhook.builders import Cluster, card, container, ours, pod
from tests.webhook.test_mutate import REFUSALS, Refused
from webhook.wire import JsonObject

GOOD = {"gpu": 1, "gpumem": 500}
IGNORED = {"hami.io/webhook": "ignore"}


@dataclass
class Row:
    given: JsonObject
    message: str = ""
    reason: str | None = None
    code: int = 403
    warnings: tuple[str, ...] = ()
    settings: dict[str, object] = field(default_factory=dict)


ROWS = {
    "ours": Row(ours(container(**GOOD))),
    "a plain pod": Row(pod(container(), schedulerName="default-scheduler")),
    "a plain pod of another scheduler": Row(pod(container(), schedulerName="volcano")),
    "a plain pod with a node": Row(pod(container(), nodeName="n1")),
    "never mutated": Row(
        pod(container(**GOOD), schedulerName="default-scheduler"),
        "pod asks for nvidia.com/gpu but its scheduler is default-scheduler, not hami-scheduler",
        "scheduler",
    ),
    "without any scheduler name": Row(
        pod(container(**GOOD)),
        "pod asks for nvidia.com/gpu but its scheduler is default-scheduler, not hami-scheduler",
        "scheduler",
    ),
    "in requests alone, never taken over": Row(
        pod({"name": "x", "resources": {"requests": {"nvidia.com/gpumem": 5}}}),
        "pod asks for nvidia.com/gpumem but its scheduler is default-scheduler, not hami-scheduler",
        "scheduler",
    ),
    "another scheduler": Row(
        pod(container(**GOOD), schedulerName="volcano"),
        "pod asks for nvidia.com/gpu but its scheduler is volcano, not hami-scheduler",
        "scheduler",
    ),
    "our name with a blank after it, which no scheduler of ours goes by": Row(
        pod(container(**GOOD), schedulerName="hami-scheduler "),
        "pod asks for nvidia.com/gpu but its scheduler is hami-scheduler , not hami-scheduler",
        "scheduler",
    ),
    "a listed scheduler": Row(
        pod(container(**GOOD), schedulerName="volcano"), settings={"foreign_schedulers": frozenset({"volcano"})}
    ),
    "a scheduler that is not the listed one": Row(
        pod(container(**GOOD), schedulerName="yunikorn"),
        "pod asks for nvidia.com/gpu but its scheduler is yunikorn, not hami-scheduler",
        "scheduler",
        settings={"foreign_schedulers": frozenset({"volcano"})},
    ),
    "all schedulers listed": Row(
        pod(container(**GOOD), schedulerName="volcano"), settings={"foreign_schedulers": frozenset({"*"})}
    ),
    "no scheduler name configured": Row(pod(container(**GOOD), nodeName="n1"), settings={"scheduler_name": ""}),
    "ignored but asks": Row(
        pod(container(**GOOD), labels=IGNORED),
        "pod asks for nvidia.com/gpu but its label hami.io/webhook: ignore keeps it from being placed:"
        " remove the label or the resource",
        "ignore-label",
    ),
    "ignored and asks, warned": Row(
        pod(container(**GOOD), labels=IGNORED),
        warnings=("pod asks for nvidia.com/gpu but its label hami.io/webhook: ignore keeps it from being placed",),
        settings={"ignored_device_pods": "warn"},
    ),
    "ignored and asks, allowed": Row(pod(container(**GOOD), labels=IGNORED), settings={"ignored_device_pods": "allow"}),
    "ignored and plain": Row(pod(container(), labels=IGNORED)),
    "a forged allocation": Row(
        ours(container(**GOOD), annotations={"hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1,0:;"}),
        "annotation hami.io/vgpu-devices-allocated is written by the system alone: remove it",
        "protected-key",
    ),
    "a forged allocation in a plain pod of another scheduler": Row(
        pod(container(), annotations={"hami.io/vgpu-node": "n1"}, schedulerName="volcano"),
        "annotation hami.io/vgpu-node is written by the system alone: remove it",
        "protected-key",
    ),
    "a forged allocation in an ignored pod": Row(
        pod(container(), annotations={"hami.io/vgpu-mig-allocations": "[]"}, labels=IGNORED),
        "annotation hami.io/vgpu-mig-allocations is written by the system alone: remove it",
        "protected-key",
    ),
    "a forged label": Row(
        ours(container(**GOOD), labels={"hami.io/vgpu-node": "n1"}),
        "label hami.io/vgpu-node is written by the system alone: remove it",
        "protected-key",
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_final_pod(row: Row) -> None:
    before = deepcopy(row.given)
    verdict = Cluster(**row.settings).admission.validate(row.given, "default")
    assert (verdict.message, verdict.reason, verdict.warnings) == (row.message, row.reason, row.warnings)
    assert verdict.allowed is (row.reason is None)
    assert verdict.code == (200 if verdict.allowed else row.code)
    assert (verdict.pod, verdict.patch, row.given) == (before, [], before)


@pytest.mark.parametrize("row", REFUSALS.values(), ids=REFUSALS)
def test_refusals_of_the_mutating_side_are_repeated(row: Refused) -> None:
    given = deepcopy(row.given)
    spec = given.get("spec")
    if isinstance(spec, dict):
        spec["schedulerName"] = "hami-scheduler"
    verdict = Cluster().admission.validate(given, "default")
    assert (verdict.allowed, verdict.message, verdict.code, verdict.reason) == (
        False,
        row.message,
        row.code,
        row.reason,
    )


TWO = (card("GPU-a"), card("GPU-b", index=1, devmem=40960, type="NVIDIA-A100"))
WHOLE = {"gpu": 1, "gpucores": 100}


def over(key: str, asked: int, used: int, limit: int, quota: str = "default/q") -> str:
    more = asked + used - limit
    return f"{quota} limits.nvidia.com/{key}: asked {asked}, used {used}, limit {limit} ({more} too many)"


@dataclass
class Quota:
    cluster: Cluster
    given: JsonObject
    excess: str = ""
    warnings: tuple[str, ...] = ()
    namespace: str = "default"


def sidecar(**fields: object) -> JsonObject:
    return container("side", restartPolicy="Always", **fields)


QUOTAS = {
    "within": Quota(Cluster().quota(gpumem=500), ours(container(**GOOD))),
    "one too many": Quota(Cluster().quota(gpumem=499), ours(container(**GOOD)), over("gpumem", 500, 0, 499)),
    "limit 0 allows nothing": Quota(
        Cluster().quota(gpucores=0), ours(container(**WHOLE, gpumem=5)), over("gpucores", 100, 0, 0)
    ),
    "a pod without devices passes limit 0": Quota(Cluster().quota(gpu=0, gpumem=0), ours(container())),
    "used counts": Quota(
        Cluster().node("n1", *TWO).placed(600).quota(gpumem=1000),
        ours(container(**GOOD)),
        over("gpumem", 500, 600, 1000),
    ),
    "used of another namespace does not": Quota(
        Cluster().node("n1", *TWO).placed(600, namespace="other").quota(gpumem=1000), ours(container(**GOOD))
    ),
    "a pod judged again counts once": Quota(
        Cluster().node("n1", *TWO).placed(500, uid="uid-a").quota(gpumem=500), ours(container(**GOOD))
    ),
    "its namesake in another namespace takes nothing off": Quota(
        Cluster().node("n1", *TWO).placed(500, uid="uid-a", namespace="other").placed(1).quota(gpumem=500),
        ours(container(**GOOD)),
        over("gpumem", 500, 1, 500),
    ),
    "the namespace is the request's": Quota(
        Cluster().quota(namespace="team", gpumem=499),
        ours(container(**GOOD)),
        over("gpumem", 500, 0, 499, "team/q"),
        (),
        "team",
    ),
    "cards are limited too": Quota(
        Cluster().quota(gpu=1), ours(container("x", **GOOD), container("y", **GOOD)), over("gpu", 2, 0, 1)
    ),
    "the smallest of several limits holds": Quota(
        Cluster().quota("a", gpumem=900).quota("b", gpumem=400),
        ours(container(**GOOD)),
        over("gpumem", 500, 0, 400, "default/b"),
    ),
    "every key over its limit is named": Quota(
        Cluster().quota(gpumem=100, gpucores=10),
        ours(container(gpu=2, gpumem=100, gpucores=10)),
        over("gpumem", 200, 0, 100) + "; " + over("gpucores", 20, 0, 10),
    ),
    "memory in the factor's units": Quota(
        Cluster({"memoryFactor": 2}).quota(gpumem=500),
        ours(container(gpu=1, gpumem=501)),
        over("gpumem", 1002, 0, 1000),
    ),
    "init containers run one after another": Quota(
        Cluster().quota(gpumem=800),
        ours(container(**GOOD), initContainers=[container(f"i{n}", gpu=1, gpumem=800) for n in "01"]),
    ),
    "a sidecar runs beside them": Quota(
        Cluster().quota(gpumem=800),
        ours(container(**GOOD), initContainers=[sidecar(gpu=1, gpumem=100), container("i1", gpu=1, gpumem=800)]),
        over("gpumem", 900, 0, 800),
    ),
    "a whole card counts as the smallest, with a warning where the largest would not fit": Quota(
        Cluster().node("n1", *TWO).quota(gpumem=20000),
        ours(container(**WHOLE)),
        warnings=(
            "fits quota default/q on the smallest card only: limits.nvidia.com/gpumem 20000, up to 40960 asked, 0 used",
        ),
    ),
    "a whole card over the limit": Quota(
        Cluster().node("n1", *TWO).quota(gpumem=15000), ours(container(**WHOLE)), over("gpumem", 15360, 0, 15000)
    ),
    "no warning where the largest fits too": Quota(
        Cluster().node("n1", *TWO).quota(gpumem=40960), ours(container(**WHOLE))
    ),
    "only cards that the pod may have count": Quota(
        Cluster().node("n1", *TWO).quota(gpumem=20000),
        ours(container(**WHOLE), annotations={"nvidia.com/use-gputype": "A100"}),
        over("gpumem", 40960, 0, 20000),
    ),
    "shares count 0 while no card matches, with a warning": Quota(
        Cluster().node("n1", *TWO).quota(gpumem=10),
        ours(container(gpu=1, gpumem_percentage=50), annotations={"nvidia.com/use-gputype": "H100"}),
        warnings=("no registered card matches this pod: shares of NVIDIA memory count 0 in quota default for now",),
    ),
    "explicit memory counts without any card": Quota(
        Cluster().quota(gpumem=499), ours(container(**GOOD)), over("gpumem", 500, 0, 499)
    ),
    "no warning about shares that no quota limits": Quota(
        Cluster().quota(gpucores=100), ours(container(gpu=1, gpumem_percentage=50))
    ),
}


@pytest.mark.parametrize("row", QUOTAS.values(), ids=QUOTAS)
def test_quota(row: Quota) -> None:
    ledger = row.cluster.ledger
    before = (dict(ledger.used(row.namespace)), ledger.version)
    verdict = row.cluster.admission.validate(row.given, row.namespace)
    assert verdict.message == (f"exceeding resource quota: {row.excess}" if row.excess else "")
    assert (verdict.reason, verdict.code) == (("quota", 403) if row.excess else (None, 200))
    assert verdict.warnings == row.warnings
    assert (dict(ledger.used(row.namespace)), ledger.version) == before
