"""Slotwise beside a real control plane: its two processes, each with its own account, and kube-scheduler with the extender."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from devices.admission_objects import (
    NAMESPACE,
    WRITER_ACCOUNTS,
    Document,
    admission_documents,
)
from devices.config import optional_families
from devices.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CONFIG_MAPS,
    Resource,
)
from devices.managed import managed_resources
from lab.control_plane import ADMIN, ControlPlane
from lab.families import every_family
from lab.processes import LOOPBACK, Child, answers
from lab.services import SCHEDULER_NAME
from lab.webhooks import webhook_configurations

__all__ = ["Slotwise", "scheduler_configuration"]

_START_S: Final = 30.0
_LISTENING: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+), 127\.0\.0\.1:(\d+)")
_KEY_WRITERS: Final = (*WRITER_ACCOUNTS, ADMIN.name)
"""The lab writes what device plugins write, as the administrator."""
_WRITERS: Final = f"--key-writers={','.join(_KEY_WRITERS)}"
_READ: Final = ("get", "list", "watch")
_RULES: Final[Mapping[str, Sequence[Mapping[str, object]]]] = {
    "slotwise-webhook": [
        {"apiGroups": [""], "resources": ["pods", "nodes", "resourcequotas"], "verbs": _READ},
        # Records of admissions, in the namespace of its own.
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ],
    "slotwise-scheduler": [
        {"apiGroups": [""], "resources": ["pods", "nodes", "resourcequotas"], "verbs": _READ},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["patch"]},
        {"apiGroups": [""], "resources": ["pods/binding", "events"], "verbs": ["create"]},
    ],
}


class Slotwise:
    """A context manager: everything runs inside, and the API server calls no webhook of ours afterwards."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._stack = ExitStack()
        self.namespace = NAMESPACE
        """Of its service accounts."""
        self.views = ""
        """Base address of the scheduler's read-only port."""
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def scheduler_user(self) -> str:
        """The name under which the API server knows the extender."""
        return f"system:serviceaccount:{self.namespace}:slotwise-scheduler"

    def stop_webhook(self) -> None:
        """End every webhook process; returns once none is left."""
        for child in self.children:
            if child.name == "webhook":
                child.stop()

    def report(self) -> str:
        """The last lines of both processes' logs, for a test that failed."""
        return "\n".join(f"--- {child.name} ({child.log}) ---\n{child.tail()}" for child in self.children)

    def _start(self, stack: ExitStack) -> None:
        if self._plane.request("GET", f"/api/v1/namespaces/{self.namespace}")[0] != 200:
            self._plane.create_namespace(self.namespace)
        tls = self._folder / "tls"
        subprocess.run(
            [sys.executable, "-m", "cli", "certs", "create", "--dir", str(tls), "--host", LOOPBACK],
            check=True,
            capture_output=True,
        )
        pair = (f"--cert_file={tls / 'tls.crt'}", f"--key_file={tls / 'tls.key'}")
        records = f"--own-namespace={self.namespace}"
        admission, _ = self._run(stack, "webhook", "--quota-counts=admitted", records, _WRITERS, *pair)
        extender, views = self._run(stack, "scheduler", "--quota-counts=admitted")
        self.views = f"http://{LOOPBACK}:{views}"
        self._register_webhook(stack, f"https://{LOOPBACK}:{admission}", (tls / "ca.crt").read_bytes())
        scheduler = self._plane.start_scheduler(scheduler_configuration(f"http://{LOOPBACK}:{extender}"))
        stack.callback(scheduler.stop)

    def _run(self, stack: ExitStack, name: str, *flags: str) -> tuple[int, int]:
        """Start one of the processes; returns its two ports once it is ready."""
        account = f"slotwise-{name}"
        item = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}"
        if self._plane.request("GET", item)[0] != 200:
            self._plane.create_service_account(self.namespace, account, _RULES[account])
        token = self._plane.service_account_token(self.namespace, account)
        kubeconfig = self._plane.kubeconfig_with(token, f"{self.namespace}-{account}")
        child = Child(
            name,
            [
                *(sys.executable, "-m", name, f"--kubeconfig={kubeconfig}"),
                *(f"--http_bind={LOOPBACK}:0", f"--metrics-bind-address={LOOPBACK}:0", *flags),
                *(f"--enable-{family}" for family in optional_families()),
            ],
            self._folder / f"{name}.log",
            {**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        stack.callback(child.stop)
        self.children.append(child)
        child.wait_until(lambda: _LISTENING.search(child.log.read_text()) is not None, _START_S, "it listens")
        found = _LISTENING.search(child.log.read_text())
        assert found is not None
        port, plain = int(found[1]), int(found[2])
        child.wait_until(lambda: answers(plain, "/readyz"), _START_S, "it is ready")
        return port, plain

    def _register_webhook(self, stack: ExitStack, url: str, ca_pem: bytes) -> None:
        for resource, body in webhook_configurations(every_family(), url, ca_pem):
            self._plane.create(resource.collection(), body)
            stack.callback(self._plane.request, "DELETE", resource.item("slotwise"))
        parameters, policy, binding = admission_documents(every_family())["policy.yaml"]
        self._create(stack, CONFIG_MAPS, _with_writers(parameters))
        self._create(stack, ADMISSION_POLICIES, policy)
        self._create(stack, ADMISSION_POLICY_BINDINGS, binding)

    def _create(self, stack: ExitStack, resource: Resource, body: Document) -> None:
        namespace = self.namespace if resource.namespaced else None
        metadata = body["metadata"]
        assert isinstance(metadata, dict)
        self._plane.create(resource.collection(namespace), body)
        stack.callback(self._plane.request, "DELETE", resource.item(metadata["name"], namespace))


def _with_writers(parameters: Document) -> Document:
    data = parameters["data"]
    assert isinstance(data, dict)
    return {**parameters, "data": {**data, "keyWriters": ",".join(_KEY_WRITERS)}}


def scheduler_configuration(extender_url: str) -> dict[str, object]:
    """A KubeSchedulerConfiguration with Slotwise's extender, and waits short enough for tests."""
    extender = {
        "urlPrefix": extender_url,
        "filterVerb": "filter",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "weight": 1,
        "httpTimeout": "30s",
        "managedResources": managed_resources(every_family()),
    }
    return {
        "extenders": [extender],
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "profiles": [{"schedulerName": SCHEDULER_NAME}],
        "clientConnection": {"qps": 500, "burst": 1000},
    }
