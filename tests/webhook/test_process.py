"""`python -m webhook` as a process of its own against the embedded API server: it follows the cluster, and SIGTERM ends it."""

import asyncio
import json
import re
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from lab.apiserver import ApiServer
from tests.serving.running import until
from tests.webhook.builders import container, ours
from tests.webhook.test_http import review

PATIENCE_S = 30


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


@pytest.mark.parametrize("counts", ["placed", "admitted"])
async def test_from_start_to_sigterm(tmp_path: Path, counts: str) -> None:
    api = ApiServer()
    await api.start()
    config = tmp_path / "devices.yaml"
    config.write_text("nvidia: {resourceCoreName: nvidia.com/cores, oops: 1}\n")
    try:
        async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
            quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpumem": "100"}}}
            url = f"{api.url}/api/v1/namespaces/default/resourcequotas"
            async with session.post(url, json=quota) as answer:
                assert answer.status == 201
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "webhook", "--http_bind=127.0.0.1:0", "--metrics-bind-address=127.0.0.1:0"),
                *(f"--kubeconfig={kubeconfig(tmp_path, api.url)}", f"--device-config-file={config}"),
                f"--quota-counts={counts}",
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                assert process.stderr is not None
                seen = ""
                while (found := re.search(r"listening on 127\.0\.0\.1:(\d+), 127\.0\.0\.1:(\d+)", seen)) is None:
                    line = await process.stderr.readline()
                    assert line, seen
                    seen += line.decode()
                assert "devices.yaml: line 1: unknown key nvidia.oops has no effect" in seen
                admission, plain = (f"http://127.0.0.1:{port}" for port in found.groups())

                async def ready() -> bool:
                    async with session.get(f"{plain}/readyz") as answer:
                        return answer.status == 200

                await until(ready)
                async with session.post(
                    f"{admission}/validate", json=review(ours(container(gpumem=500, gpu=1)))
                ) as answer:
                    response = (await answer.json())["response"]
                assert response["status"]["message"] == (
                    "exceeding resource quota: default/q limits.nvidia.com/gpumem: asked 500, used 0, limit 100"
                    " (400 too many)"
                )
                process.send_signal(signal.SIGTERM)
                rest = (await process.stderr.read()).decode()
                assert (await process.wait(), "Traceback" in rest) == (0, False), rest
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
    finally:
        await api.stop()
