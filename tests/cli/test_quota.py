"""`slotwise quota` against the embedded API server and against a webhook's plain port."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner, Result

from cli.__main__ import app
from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.feed import LedgerFeed
from devices.ledger import ADMITTED, Ledger
from devices.model import Charge
from lab.apiserver.server import ApiServer
from tests.builders import card, container_document, node, nvidia_config
from tests.serving.running import running
from tests.webhook.test_process import kubeconfig
from webhook.admitted.record import Entry, Record, encode
from webhook.config import AdmissionSettings, Settings
from webhook.service import WebhookService


def a_pod(name: str, **limits: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {"containers": [container_document(**limits)]},
    }


@asynccontextmanager
async def cluster() -> AsyncIterator[ApiServer]:
    """Namespace team: 4000 of 6000 MiB used by a pod, 1000 recorded for one not there yet."""
    api = ApiServer()
    await api.start()
    try:
        for name in ("slotwise-system", "team"):
            api.put("namespaces", {"metadata": {"name": name}})
        registered = node("n1", card("GPU-a"))
        api.put("nodes", {"metadata": {"name": "n1", "annotations": dict(registered.annotations)}, "status": {}})
        hard = {"limits.nvidia.com/gpumem": "6000", "limits.nvidia.com/gpumen": "1"}
        api.put("resourcequotas", {"metadata": {"name": "gpu", "namespace": "team"}, "spec": {"hard": hard}})
        api.put("pods", a_pod("old", gpu=1, gpumem=4000))
        record = Record(entries={"uid-new": Entry({"NVIDIA": Charge(1000, 0, 1)}, pod="new")})
        place = {"name": "slotwise-quota-team", "namespace": "slotwise-system"}
        api.put("configmaps", {"metadata": place, "data": encode(record)})
        yield api
    finally:
        await api.stop()


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(lambda: CliRunner().invoke(app, ["quota", *arguments]))


LIMIT = {
    "key": "limits.nvidia.com/gpumem",
    "quota": "gpu",
    "vendor": "NVIDIA",
    "scope": [],
    "limit": 6000,
    "used": 4000,
    "recorded": 1000,
    "in_force": True,
}


async def test_what_is_used_recorded_and_not_understood(tmp_path: Path) -> None:
    async with cluster() as api:
        config = f"--kubeconfig={kubeconfig(tmp_path, api.url)}"
        shown = await run("team", config, "--json")
        assert shown.exit_code == 0, shown.output
        report = json.loads(shown.stdout)
        assert report["limits"] == [LIMIT]
        assert [p["pod"] for p in report["pods"]] == ["old"]
        assert report["recorded"] == [
            {
                "pod": "new",
                "uid": "uid-new",
                "node": "",
                "charges": {"NVIDIA": {"memory_mib": 1000, "cores": 0, "cards": 1}},
            }
        ]
        table = await run(config)
        assert table.exit_code == 0, table.output
        assert "████████████████▒▒▒▒····" in table.stdout
        assert "limits.nvidia.com/gpumen is not known and limits nothing" in table.stdout


async def test_the_same_from_a_webhook(tmp_path: Path) -> None:
    async with cluster() as api, KubeClient(explicit_access(api.url), ClientSettings(user_agent="t", qps=0)) as client:
        ledger = Ledger(nvidia_config(), quota_counts=ADMITTED)
        feed = LedgerFeed(client, ledger, time.time)
        await feed.start()
        await feed.wait_synced()
        local = {"host": "127.0.0.1", "port": 0, "plain_host": "127.0.0.1", "plain_port": 0}
        settings = Settings(admission=AdmissionSettings(quota_counts=ADMITTED), **local)  # type: ignore[arg-type] # text and number in one mapping
        service = WebhookService(settings, ledger, feed, client=client)
        try:
            async with running(service.listeners(), drain=service.drain) as server:
                url = f"--url={server.url('', listener=1)}"
                one = json.loads((await run("team", url, "--json")).stdout)
                assert one["limits"] == [LIMIT]
                everything = json.loads((await run(url, "--json")).stdout)
                assert [n["namespace"] for n in everything["namespaces"]] == ["team"]
                missing = await run("nowhere", url)
                assert (missing.exit_code, "namespace nowhere has no quota" in missing.stderr) == (1, True)
        finally:
            await service.stop()
            await feed.stop()


async def test_would_it_be_admitted_and_how_many_more_fit(tmp_path: Path) -> None:
    def written(**limits: Any) -> str:
        path = tmp_path / "pod.yaml"
        path.write_text(yaml.safe_dump(a_pod("asked", **limits)), encoding="utf-8")
        return f"--file={path}"

    async with cluster() as api:
        config = f"--kubeconfig={kubeconfig(tmp_path, api.url)}"
        fits = await run("check", written(gpu=1, gpumem=300), "-n", "team", config, "--json")
        assert fits.exit_code == 0, fits.output
        answer = json.loads(fits.stdout)
        assert (answer["admitted"], answer["fits"]) == (True, 3)  # 6000 - 4000 - 1000, by 300
        assert answer["charges"]["limits.nvidia.com/gpumem"] == 300
        text = "exceeding resource quota: team/gpu limits.nvidia.com/gpumem: asked 1500, used 5000, limit 6000 (500 too many)"
        over = await run("check", written(gpu=1, gpumem=1500), config)
        assert over.exit_code == 1
        assert f"would be refused in team: {text}\n" in over.stdout
        assert "0 like it fit" in over.stdout
        malformed = await run("check", written(gpu=1, gpumem="16Gi"), config)
        assert (malformed.exit_code, "invalid nvidia.com/gpumem value 16Gi" in malformed.stdout) == (1, True)


async def test_input_that_cannot_be_used(tmp_path: Path) -> None:
    wrong = tmp_path / "node.yaml"
    wrong.write_text("kind: Node\n", encoding="utf-8")
    for arguments, text in (
        (("check", f"--file={wrong}"), "not a Pod: expected one object of kind Pod"),
        (("check", f"--file={tmp_path / 'none'}"), "No such file"),
        (("team", "--counts=all"), "--counts: 'all' is not accepted: expected placed or admitted"),
        (("team", f"--kubeconfig={tmp_path / 'none'}"), "no such file"),
    ):
        result = await run(*arguments)
        assert result.exit_code in (1, 2), arguments
        assert text in result.stderr, result.stderr
