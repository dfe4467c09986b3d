"""An API server that knows a sound installation: lists, dry-run pods, rights and logs, over real HTTP."""

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from certs.pki import Pair
from tests.cli.doctor.installation import NAMESPACE, Document, documents, live_objects, pairs

_PLURALS = {
    "Deployment": "apps/v1/deployments",
    "DaemonSet": "apps/v1/daemonsets",
    "Pod": "v1/pods",
    "Service": "v1/services",
    "ConfigMap": "v1/configmaps",
    "Node": "v1/nodes",
    "Lease": "coordination.k8s.io/v1/leases",
    "EndpointSlice": "discovery.k8s.io/v1/endpointslices",
    "MutatingWebhookConfiguration": "admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": "admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
NOW = "2026-08-01T06:00:00Z"


def _status(code: int, message: str, reason: str = "Forbidden") -> web.Response:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


class FakeCluster:
    """Answers as the API server would; `forbidden` are resources that the caller may not read."""

    def __init__(self) -> None:
        self.objects: dict[str, list[Document]] = {}
        for one in (*documents(), *live_objects()):
            self.objects.setdefault(_PLURALS.get(one["kind"], one["kind"]), []).append(one)
        self.forbidden: set[str] = set()
        self.denied_rights: set[str] = set()
        self.may_create_pods = True
        self.created: list[Document] = []
        self.app = web.Application()
        self.app.router.add_route("*", "/{path:.*}", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        path = request.path.removeprefix("/apis/").removeprefix("/api/")
        if path == "/version":
            return web.json_response({"gitVersion": "v1.37.2"})
        if path.endswith("/log"):
            return web.Response(text=f"log of {request.query['container']}\n")
        if request.method == "POST":
            return await self._created(request, path)
        resource, namespace, name = _parts(path)
        if resource.rpartition("/")[2] in self.forbidden:
            return _status(403, f'{resource.rpartition("/")[2]} is forbidden: User "me" cannot list resource')
        if name:
            return self._one(resource, namespace, name)
        found = [
            o for o in self.objects.get(resource, []) if not namespace or o["metadata"].get("namespace") == namespace
        ]
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": found})

    def _one(self, resource: str, namespace: str, name: str) -> web.Response:
        if resource == "v1/secrets":
            return web.json_response(_secret(pairs()))
        for one in self.objects.get(resource, []):
            if (one["metadata"]["name"], one["metadata"].get("namespace")) == (name, namespace):
                return web.json_response(one)
        return _status(404, f"{resource} {name} not found", "NotFound")

    async def _created(self, request: web.Request, path: str) -> web.Response:
        body: Document = await request.json()
        if path.endswith("subjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            allowed = f"{asked['verb']} {asked['resource']}" not in self.denied_rights
            return web.json_response({**body, "status": {"allowed": allowed}}, status=201)
        assert request.query["dryRun"] == "All", "the doctor must not create anything"
        if not self.may_create_pods:
            return _status(403, 'pods is forbidden: User "me" cannot create resource "pods"')
        self.created.append(body)
        return self._admitted(body)

    def _admitted(self, pod: Document) -> web.Response:
        container = pod["spec"]["containers"][0]
        if container.get("securityContext", {}).get("privileged"):
            return _status(403, 'admission webhook "vgpu.hami.io" denied the request: privileged')
        if pod["metadata"].get("annotations"):
            return _status(422, "ValidatingAdmissionPolicy 'slotwise' denied request: protected keys", "Invalid")
        name = "hami-scheduler" if container.get("resources") else "default-scheduler"
        stored = {**pod, "metadata": {**pod["metadata"], "creationTimestamp": NOW}}
        return web.json_response({**stored, "spec": {**pod["spec"], "schedulerName": name}}, status=201)


def _parts(path: str) -> tuple[str, str, str]:
    """`GROUP/VERSION/PLURAL`, namespace and name of a path below /api or /apis."""
    core = path.startswith("v1/")
    group, _, rest = ("", "", path.removeprefix("v1/")) if core else path.partition("/v1/")
    head = f"{group}/v1" if group else "v1"
    words = rest.split("/")
    namespace = ""
    if words[0] == "namespaces" and len(words) > 2:
        namespace, words = words[1], words[2:]
    return f"{head}/{words[0]}", namespace, words[1] if len(words) > 1 else ""


def _secret(found: tuple[Pair, Pair]) -> Mapping[str, Any]:
    authority, serving = found
    data = {
        "ca.crt": authority.certificate_pem(),
        "ca.key": authority.key_pem(),
        "tls.crt": serving.certificate_pem(),
        "tls.key": serving.key_pem(),
    }
    metadata = {"name": "slotwise-webhook-tls", "namespace": NAMESPACE}
    return {"kind": "Secret", "metadata": metadata, "data": {key: b64encode(pem).decode() for key, pem in data.items()}}


def kubeconfig(url: str) -> str:
    """A kubeconfig for the server at `url`."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
    )
