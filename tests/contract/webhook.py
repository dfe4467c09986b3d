"""A webhook server for the contract: records every review and answers as the test says."""

from __future__ import annotations

import asyncio
import base64
import ssl
import uuid
from collections.abc import Callable
from typing import Any

import orjson
import trustme
from aiohttp import web

from .client import PATIENCE_S, Http

PROBE = "probe"
Request = dict[str, Any]
Responder = Callable[[Request], dict[str, Any]]


def allow(_: Request) -> dict[str, Any]:
    return {"allowed": True}


def patching(*operations: dict[str, Any]) -> Responder:
    encoded = base64.b64encode(orjson.dumps(operations)).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def denying(**status: Any) -> Responder:
    return lambda request: {"allowed": request.get("name") == PROBE, "status": status}


def pod(name: str = "", **metadata: Any) -> dict[str, Any]:
    meta = {**({"name": name} if name else {}), **metadata}
    return {"metadata": meta, "spec": {"containers": [{"name": "main", "image": "registry.example/app:1"}]}}


class WebhookServer:
    """Serves any number of webhooks over TLS, each under a path of its own."""

    def __init__(self, http: Http, namespace: str, ca: trustme.CA) -> None:
        self._http = http
        self._namespace = namespace
        self._ca = ca
        self._responders: dict[str, Responder] = {}
        self._configurations: list[str] = []
        self._called: dict[str, asyncio.Event] = {}
        self._arrival = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.reviews: list[dict[str, Any]] = []
        """All reviews but those of probes, each with `path` and `query` added."""
        self.raw_answer: Callable[[dict[str, Any]], web.Response] | None = None
        """Set to answer something else than an AdmissionReview."""

        self.hold: asyncio.Event | None = None
        """Set to keep answers back until the event is set."""

    async def start(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ca.issue_cert("127.0.0.1").configure_cert(context)
        app = web.Application()
        app.router.add_post("/{name}", self._review)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context).start()
        self.url = f"https://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        for path in self._configurations:
            await self._http.delete(path)
        if self._runner is not None:
            # An API server keeps its connections for the next call, and nobody waits for their end after the test.
            for connection in self._runner.server.connections if self._runner.server else ():
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()

    async def asked(self, times: int = 1) -> None:
        """Wait until so many reviews have come in, answered or not."""
        async with asyncio.timeout(PATIENCE_S), self._arrival:
            await self._arrival.wait_for(lambda: len(self.reviews) >= times)

    def requests(self, name: str) -> list[Request]:
        """Return the requests one webhook has seen."""
        return [review["request"] for review in self.reviews if review["path"] == name]

    async def install(
        self,
        name: str,
        responder: Responder = allow,
        *,
        mutating: bool = False,
        rules: list[dict[str, Any]] | None = None,
        await_call: bool = True,
        **fields: Any,
    ) -> str:
        """Register a webhook and wait until the API server calls it; return its full name."""
        self._responders[name] = responder
        self._called[name] = asyncio.Event()
        full_name = f"{name}.contract.example"
        kind = "Mutating" if mutating else "Validating"
        hook = {
            "name": full_name,
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 5,
            "clientConfig": {
                "url": f"{self.url}/{name}",
                "caBundle": base64.b64encode(self._ca.cert_pem.bytes()).decode(),
            },
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "rules": [pod_rule("CREATE"), *(rules or [])],
            **fields,
        }
        path = f"/apis/admissionregistration.k8s.io/v1/{kind.lower()}webhookconfigurations"
        configuration = {"metadata": {"name": f"{name}-{uuid.uuid4().hex[:8]}"}, "webhooks": [hook]}
        stored = await self._http.created(path, configuration)
        self._configurations.append(f"{path}/{stored['metadata']['name']}")
        if await_call:
            await self._until_called(name)
        return full_name

    async def _until_called(self, name: str) -> None:
        """A real server takes a moment to notice a new configuration."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._called[name].is_set():
                await self._http.post(f"/api/v1/namespaces/{self._namespace}/pods", pod(PROBE), dryRun="All")

    async def _review(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        review = orjson.loads(await request.read())
        asked = review["request"]
        self._called[name].set()
        if asked.get("name") != PROBE:
            self.reviews.append({**review, "path": name, "query": dict(request.query)})
            async with self._arrival:
                self._arrival.notify_all()
            if self.hold is not None:
                await self.hold.wait()
            if self.raw_answer is not None:
                return self.raw_answer(review)
        response = {**self._responders[name](asked), "uid": asked["uid"]}
        return web.json_response({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response})


def pod_rule(*operations: str, resource: str = "pods") -> dict[str, Any]:
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": list(operations), "resources": [resource]}
