"""The rights that each service says it needs are those of the calls in its code: none is forgotten, none is asked for nothing."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from certs.settings import KeptCertificates
from devices.kube.access import CERTIFICATES, FEED, METHODS, Access
from devices.kube.freshness import OwnPod
from devices.ledger import ADMITTED
from scheduler.access import accesses as scheduler_accesses
from scheduler.config import Settings as SchedulerSettings
from webhook.access import accesses as webhook_accesses
from webhook.config import AdmissionSettings
from webhook.config import Settings as WebhookSettings

ROOT = Path(__file__).parent.parent
SHARED = ("devices/kube/freshness.py",)
"""Beside the reflectors, what both services run of the client's package."""

SCHEDULER = SchedulerSettings(
    leader_elect=True,
    leader_elect_resource_name="lease",
    leader_elect_resource_namespace="ours",
    own_pod=OwnPod("ours", "p"),
)
WEBHOOK = WebhookSettings(
    admission=AdmissionSettings(quota_counts=ADMITTED),
    quota_annotation=True,
    certificates=KeptCertificates(secret="tls", namespace="ours", hosts=("webhook.ours.svc",)),
)

LEASE = frozenset(Access(verb, "leases", "coordination.k8s.io") for verb in ("list", "watch"))
SERVICES = {
    "scheduler": (("scheduler",), FEED | LEASE, scheduler_accesses(SCHEDULER, "ours")),
    "webhook": (("webhook", "certs"), FEED | CERTIFICATES, webhook_accesses(WEBHOOK, "ours")),
}
"""Packages with the calls, what reflectors follow, and what the service says it needs."""


def calls(*folders: str) -> Iterator[str]:
    """The client's calls by name that the code in these packages makes."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")] + [ROOT / path for path in SHARED]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.ctx, ast.Load):
                yield node.attr


def anywhere(access: Access) -> Access:
    return replace(access, namespace="", name="")


@pytest.mark.parametrize(("folders", "followed", "needed"), SERVICES.values(), ids=SERVICES)
def test_rights_are_those_of_the_calls(
    folders: tuple[str, ...], followed: frozenset[Access], needed: frozenset[Access]
) -> None:
    called = {access for name in calls(*folders) for access in METHODS[name]}
    assert {anywhere(access) for access in needed} == called | followed
