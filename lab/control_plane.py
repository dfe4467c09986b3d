"""A private control plane on loopback: etcd, kube-apiserver, kube-controller-manager, and kube-scheduler when asked for."""

import http.client
import json
import secrets
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certs.files import write_pair
from certs.pki import create_ca, issue_serving
from devices.kube.protocols import JsonObject
from lab.processes import LOOPBACK, Child, HeldPort, answers

__all__ = ["ADMIN", "ApiError", "AuditedCall", "ControlPlane", "Programs", "User", "cache_folder"]

_START_S: Final = 60.0
_DAY: Final = 1
_AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True)
class Programs:
    """The programs of a control plane."""

    etcd: Path
    apiserver: Path
    controllers: Path
    scheduler: Path
    kubectl: Path
    version: str
    """Of Kubernetes, as in `1.37.2`."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where everything is kept that outlives a run."""
    if chosen := environment.get("SLOTWISE_CACHE"):
        return Path(chosen)
    shared = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache").expanduser()
    return Path(shared) / "slotwise"


@dataclass(frozen=True)
class User:
    """Somebody the API server knows by a token of its own."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN: Final = User("admin", ("system:masters",))
_CONTROLLERS: Final = User("system:kube-controller-manager")
_SCHEDULER: Final = User("system:kube-scheduler")


@dataclass(frozen=True)
class AuditedCall:
    """One request as the API server's audit log has it."""

    user: str
    user_agent: str
    verb: str
    resource: str
    """With its sub-resource, as in `pods/binding`."""
    namespace: str
    name: str
    code: int
    received_at: float
    """Unix seconds, as the next one."""
    answered_at: float

    @property
    def is_write(self) -> bool:
        """Whether it may have changed something."""
        return self.verb in {"create", "update", "patch", "delete", "deletecollection"}


class ApiError(Exception):
    """The API server did not answer as it should; the text names request and answer."""


