"""The container's process, from the chart's command line to SIGTERM."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from lab.apiserver import ApiServer
from lab.nodes import CardSpec, NodeSpec, node_document
from tests.drop_in.chart import Values, command
from tests.serving.running import Tls, until

PATIENCE_S = 60
HELD_BACK_S = 7.0
"""Marks the delay that lasts until the test ends it."""


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


@asynccontextmanager
async def started(
    api: ApiServer, folder: Path, *more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """The process, and the addresses of its two ports."""
    tls = Tls(folder)
    tls.write_fresh()
    devices = folder / "device-config.yaml"
    devices.write_text("nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem}\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.hami", *command(Values(leader_elect=False))[1:]),
        *("--http_bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0", f"--device-config-file={devices}"),
        *(f"--cert_file={tls.certificate}", f"--key_file={tls.key}", *more),
        env={**os.environ, "KUBECONFIG": str(kubeconfig(folder, api.url))},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        seen = ""
        while (found := re.search(r"listening on 127\.0\.0\.1:(\d+), 127\.0\.0\.1:(\d+)", seen)) is None:
            line = await process.stderr.readline()
            assert line, seen
            seen += line.decode()
        if more:
            assert f"{more[0]} has no effect" in seen
            assert "--node-scheduler-policy: 'packed' is unknown and acts as binpack" in seen
        yield process, f"https://127.0.0.1:{found[1]}", f"http://127.0.0.1:{found[2]}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_is_under_way_at_sigterm_is_answered(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await (go_on.wait() if seconds == HELD_BACK_S else asyncio.sleep(seconds))

    api = ApiServer(sleep=sleep)
    await api.start()
    api.put("nodes", node_document(NodeSpec("n1", (CardSpec("GPU-A"),))))
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    spec = {"schedulerName": "hami-scheduler", "containers": [{"name": "main", "resources": {"limits": limits}}]}
    pod = api.put("pods", {"metadata": {"name": "a", "namespace": "default"}, "spec": spec})
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            started(api, tmp_path, "--logtostderr", "--node-scheduler-policy=packed") as (process, main, plain),
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session,
        ):

            async def ready() -> bool:
                async with session.get(f"{main}/readyz") as answer:
                    return answer.status == 200

            await until(ready)
            async with session.post(f"{main}/filter", json={"Pod": pod, "NodeNames": ["n1"]}) as answer:
                assert (await answer.json())["NodeNames"] == ["n1"]
            held = api.faults.slow(HELD_BACK_S, verb="create", resource="pods", subresource="binding")
            asked = {"PodName": "a", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n1"}
            binding = asyncio.create_task(session.post(f"{main}/bind", json=asked))

            async def under_way() -> bool:
                return held.hits == 1

            await until(under_way)
            process.send_signal(signal.SIGTERM)

            async def closed() -> bool:
                try:
                    async with session.get(f"{plain}/healthz"):
                        return False
                except aiohttp.ClientConnectionError:
                    return True

            await until(closed)
            assert not binding.done()
            go_on.set()
            async with await binding as answer:
                assert await answer.json() == {"Error": ""}
            assert process.stderr is not None
            rest = (await process.stderr.read()).decode()
            assert (await process.wait(), "Traceback" in rest) == (0, False), rest
        stored = api.get("pods", "default", "a")
        assert stored is not None
        assert stored["spec"]["nodeName"] == "n1"
    finally:
        go_on.set()
        await api.stop()


async def test_a_certificate_that_is_not_there_ends_it_with_a_reason(tmp_path: Path) -> None:
    api = ApiServer()
    await api.start()
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cli.hami", *command(Values(leader_elect=False))[1:], "--device-config-file="),
            *(f"--kubeconfig={kubeconfig(tmp_path, api.url)}", f"--cert_file={tmp_path / 'none'}"),
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE_S):
            _, said = await process.communicate()
        assert process.returncode == 2
        assert said.decode().splitlines()[-1].startswith(f"scheduler: {tmp_path / 'none'}: No such file")
    finally:
        await api.stop()
