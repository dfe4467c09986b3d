"""The label that the chart's Service selects by."""

import pytest

from cli.hami_role import OnlyReplica
from devices.kube.errors import KubeError, Unreachable
from devices.kube.freshness import OwnPod
from devices.kube.protocols import JsonObject

POD = OwnPod("kube-system", "hami-scheduler-0")
LEADER = {"metadata": {"labels": {"hami.io/scheduler-role": "leader"}}}


class Enough(Exception):
    """The test has seen what it wants."""


class Patched:
    """Answers the first patches with errors, and keeps what it was asked and how long was waited between."""

    def __init__(self, *errors: KubeError) -> None:
        self._errors = list(errors)
        self.asked: list[tuple[str, str, JsonObject]] = []
        self.waited: list[float] = []

    async def patch_pod(self, namespace: str, name: str, body: JsonObject) -> JsonObject:
        self.asked.append((namespace, name, body))
        if self._errors:
            raise self._errors.pop(0)
        return body

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        if len(self.waited) == 4:
            raise Enough


async def test_it_is_set_soon_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    api = Patched(Unreachable("not there"), Unreachable("not there"))
    with pytest.raises(Enough):
        await OnlyReplica(api, POD, api.sleep).run()
    assert api.asked == [("kube-system", "hami-scheduler-0", LEADER)] * 4
    assert api.waited == [1, 1, 15, 15]
    assert [record.getMessage() for record in caplog.records] == [
        "own pod: no Service finds it, since it could not be labelled: not there"
    ]
