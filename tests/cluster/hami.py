"""An installed HAMi with its extender's image changed to ours, on a real control plane: its roles, its Lease, its configuration."""

import os
import re
import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from certs.files import write_pair
from certs.pki import create_ca, issue_serving
from devices.managed import managed_resources
from lab.control_plane import ControlPlane
from lab.families import every_family
from lab.processes import LOOPBACK, Child, answers
from tests.drop_in.chart import (
    CLUSTER_RULES,
    NAMESPACE,
    NAMESPACE_RULES,
    Values,
    command,
    mutating_webhook,
    pod_labels,
    scheduler_configuration,
)

__all__ = ["ACCOUNT", "POD", "Hami"]

ACCOUNT: Final = "hami-scheduler"
POD: Final = "hami-scheduler-0"
_START_S: Final = 30.0
_LISTENING: Final = re.compile(r"listening on 127\.0\.0\.1:(\d+), 127\.0\.0\.1:(\d+)")
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
VALUES: Final = Values(ascend=True, iluvatar=True)


class Hami:
    """A context manager: everything runs inside, and the API server calls no webhook of ours afterwards."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self._stack = ExitStack()
        self.port = 0
        """HAMi's own, with TLS."""
        self.views = ""
        """Base address of the port with metrics and views."""
        self.children: list[Child] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def user(self) -> str:
        """The name under which the API server knows the extender."""
        return f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"

    def report(self) -> str:
        """The last lines of the logs, for a test that failed."""
        return "\n".join(f"--- {child.name} ({child.log}) ---\n{child.tail()}" for child in self.children)

    def _start(self, stack: ExitStack) -> None:
        self._install(stack)
        now = datetime.now(UTC)
        authority = create_ca("HAMi", now=now, days=1)
        certificate, key = self._folder / "tls.crt", self._folder / "tls.key"
        write_pair(issue_serving(authority, [LOOPBACK], now=now, days=1), certificate, key)
        self._start_extender(stack, certificate, key)
        url = f"https://{LOOPBACK}:{self.port}"
        hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        self._plane.create(hooks, mutating_webhook(url, authority.certificate_pem()))
        stack.callback(self._plane.request, "DELETE", f"{hooks}/hami-webhook")
        configuration = {
            **scheduler_configuration(url, managed_resources(every_family())),
            # Waits short enough for tests.
            "podInitialBackoffSeconds": 1,
            "podMaxBackoffSeconds": 1,
        }
        scheduler = self._plane.start_scheduler(configuration)
        stack.callback(scheduler.stop)
        self.children.append(scheduler)

    def _install(self, stack: ExitStack) -> None:
        """Account, roles, and the pod in which the extender believes to run."""
        plane = self._plane
        plane.create_service_account(NAMESPACE, ACCOUNT, CLUSTER_RULES)
        stack.callback(plane.request, "DELETE", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{ACCOUNT}")
        roles = f"{_RBAC}/namespaces/{NAMESPACE}"
        group = "rbac.authorization.k8s.io"
        plane.create(f"{roles}/roles", {"metadata": {"name": ACCOUNT}, "rules": list(NAMESPACE_RULES)})
        subjects = [
            {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": ACCOUNT},
            # In the chart kube-scheduler shares the account; here it has the one of the fixture.
            {"kind": "User", "apiGroup": group, "name": "system:kube-scheduler"},
        ]
        binding = {
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": ACCOUNT},
            "subjects": subjects,
        }
        plane.create(f"{roles}/rolebindings", binding)
        for kind in ("roles", "rolebindings"):
            stack.callback(plane.request, "DELETE", f"{roles}/{kind}/{ACCOUNT}")
        pod = {
            "metadata": {"name": POD, "labels": pod_labels()},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "pause", "image": "pause"}]},
        }
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        plane.create(pods, pod)
        stack.callback(plane.request, "DELETE", f"{pods}/{POD}", {"gracePeriodSeconds": 0})

    def _start_extender(self, stack: ExitStack, certificate: Path, key: Path) -> None:
        kubeconfig = self._plane.kubeconfig_with(self._plane.service_account_token(NAMESPACE, ACCOUNT), ACCOUNT)
        child = Child(
            "extender",
            [
                *(sys.executable, "-m", "cli.hami", *command(VALUES)[1:]),
                # Ports and files of the test's; all else is the chart's.
                *(f"--http_bind={LOOPBACK}:0", f"--metrics-bind-address={LOOPBACK}:0", "--device-config-file="),
                *(f"--cert_file={certificate}", f"--key_file={key}"),
            ],
            self._folder / "extender.log",
            {
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                "KUBECONFIG": str(kubeconfig),
                "POD_NAME": POD,
                "POD_NAMESPACE": NAMESPACE,
                "HAMI_NODELOCK_EXPIRE": "5m",
            },
        )
        stack.callback(child.stop)
        self.children.append(child)
        child.wait_until(lambda: _LISTENING.search(child.log.read_text()) is not None, _START_S, "it listens")
        found = _LISTENING.search(child.log.read_text())
        assert found is not None
        self.port, plain = int(found[1]), int(found[2])
        self.views = f"http://{LOOPBACK}:{plain}"
        child.wait_until(lambda: answers(plain, "/readyz"), _START_S, "it is ready")

    def role(self) -> str:
        """The role label of the extender's pod, by which the chart's Service finds it; empty where it has none."""
        _, pod = self._plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{POD}")
        metadata = pod["metadata"]
        assert isinstance(metadata, dict)
        return str((metadata.get("labels") or {}).get("hami.io/scheduler-role", ""))
