"""kube-scheduler and the extender beside it: do they know of each other, and who leads?"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

import msgspec
import yaml

from cli.doctor.checks.cluster import minor_of
from cli.doctor.facts import EXTENDER, KUBE_SCHEDULER, KUBE_SCHEDULER_CONFIG, SCHEDULER, Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well
from devices.managed import managed_resources

__all__ = ["extender", "leader", "scheduler_configuration", "scheduler_version"]

_APPLY: Final = "slotwise manifests ha | kubectl apply -f -"
_FILE: Final = "kube-scheduler.yaml"
_LEADER_LABEL: Final = "hami.io/scheduler-role"
_SKEW_MINORS: Final = 1
"""kube-scheduler may be one minor older than the API server, never newer (Kubernetes' version skew policy)."""


class _Managed(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    ignored_by_scheduler: bool = False


class _Extender(msgspec.Struct, rename="camel", frozen=True):
    url_prefix: str = msgspec.field(default="", name="urlPrefix")
    filter_verb: str = ""
    bind_verb: str = ""
    prioritize_verb: str = ""
    node_cache_capable: bool = False
    ignorable: bool = False
    managed_resources: list[_Managed] = []


class _Profile(msgspec.Struct, rename="camel", frozen=True):
    scheduler_name: str = "default-scheduler"


class _Election(msgspec.Struct, rename="camel", frozen=True):
    leader_elect: bool = True
    resource_name: str = ""
    resource_namespace: str = ""


class _Configuration(msgspec.Struct, rename="camel", frozen=True):
    extenders: list[_Extender] = []
    profiles: list[_Profile] = []
    leader_election: _Election = _Election()
    percentage_of_nodes_to_score: int | None = None


def _configuration(facts: Facts) -> _Configuration | str:
    if "configmaps" in facts.unread:
        return f"ConfigMaps cannot be read: {facts.unread['configmaps'].why}"
    found = facts.config_maps.get(KUBE_SCHEDULER_CONFIG)
    text = found.text(_FILE) if found is not None else None
    if text is None:
        return f"there is no ConfigMap {facts.namespace}/{KUBE_SCHEDULER_CONFIG} with a {_FILE}"
    try:
        return msgspec.convert(yaml.safe_load(text), _Configuration)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        return f"{_FILE} cannot be read: {' '.join(str(error).split())}"


def scheduler_configuration(facts: Facts) -> Iterator[Finding]:
    """Does kube-scheduler ask the extender, for every resource, under the name that pods are given?"""
    check = "scheduler-configuration"
    configuration = _configuration(facts)
    if isinstance(configuration, str):
        yield problem(check, configuration, _APPLY)
        return
    found = [*_disagreements(facts, configuration)]
    for text in found:
        yield problem(check, text, f"{_APPLY}; kubectl -n {facts.namespace} rollout restart deployment {SCHEDULER}")
    if (
        configuration.percentage_of_nodes_to_score not in (None, 0, 100)
        or not configuration.percentage_of_nodes_to_score
    ):
        yield warning(
            check,
            f"percentageOfNodesToScore is {configuration.percentage_of_nodes_to_score}: in large clusters the extender is not"
            " offered every node, and pods may wait although cards are free",
            "set it to 100",
        )
    elif not found:
        yield well(check, "kube-scheduler asks the extender for every managed resource")


def _disagreements(facts: Facts, configuration: _Configuration) -> Iterator[str]:
    extenders = [e for e in configuration.extenders if e.filter_verb == "filter" and e.bind_verb == "bind"]
    if not extenders:
        yield "no extender with filterVerb filter and bindVerb bind is configured: no card is ever given"
        return
    found = extenders[0]
    if found.ignorable:
        yield "the extender is ignorable: while it does not answer, device pods are bound without cards"
    if not found.node_cache_capable:
        yield "nodeCacheCapable is not set: every call carries all nodes whole"
    config = facts.device_config
    if isinstance(config, str):
        yield f"the device configuration cannot be used: {config}"
    else:
        named = {one.name for one in found.managed_resources}
        missing = [str(one["name"]) for one in managed_resources(config) if one["name"] not in named]
        if missing:
            yield f"managedResources lack {', '.join(missing[:3])}{' …' if len(missing) > 3 else ''}: pods that ask for those never start"
        counted = sorted(one.name for one in found.managed_resources if not one.ignored_by_scheduler)
        if counted:
            yield f"{', '.join(counted[:3])} not ignoredByScheduler: kube-scheduler counts shares as whole cards"
    settings = facts.scheduler_settings
    if isinstance(settings, str):
        yield f"the extender's command line cannot be used: {settings}"
        return
    if urlsplit(found.url_prefix).port != settings.port:
        yield f"urlPrefix {found.url_prefix} is not where the extender listens ({settings.host}:{settings.port})"
    names = {profile.scheduler_name for profile in configuration.profiles}
    webhook = facts.webhook_settings
    if not isinstance(webhook, str) and webhook.admission.scheduler_name not in names:
        yield f"the webhook gives pods the scheduler {webhook.admission.scheduler_name}, and kube-scheduler serves {', '.join(sorted(names)) or 'none'}"
    if settings.node_choice == "scheduler" and not found.prioritize_verb:
        yield "--node-choice=scheduler needs prioritizeVerb: without it nodes are chosen blindly"
    if found.prioritize_verb and settings.node_choice == "extender":
        yield "prioritizeVerb without --node-choice=scheduler: one call a pod for nothing"
    election = configuration.leader_election
    if settings.leader_elect and (election.resource_name, election.resource_namespace) != (
        settings.leader_elect_resource_name,
        settings.leader_elect_resource_namespace,
    ):
        yield (
            f"kube-scheduler competes for Lease {election.resource_namespace}/{election.resource_name}, the extender watches"
            f" {settings.leader_elect_resource_namespace}/{settings.leader_elect_resource_name}: it never leads"
        )
    deployment = facts.deployments.get(SCHEDULER)
    replicas = (deployment.spec.replicas or 1) if deployment is not None else 1
    if replicas > 1 and not (election.leader_elect and settings.leader_elect):
        yield f"{replicas} replicas without leader election on both sides: cards can be given twice"


def scheduler_version(facts: Facts) -> Iterator[Finding]:
    """Does kube-scheduler's version go with the API server's?"""
    check = "scheduler-version"
    container = facts.container(SCHEDULER, KUBE_SCHEDULER)
    if container is None:
        yield unknown(check, "there is no kube-scheduler container to look at", "repair scheduler-pods")
        return
    tag = re.search(r":v?(1\.\d+)", container.image)
    ours, server = (minor_of(tag[1]) if tag else None), minor_of(facts.version)
    if ours is None or server is None:
        yield unknown(check, f"the image {container.image} tells no version", "compare it with kubectl version")
    elif ours > server or server - ours > _SKEW_MINORS:
        yield problem(
            check,
            f"kube-scheduler 1.{ours} does not go with API server 1.{server}: it may be one minor older and not newer",
            f"slotwise manifests ha --set kube-version={facts.version.removeprefix('v')} | kubectl apply -f -",
        )
    else:
        yield well(check, f"kube-scheduler 1.{ours} goes with API server 1.{server}")


def extender(facts: Facts) -> Iterator[Finding]:
    """Does the extender in each scheduler pod answer?"""
    check = "extender"
    pods = facts.pods_of("scheduler")
    if not pods:
        yield unknown(check, "there is no scheduler pod", "repair scheduler-pods")
        return
    for pod in pods:
        status = next((s for s in pod.status.container_statuses or () if s.name == EXTENDER), None)
        if status is None or not status.ready:
            why = status.trouble if status is not None else "the kubelet has not started it"
            yield problem(
                check,
                f"the extender of {pod.name} is not ready: {why or 'its books are not complete'}",
                f"kubectl -n {facts.namespace} logs {pod.name} -c {EXTENDER}; its /readyz tells why",
            )
            return
    yield well(check, f"the extenders of {len(pods)} pods are ready")


def leader(facts: Facts) -> Iterator[Finding]:
    """Does one of our pods hold the Lease, and does it know?"""
    check = "leader"
    settings = facts.scheduler_settings
    if isinstance(settings, str):
        yield unknown(check, settings, "repair scheduler-configuration")
        return
    if not settings.leader_elect:
        yield well(check, "leader election is off: the one replica leads")
        return
    name = settings.leader_elect_resource_name
    if "leases" in facts.unread:
        yield unknown(
            check, f"Leases cannot be read: {facts.unread['leases'].why}", "run the doctor as somebody who may"
        )
        return
    lease = facts.leases.get(name)
    holder = (lease.spec.holder_identity or "") if lease is not None else ""
    if lease is None or not holder:
        yield problem(
            check,
            f"nobody holds Lease {facts.namespace}/{name}: no pod is scheduled",
            f"kubectl -n {facts.namespace} logs deployment/{SCHEDULER} -c {KUBE_SCHEDULER}",
        )
        return
    renewed = _time(lease.spec.renew_time)
    age = (facts.server_time or facts.now) - renewed if renewed is not None else timedelta(0)
    if age > timedelta(seconds=2 * (lease.spec.lease_duration_seconds or 15)):
        yield problem(
            check,
            f"Lease {name} was last renewed {age.total_seconds():.0f} s ago by {holder}: nobody leads",
            f"kubectl -n {facts.namespace} logs deployment/{SCHEDULER} -c {KUBE_SCHEDULER}",
        )
        return
    pods = facts.pods_of("scheduler")
    holding = [pod for pod in pods if holder.startswith(f"{pod.name}_")]
    if not holding:
        yield problem(
            check,
            f"Lease {name} is held by {holder}, which is none of our pods: our extenders refuse every call",
            "end the other kube-scheduler that competes for this Lease, or give one of them another Lease name",
        )
        return
    if holding[0].labels.get(_LEADER_LABEL) != "leader":
        yield warning(
            check,
            f"{holding[0].name} holds the Lease, but its extender has not taken over (label {_LEADER_LABEL})",
            f"normal for some seconds after a change; else: kubectl -n {facts.namespace} logs {holding[0].name} -c {EXTENDER}",
        )
        return
    yield well(check, f"{holding[0].name} leads")


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
