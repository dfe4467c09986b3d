"""`slotwise certs create --secret-name` and `patch` against the embedded API server, also with HAMi's own Job arguments."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from certs.keeper import secret_data
from certs.pki import hosts_of, read_ca, read_pair
from cli.certs import app
from lab.apiserver import ApiServer
from tests.certs.replicas import MUTATING, VALIDATING, webhook
from tests.webhook.test_process import kubeconfig

HAMI_CREATE = (
    "create --cert-name=tls.crt --key-name=tls.key --host=hami-scheduler.kube-system.svc,127.0.0.1 --namespace=kube-system"
    " --secret-name=hami-scheduler-tls"
)
HAMI_PATCH = "patch --webhook-name=hami-webhook --namespace=kube-system --patch-validating=false --secret-name=hami-scheduler-tls"


class Cluster:
    """An API server, and the command on it."""

    def __init__(self, api: ApiServer, config: Path) -> None:
        self.api = api
        self._config = config

    async def run(self, line: str) -> Result:
        arguments = [*line.split(), f"--kubeconfig={self._config}"]
        # The command runs a loop of its own, as in a process of its own.
        return await asyncio.to_thread(CliRunner().invoke, app, arguments)

    async def done(self, line: str) -> str:
        result = await self.run(line)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def data(self) -> dict[str, bytes]:
        secret = self.api.get("secrets", "kube-system", "hami-scheduler-tls")
        assert secret is not None
        return secret_data(secret)

    def register(self, plural: str, kind: str) -> None:
        hooks = [
            webhook(f"{name}.hami.io", {"service": {"name": "hami-scheduler", "namespace": "kube-system"}})
            for name in ("vgpu", "other")
        ]
        document: dict[str, Any] = {"metadata": {"name": "hami-webhook"}, "kind": kind, "webhooks": hooks}
        self.api.put(plural, {"apiVersion": "admissionregistration.k8s.io/v1", **document})

    def bundles(self, plural: str) -> list[bytes]:
        configuration: Any = self.api.get(plural, "", "hami-webhook")
        return [b64decode(hook["clientConfig"].get("caBundle", "")) for hook in configuration["webhooks"]]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    api = ApiServer()
    await api.start()
    cluster = Cluster(api, kubeconfig(tmp_path, api.url))
    cluster.register(MUTATING, "MutatingWebhookConfiguration")
    cluster.register(VALIDATING, "ValidatingWebhookConfiguration")
    yield cluster
    await api.stop()


async def test_the_jobs_of_hami_s_chart(cluster: Cluster) -> None:
    shown = await cluster.done(HAMI_CREATE)
    assert shown.startswith(
        "created Secret kube-system/hami-scheduler-tls: hami-scheduler.kube-system.svc, 127.0.0.1, valid until 20"
    )
    data = cluster.data()
    assert sorted(data) == ["ca", "ca.crt", "tls.crt", "tls.key"]
    pair = read_pair(data["tls.crt"], data["tls.key"], certificate_source="tls.crt", key_source="tls.key")
    assert hosts_of(pair.certificate) == ("hami-scheduler.kube-system.svc", "127.0.0.1")
    pair.certificate.verify_directly_issued_by(read_ca(data["ca"], "ca"))
    assert await cluster.done(HAMI_PATCH) == (
        "wrote caBundle in mutatingwebhookconfigurations hami-webhook: vgpu.hami.io, other.hami.io\n"
    )
    assert cluster.bundles(MUTATING) == [data["ca.crt"]] * 2
    assert cluster.bundles(VALIDATING) == [b"", b""]


async def test_a_secret_that_is_there_is_kept(cluster: Cluster) -> None:
    await cluster.done(HAMI_CREATE)
    before = cluster.data()
    shown = json.loads(await cluster.done(f"{HAMI_CREATE} --json"))
    assert (shown["action"], shown["hosts"]) == ("kept", ["hami-scheduler.kube-system.svc", "127.0.0.1"])
    assert cluster.data() == before


async def test_a_secret_that_others_make_meanwhile_is_kept(cluster: Cluster) -> None:
    await cluster.done(HAMI_CREATE)
    before = cluster.data()
    # The first look does not see it.
    secret = cluster.api.get("secrets", "kube-system", "hami-scheduler-tls")
    assert secret is not None
    cluster.api.remove("secrets", "kube-system", "hami-scheduler-tls")
    cluster.api.faults.slow(0.3, verb="create", resource="secrets")
    running = asyncio.create_task(cluster.done(HAMI_CREATE))
    while not any(key.verb == "create" for key in cluster.api.requests.received if key.resource == "secrets"):  # noqa: ASYNC110 - the API server tells nobody
        await asyncio.sleep(0.005)
    cluster.api.put("secrets", secret)
    assert (await running).startswith("kept Secret")
    assert cluster.data() == before


async def test_names_of_the_keys_are_ours_to_choose(cluster: Cluster) -> None:
    line = HAMI_CREATE.replace("tls.crt", "cert").replace("tls.key", "key")
    await cluster.done(line)
    assert sorted(cluster.data()) == ["ca", "ca.crt", "cert", "key"]
    refused = await cluster.run(HAMI_CREATE)
    assert refused.exit_code == 2
    assert refused.stderr == (
        "error: Secret kube-system/hami-scheduler-tls is there, but without tls.crt (it holds ca, ca.crt, cert, key): name its"
        " key with --cert-name, or delete it\n"
    )


async def test_a_dry_run_writes_nothing(cluster: Cluster) -> None:
    shown = await cluster.done(f"{HAMI_CREATE} --dry-run")
    assert shown.startswith("would create Secret kube-system/hami-scheduler-tls: hami-scheduler.kube-system.svc")
    assert cluster.api.objects("secrets") == []
    await cluster.done(HAMI_CREATE)
    assert (await cluster.done(f"{HAMI_PATCH} --dry-run")).startswith("would write caBundle in mutatingwebhook")
    assert cluster.bundles(MUTATING) == [b"", b""]


async def test_both_configurations_are_the_default_and_a_second_time_nothing_is_left_to_do(cluster: Cluster) -> None:
    await cluster.done(HAMI_CREATE)
    line = HAMI_PATCH.replace("--patch-validating=false ", "")
    done = json.loads(await cluster.done(f"{line} --json"))
    assert [(one["resource"], one["webhooks"]) for one in done["configurations"]] == [
        (MUTATING, ["vgpu.hami.io", "other.hami.io"]),
        (VALIDATING, ["vgpu.hami.io", "other.hami.io"]),
    ]
    assert cluster.bundles(VALIDATING) == [cluster.data()["ca.crt"]] * 2
    writes = cluster.api.revision
    assert "every webhook has this CA already" in await cluster.done(line)
    assert cluster.api.revision == writes


async def test_a_conflict_is_tried_again(cluster: Cluster) -> None:
    await cluster.done(HAMI_CREATE)
    conflict = cluster.api.faults.answer(409, verb="patch", resource=MUTATING, count=2)
    await cluster.done(HAMI_PATCH)
    assert conflict.hits == 2
    assert cluster.bundles(MUTATING) == [cluster.data()["ca.crt"]] * 2


async def test_the_ca_of_a_secret_that_hami_s_job_made_is_found(cluster: Cluster) -> None:
    await cluster.done(HAMI_CREATE)
    secret: Any = cluster.api.get("secrets", "kube-system", "hami-scheduler-tls")
    del (data := dict(secret["data"]))["ca.crt"]
    cluster.api.put("secrets", {**secret, "data": data})
    await cluster.done(HAMI_PATCH)
    assert cluster.bundles(MUTATING) == [b64decode(data["ca"])] * 2


async def test_what_is_not_there_is_named(cluster: Cluster) -> None:
    missing = await cluster.run(HAMI_PATCH)
    assert (missing.exit_code, missing.stderr) == (
        2,
        "error: there is no Secret kube-system/hami-scheduler-tls: make it with slotwise certs create"
        " --secret-name=hami-scheduler-tls\n",
    )
    await cluster.done(HAMI_CREATE)
    cluster.api.remove(MUTATING, "", "hami-webhook")
    nowhere = await cluster.run(HAMI_PATCH)
    assert (nowhere.exit_code, nowhere.stderr) == (
        2,
        "error: there is no mutatingwebhookconfigurations hami-webhook: name it with --webhook-name, or leave it out with"
        " --patch-mutating=false\n",
    )


async def test_an_api_server_that_refuses_is_a_failure(cluster: Cluster) -> None:
    cluster.api.faults.answer(409, verb="patch", resource=MUTATING, count=99)
    await cluster.done(HAMI_CREATE)
    assert (await cluster.run(HAMI_PATCH)).exit_code == 1


BAD: dict[str, tuple[str, str]] = {
    "neither place": ("create --host=a", "give either --dir, for files, or --secret-name, for a Secret in the cluster"),
    "both places": ("create --host=a --dir=x --secret-name=y", "give either --dir"),
    "force on a Secret": ("create --host=a --secret-name=y --force", "--force goes with --dir"),
    "a dry run of files": ("create --host=a --dir=x --dry-run", "--dry-run and --kubeconfig go with --secret-name"),
    "a host that is none": ("create --host=a,b_/c --secret-name=y", "host 'b_/c': neither a DNS name"),
    "a boolean that is none": ("patch --patch-mutating=maybe", "--patch-mutating: 'maybe' is not a boolean"),
    "nothing to do": ("patch --patch-mutating=false --patch-validating=0", "leave nothing to do"),
}


@pytest.mark.parametrize(("line", "text"), BAD.values(), ids=BAD)
async def test_what_leads_nowhere_is_refused(cluster: Cluster, line: str, text: str) -> None:
    arguments = line.split()
    refused = await (
        cluster.run(line) if "dry-run" not in line else asyncio.to_thread(CliRunner().invoke, app, arguments)
    )
    assert refused.exit_code == 2
    assert text in refused.stderr
