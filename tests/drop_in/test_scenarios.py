"""The lab's scenarios with the drop-in in place of Slotwise's two services, and what HAMi would read of all it wrote."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from devices.ledger import Ledger
from devices.objects import pod_of
from lab.backend import Backend
from lab.cluster import ClusterSettings
from lab.embedded import EmbeddedBackend
from lab.families import every_family
from lab.records import ScenarioDone
from lab.runner import run_scenario
from lab.scenario import load_scenario, shipped_scenarios
from lab.services import ServiceUrls
from tests.drop_in.chart import Values
from tests.drop_in.hami_reader import FAMILIES, Held, held_by, instances_of
from tests.drop_in.running import AGENT, serve_drop_in

EVERYTHING = Values(leader_elect=False, ascend=True, iluvatar=True)


class DropInBackend(EmbeddedBackend):
    """The embedded cluster with HAMi's container, Slotwise inside."""

    def __init__(self, settings: ClusterSettings, folder: Path) -> None:
        super().__init__(settings.backoff)
        self.ledger = Ledger(every_family())
        self.ledgers = (self.ledger,)
        self._folder = folder

    async def start(self, stack: AsyncExitStack) -> None:
        """(Backend)"""
        await self.api.start()
        stack.push_async_callback(self.api.stop)
        served = await stack.enter_async_context(serve_drop_in(self.api, self._folder, EVERYTHING, ledger=self.ledger))
        views = served.server.url("", listener=1)
        self._urls = ServiceUrls(served.url, b"", served.url, views, views, self.ledgers)

    def scheduler_writes(self) -> int | None:
        """(Backend)"""
        written = self.api.requests.written.items()
        return sum(n for key, n in written if key.user_agent == AGENT and key.resource != "events")


@dataclass(frozen=True)
class DropInSettings(ClusterSettings):
    """`clusters` are those that were played on."""

    folder: Path = Path()
    clusters: list[DropInBackend] = field(default_factory=list)

    def new_backend(self) -> Backend:
        """(ClusterSettings)"""
        backend = DropInBackend(self, self.folder)
        self.clusters.append(backend)
        return backend


# That of quota is about records of admissions, which HAMi's account may not write.
SCENARIOS = {name: path for name, path in shipped_scenarios().items() if name != "quota"}


@pytest.mark.parametrize("path", SCENARIOS.values(), ids=SCENARIOS)
async def test_scenario_holds_and_hami_can_read_what_is_written(path: Path, tmp_path: Path) -> None:
    settings = DropInSettings(folder=tmp_path)
    records = [record async for record in run_scenario(load_scenario(path), settings)]
    done = records[-1]
    assert isinstance(done, ScenarioDone)
    assert done.problems == ()
    found = 0
    for cluster in settings.clusters:
        for pod in cluster.api.objects("pods"):
            holding = cluster.ledger.holding(pod_of(pod).uid)
            if holding is None:
                continue
            ours = [
                Held(entry.vendor, position, entry.uuid, entry.memory_mib, entry.cores)
                for position, entries in enumerate(holding.allocation)
                for entry in entries
            ]
            assert sorted(held_by(pod), key=place) == sorted(ours, key=place)
            assert instances_of(pod) == [(r.container, r.device, r.uuid) for r in holding.reservations]
            for family in {held.family for held in ours}:
                waiting, _ = FAMILIES[family]
                assert not waiting or waiting in pod["metadata"]["annotations"]
                found += 1
    assert found


def place(held: Held) -> tuple[str, int, str]:
    return held.family, held.container, held.uuid
