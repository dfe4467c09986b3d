"""The checks: each a plain function of the facts, in the order in which a pod's way leads past what they look at."""

from collections.abc import Callable, Iterable, Sequence

from cli.doctor.checks.admission import admission_policy, mutating_webhook, other_admission, validating_webhook
from cli.doctor.checks.certificates import ca_bundle, expiry
from cli.doctor.checks.cluster import api_server, clock
from cli.doctor.checks.nodes import device_plugins, node_locks, registrations
from cli.doctor.checks.pods import device_pod, forged_pod, plain_pod, privileged_pod, waiting_pods
from cli.doctor.checks.rights import rights
from cli.doctor.checks.scheduling import extender, leader, scheduler_configuration, scheduler_version
from cli.doctor.checks.workloads import scheduler_pods, webhook_pods, webhook_service
from cli.doctor.facts import Facts
from cli.doctor.findings import Finding

__all__ = ["CHECKS", "examine"]

Check = Callable[[Facts], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    api_server,
    clock,
    webhook_pods,
    webhook_service,
    mutating_webhook,
    validating_webhook,
    ca_bundle,
    expiry,
    admission_policy,
    other_admission,
    plain_pod,
    device_pod,
    privileged_pod,
    forged_pod,
    scheduler_pods,
    scheduler_configuration,
    scheduler_version,
    extender,
    leader,
    rights,
    registrations,
    device_plugins,
    node_locks,
    waiting_pods,
)


def examine(facts: Facts) -> Sequence[Finding]:
    """What all checks find, in their order."""
    return [finding for check in CHECKS for finding in check(facts)]
