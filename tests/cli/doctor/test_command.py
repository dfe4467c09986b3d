"""The command against an API server over HTTP: what it reads, shows, bundles, and what it never does."""

import asyncio
import json
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner, Result

from cli.__main__ import app
from tests.cli.doctor.fake_cluster import FakeCluster, kubeconfig
from tests.cli.doctor.installation import pairs

CLOCKS = {"clock", "expiry", "leader"}
"""What compares our real clock with the fixed times of the test's installation."""


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
async def config(cluster: FakeCluster, tmp_path: Path) -> AsyncIterator[Path]:
    async with TestServer(cluster.app) as server:
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(str(server.make_url("")).rstrip("/")))
        yield path


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["doctor", *arguments])


def levels(result: Result) -> dict[str, str]:
    findings = json.loads(result.stdout)["findings"]
    return {one["check"]: one["level"] for one in findings if one["level"] != "ok"}


async def test_a_sound_installation_has_no_findings_but_those_of_its_fixed_times(config: Path) -> None:
    result = await run("--kubeconfig", str(config), "--json")
    assert set(levels(result)) <= CLOCKS, result.output
    document = json.loads(result.stdout)
    assert (document["kubernetes"], document["namespace"]) == ("v1.37.2", "slotwise-system")


async def test_pods_go_out_as_dry_runs_only(config: Path, cluster: FakeCluster) -> None:
    await run("--kubeconfig", str(config), "--probe-namespace", "tenants")
    assert {pod["metadata"]["name"].removeprefix("slotwise-doctor-") for pod in cluster.created} == {
        "plain",
        "device",
        "privileged",
        "forged",
    }
    assert {pod["metadata"]["namespace"] for pod in cluster.created} == {"tenants"}


async def test_what_may_not_be_read_is_told_in_the_api_servers_words(config: Path, cluster: FakeCluster) -> None:
    cluster.forbidden = {"secrets", "nodes", "deployments"}
    cluster.may_create_pods = False
    result = await run("--kubeconfig", str(config))
    assert "unknown  ca-bundle: the served certificate is not known: secrets is forbidden" in result.stdout
    assert "unknown  registrations: nodes cannot be read: nodes is forbidden" in result.stdout
    assert "unknown  device-pod: no pod could be sent: pods is forbidden" in result.stdout


async def test_a_missing_right_is_named(config: Path, cluster: FakeCluster) -> None:
    cluster.denied_rights = {"patch nodes"}
    result = await run("--kubeconfig", str(config))
    assert "problem  rights: service account slotwise-system/slotwise-scheduler may not patch nodes" in result.stdout
    assert "repair: " in result.stdout
    assert result.exit_code == 1


async def test_bundle_holds_everything_and_no_secret(config: Path, tmp_path: Path, cluster: FakeCluster) -> None:
    cluster.objects["v1/pods"].append(
        {
            "kind": "Pod",
            "metadata": {"name": "theirs", "namespace": "team-a"},
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "env": [{"name": "PASSWORD", "value": "hunter2"}],
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    }
                ]
            },
        }
    )
    cluster.objects.setdefault("apps/v1/daemonsets", []).append(
        {
            "kind": "DaemonSet",
            "metadata": {"name": "other", "namespace": "elsewhere"},
            "spec": {"template": {"spec": {"containers": [{"image": "other:1", "args": ["--token=hunter2"]}]}}},
        }
    )
    path = tmp_path / "bundle.tar.gz"
    result = await run("--kubeconfig", str(config), "--bundle", str(path))
    assert f"wrote {path}" in result.stderr
    with tarfile.open(path) as archive:
        files = {}
        for name in archive.getnames():
            extracted = archive.extractfile(name)
            assert extracted is not None
            files[name.removeprefix("slotwise-doctor/")] = extracted.read()
    assert {"doctor.json", "objects/Node.json", "objects/Pod-that-waits.json", "certificates/tls.crt"} <= set(files)
    assert files["logs/slotwise-webhook-0/webhook.log"] == b"log of webhook\n"
    everything = b"\n".join(files.values())
    assert b"theirs" in everything
    assert b"other:1" in everything
    assert b"hunter2" not in everything
    assert b"PRIVATE KEY" not in everything
    for pair in pairs():
        assert pair.key_pem().splitlines()[1] not in everything
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".unfinished")]


WRONG = {
    "no such kubeconfig": (["--kubeconfig", "/nowhere/config"], "/nowhere/config"),
    "no folder for the bundle": (["--bundle", "/nowhere/at/all.tar.gz"], "there is no folder /nowhere/at"),
}


@pytest.mark.parametrize(("arguments", "text"), WRONG.values(), ids=WRONG)
async def test_wrong_input_is_named(arguments: list[str], text: str) -> None:
    result = await run(*arguments)
    assert result.exit_code == 2
    assert text in result.stderr


async def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig("http://127.0.0.1:1"))
    result = await run("--kubeconfig", str(path))
    assert (result.exit_code, "127.0.0.1:1" in result.stderr) == (2, True)