class ControlPlane:
    """Runs from `start` to `stop`, or as a context manager. Logs, keys and data are in `folder`.

    `users` are those besides the administrator and Kubernetes' own processes that need a token from the start; whoever
    comes later is a service account. `service_range` has the addresses of Services: of 127/8 for somebody who plays kube-proxy.
    """

    def __init__(
        self, programs: Programs, folder: Path, users: Sequence[User] = (), service_range: str = "10.0.0.0/24"
    ) -> None:
        self.programs = programs
        self.folder = folder
        self._service_range = service_range
        self._tokens = {user.name: secrets.token_hex(16) for user in (ADMIN, _CONTROLLERS, _SCHEDULER, *users)}
        self._users = (ADMIN, _CONTROLLERS, _SCHEDULER, *users)
        self._stack = ExitStack()
        self._api_port = 0
        self._etcd_port = 0
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- running it ---

    def start(self, *, controllers: bool = True) -> None:
        """Start everything but kube-scheduler; returns once pods can be created. Raises `StartError`.

        Without controllers pods need no service account, and nodes need no heartbeat.
        """
        try:
            self._write_files()
            self._start_etcd()
            self._api_port = self._held_port()
            self._start_apiserver(*(() if controllers else ("--disable-admission-plugins=ServiceAccount",)))
            if controllers:
                self._start_controllers()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, the last one started first."""
        self._stack.close()

    def start_scheduler(self, configuration: Mapping[str, object]) -> Child:
        """Start a kube-scheduler with this KubeSchedulerConfiguration; returns once it is ready.

        How it reaches the API server is filled in, and leader election is off where nothing is said about it.
        `stop` ends it at the latest. Raises `StartError`, also for a configuration that it refuses.
        """
        port = self._held_port()
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **configuration,
        }
        connection = document.get("clientConnection")
        document["clientConnection"] = {
            **(connection if isinstance(connection, dict) else {}),
            "kubeconfig": str(self.kubeconfig(_SCHEDULER.name)),
        }
        file = self.folder / f"kube-scheduler-{port}.yaml"
        file.write_text(json.dumps(document))
        child = self._run(
            f"kube-scheduler-{port}",
            self.programs.scheduler,
            f"--config={file}",
            *self._serving_flags(port),
            "--authentication-skip-lookup",
            "--authorization-always-allow-paths=/readyz",
        )
        child.wait_until(lambda: answers(port, "/readyz", self.tls()), _START_S, "it is ready")
        return child

    def _write_files(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        authority = create_ca("slotwise test control plane", now=now, days=_DAY)
        self._ca_file.write_bytes(authority.certificate_pem())
        serving = issue_serving(authority, [LOOPBACK, "localhost"], now=now, days=_DAY)
        write_pair(serving, self.folder / "tls.crt", self.folder / "tls.key")
        key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self.folder / "sa.key").write_bytes(key)
        lines = (f'{self._tokens[u.name]},{u.name},{u.name},"{",".join(u.groups)}"\n' for u in self._users)
        (self.folder / "tokens.csv").write_text("".join(lines))
        (self.folder / "audit.yaml").write_text(json.dumps(_AUDIT_POLICY))

    def _start_etcd(self) -> None:
        self._etcd_port, peer = self._held_port(), self._held_port()
        own, peers = f"http://{LOOPBACK}:{self._etcd_port}", f"http://{LOOPBACK}:{peer}"
        child = self._run(
            "etcd",
            self.programs.etcd,
            f"--data-dir={self.folder / 'etcd'}",
            *(f"--listen-client-urls={own}", f"--advertise-client-urls={own}"),
            *(f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}"),
            f"--initial-cluster=default={peers}",
            "--socket-reuse-port",
            "--log-level=warn",
            "--unsafe-no-fsync",  # it need not survive a power cut
        )
        child.wait_until(lambda: answers(self._etcd_port, "/health"), _START_S, "it is healthy")

    def _start_apiserver(self, *more: str) -> None:
        key = self.folder / "sa.key"
        child = self._run(
            "kube-apiserver",
            self.programs.apiserver,
            f"--etcd-servers=http://{LOOPBACK}:{self._etcd_port}",
            *self._serving_flags(self._api_port),
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            f"--service-cluster-ip-range={self._service_range}",
            "--endpoint-reconciler-type=none",  # loopback cannot be an endpoint
            "--allow-privileged",
            *(f"--audit-policy-file={self.folder / 'audit.yaml'}", f"--audit-log-path={self.audit_log}"),
            *more,
        )
        child.wait_until(lambda: answers(self._api_port, "/readyz", self.tls()), _START_S, "it is ready")

    def _start_controllers(self) -> None:
        child = self._run(
            "kube-controller-manager",
            self.programs.controllers,
            f"--kubeconfig={self.kubeconfig(_CONTROLLERS.name)}",
            "--use-service-account-credentials",  # each controller with the rights of its own account
            f"--service-account-private-key-file={self.folder / 'sa.key'}",
            f"--root-ca-file={self._ca_file}",
            "--leader-elect=false",
            "--secure-port=0",
            *("--kube-api-qps=200", "--kube-api-burst=400"),
        )
        probe = f"probe-{secrets.token_hex(4)}"
        self.create("/api/v1/namespaces", {"metadata": {"name": probe}})
        for name in ("default", probe):
            self._await_service_account(child, name)
        self.request("DELETE", f"/api/v1/namespaces/{probe}")

    def _await_service_account(self, controllers: Child, namespace: str) -> None:
        """Until then pods are refused."""
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        controllers.wait_until(
            lambda: self.request("GET", account)[0] == 200, _START_S, f"namespace {namespace} has its service account"
        )

    def _serving_flags(self, port: int) -> tuple[str, ...]:
        return (
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            "--permit-port-sharing",
            f"--tls-cert-file={self.folder / 'tls.crt'}",
            f"--tls-private-key-file={self.folder / 'tls.key'}",
        )

    def _held_port(self) -> int:
        port = HeldPort()
        self._stack.callback(port.release)
        return port.number

    def _run(self, name: str, program: Path, *flags: str) -> Child:
        child = Child(name, [str(program), *flags], self.folder / f"{name}.log")
        # Nothing here has to outlive the test, and kube-apiserver waits long for its watchers to go.
        self._stack.callback(child.kill)
        self._children = [other for other in self._children if other.name != name] + [child]
        return child

    def _child(self, name: str) -> Child:
        return next(child for child in self._children if child.name == name)

    # --- reaching it ---

    @property
    def url(self) -> str:
        """The API server's address."""
        return f"https://{LOOPBACK}:{self._api_port}"

    @property
    def etcd_url(self) -> str:
        """etcd's address."""
        return f"http://{LOOPBACK}:{self._etcd_port}"

    @property
    def _ca_file(self) -> Path:
        return self.folder / "ca.crt"

    def tls(self) -> ssl.SSLContext:
        """Trusts the API server, and kube-scheduler's port."""
        return ssl.create_default_context(cafile=str(self._ca_file))

    def token(self, user: str = ADMIN.name) -> str:
        """The token of the administrator or one of `users`."""
        return self._tokens[user]

    def kubeconfig(self, user: str = ADMIN.name) -> Path:
        """A kubeconfig of the administrator or one of `users`."""
        return self.kubeconfig_with(self._tokens[user], user)

    def kubeconfig_with(self, token: str, label: str) -> Path:
        """A kubeconfig for whoever this token belongs to; `label` names the file."""
        cluster = {
            "server": self.url,
            "certificate-authority-data": b64encode(self._ca_file.read_bytes()).decode(),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": label, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": label}}],
            "current-context": "test",
        }
        path = self.folder / f"{label.replace(':', '-')}.kubeconfig"
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    def request(self, method: str, path: str, body: object = None, *, token: str = "") -> tuple[int, JsonObject]:
        """One request, of the administrator unless a token is given; returns status and document."""
        connection = http.client.HTTPSConnection(LOOPBACK, self._api_port, timeout=30.0, context=self.tls())
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token or self.token()}", "Content-Type": kind}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        document: JsonObject = orjson.loads(content) if content[:1] == b"{" else {"text": content.decode()}
        return response.status, document

    def create(self, collection: str, body: Mapping[str, object]) -> JsonObject:
        """Create an object as the administrator. Raises `ApiError`."""
        status, document = self.request("POST", collection, body)
        if status != 201:
            raise ApiError(f"POST {collection}: {status} {document.get('message')}")
        return document

    # --- who may do what ---

    def create_namespace(self, name: str) -> None:
        """Create a namespace; returns once it has its service account, so that pods can be created in it."""
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._await_service_account(self._child("kube-controller-manager"), name)

    def create_service_account(self, namespace: str, name: str, rules: Sequence[Mapping[str, object]] = ()) -> None:
        """Create a service account that may do what `rules` say, in the whole cluster."""
        self.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        if rules:
            self.grant({"kind": "ServiceAccount", "namespace": namespace, "name": name}, rules)

    def grant(self, subject: Mapping[str, str], rules: Sequence[Mapping[str, object]]) -> None:
        """Let a subject do what `rules` say, in the whole cluster."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        role = self.create(f"{rbac}/clusterroles", {"metadata": {"generateName": "test-"}, "rules": list(rules)})
        metadata = role["metadata"]
        assert isinstance(metadata, dict)
        binding = {
            "metadata": {"name": metadata["name"]},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": metadata["name"]},
            "subjects": [dict(subject)],
        }
        self.create(f"{rbac}/clusterrolebindings", binding)

    def service_account_token(
        self, namespace: str, name: str, seconds: int = 3600, pod: tuple[str, str] | None = None
    ) -> str:
        """A token of a service account, as the kubelet would project it into a pod (name and UID). Raises `ApiError`."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec: dict[str, object] = {"expirationSeconds": seconds}
        if pod is not None:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod[0], "uid": pod[1]}
        answer = self.create(path, {"spec": spec})
        status = answer["status"]
        assert isinstance(status, dict)
        return str(status["token"])

    # --- what happened in it ---

    @property
    def audit_log(self) -> Path:
        """Where the API server notes every request."""
        return self.folder / "audit.log"

    def audited(self) -> Iterator[AuditedCall]:
        """All requests answered so far, in the order of their answers."""
        for line in self.audit_log.read_bytes().splitlines():
            entry = orjson.loads(line)
            about = entry.get("objectRef") or {}
            resource, sub = about.get("resource", ""), about.get("subresource", "")
            yield AuditedCall(
                user=entry["user"].get("username", ""),
                user_agent=entry.get("userAgent", ""),
                verb=entry["verb"],
                resource=f"{resource}/{sub}" if sub else resource,
                namespace=about.get("namespace", ""),
                name=about.get("name", ""),
                code=(entry.get("responseStatus") or {}).get("code", 0),
                received_at=datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp(),
                answered_at=datetime.fromisoformat(entry["stageTimestamp"]).timestamp(),
            )

    def forget_history(self) -> None:
        """Forget what was before now: in etcd, and in the API server's watch caches by starting it anew.

        Raises `ApiError` or `StartError`.
        """
        revision = self._etcd("/v3/kv/range", {"key": b64encode(b"/").decode(), "limit": 1})["header"]
        assert isinstance(revision, dict)
        self._etcd("/v3/kv/compaction", {"revision": revision["revision"], "physical": True})
        self.restart()

    def restart(self) -> None:
        """Start API server and controllers anew, on what is stored. Raises `StartError`."""
        for name in ("kube-controller-manager", "kube-apiserver"):
            self._child(name).kill()
        self._start_apiserver()
        self._start_controllers()  # anew, since those that lose their server wait long before they try again

    def _etcd(self, path: str, body: Mapping[str, object]) -> JsonObject:
        connection = http.client.HTTPConnection(LOOPBACK, self._etcd_port, timeout=30.0)
        try:
            connection.request("POST", path, json.dumps(body))
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise ApiError(f"etcd: POST {path}: {response.status} {content.decode()}")
        document: JsonObject = orjson.loads(content)
        return document

    def report(self) -> str:
        """The last lines of every process's log, for a test that failed."""
        return "\n".join(f"--- {child.name} ({child.log}) ---\n{child.tail()}" for child in self._children)
