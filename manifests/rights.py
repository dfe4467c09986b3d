"""What manifests let our accounts do, beside what the processes in those manifests ask for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
import yaml

from devices.kube.access import Access
from devices.kube.protocols import JsonObject
from manifests.processes import (
    SCHEDULER_MODULE,
    WEBHOOK_MODULE,
    Variable,
    environment_of,
    module_of,
    scheduler_settings,
    webhook_settings,
)
from scheduler.access import KUBE_SCHEDULER_ROLES, kube_scheduler_accesses
from scheduler.access import accesses as scheduler_accesses
from webhook.access import accesses as webhook_accesses

__all__ = ["AccountRights", "compare"]

T = TypeVar("T")

ANY: Final = "*"
_KUBE_SCHEDULER: Final = "kube-scheduler"


class _Metadata(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class _Rule(msgspec.Struct, rename="camel", frozen=True):
    api_groups: list[str] = []
    resources: list[str] = []
    resource_names: list[str] = []
    verbs: list[str] = []
    non_resource_urls: list[str] = msgspec.field(default_factory=list, name="nonResourceURLs")


class _Role(msgspec.Struct, frozen=True):
    kind: str
    metadata: _Metadata = _Metadata()
    rules: list[_Rule] = []


class _Reference(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _Binding(msgspec.Struct, rename="camel", frozen=True):
    kind: str
    metadata: _Metadata = _Metadata()
    role_ref: _Reference = _Reference()
    subjects: list[_Reference] = []


class _Container(msgspec.Struct, frozen=True):
    name: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[Variable] = []


class _PodSpec(msgspec.Struct, rename="camel", frozen=True):
    service_account_name: str = "default"
    containers: list[_Container] = []


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _WorkloadSpec(msgspec.Struct, frozen=True):
    template: _Template = _Template()


class _Workload(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _WorkloadSpec = _WorkloadSpec()


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    data: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class AccountRights:
    """One service account: what its processes need, what it is given, and where the two differ."""

    namespace: str
    name: str
    processes: tuple[str, ...]
    """Containers that run with it, as `DEPLOYMENT/CONTAINER`."""
    needed: frozenset[Access]
    given: frozenset[Access]
    missing: tuple[Access, ...]
    """Needed and not given."""
    too_much: tuple[str, ...]
    """Given and not needed, in words."""

    @property
    def is_right(self) -> bool:
        """Whether it may do what it has to, and nothing else."""
        return not self.missing and not self.too_much


@dataclass(slots=True)
class _Account:
    processes: list[str] = field(default_factory=list)
    needed: set[Access] = field(default_factory=set)
    given: set[Access] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    """Roles bound whose rules are not in the manifests."""
    may_have: set[str] = field(default_factory=set)
    """Of those, the ones that Kubernetes ships for a container it runs."""


def compare(documents: Sequence[JsonObject]) -> Sequence[AccountRights]:
    """Each account that a Deployment of the manifests runs with, ordered by namespace and name.

    Raises `ProcessError` for a command line that starts nothing, `msgspec.ValidationError` for objects of a wrong shape.
    """
    accounts: dict[tuple[str, str], _Account] = {}
    for workload in _decoded(documents, "Deployment", _Workload):
        spec = workload.spec.template.spec
        account = accounts.setdefault((workload.metadata.namespace, spec.service_account_name), _Account())
        for container in spec.containers:
            account.processes.append(f"{workload.metadata.name}/{container.name}")
            account.needed |= _needs(container, workload.metadata.namespace, documents, account)
    _give(documents, accounts)
    return [_compared(place, account) for place, account in sorted(accounts.items())]


def _decoded(documents: Iterable[JsonObject], kind: str, into: type[T]) -> list[T]:
    return [msgspec.convert(one, into) for one in documents if one.get("kind") == kind]


def _needs(
    container: _Container, namespace: str, documents: Sequence[JsonObject], account: _Account
) -> frozenset[Access]:
    line = [*container.command, *container.args]
    environment = environment_of(container.env, namespace)
    module = module_of(line)
    if module == WEBHOOK_MODULE:
        return webhook_accesses(webhook_settings(line, environment), namespace)
    if module == SCHEDULER_MODULE:
        return scheduler_accesses(scheduler_settings(line, environment), namespace)
    if container.name == _KUBE_SCHEDULER:
        account.may_have |= KUBE_SCHEDULER_ROLES
        name, place = _lease(documents)
        return kube_scheduler_accesses(name, place) if name else frozenset()
    return frozenset()


def _lease(documents: Sequence[JsonObject]) -> tuple[str, str]:
    """Name and namespace of the Lease by the KubeSchedulerConfiguration; empty where there is no election."""
    for config_map in _decoded(documents, "ConfigMap", _ConfigMap):
        for text in config_map.data.values():
            found = yaml.safe_load(text) if "KubeSchedulerConfiguration" in text else None
            election = found.get("leaderElection") if isinstance(found, dict) else None
            if isinstance(election, dict) and election.get("leaderElect"):
                return str(election.get("resourceName", "")), str(election.get("resourceNamespace", ""))
    return "", ""


def _give(documents: Sequence[JsonObject], accounts: Mapping[tuple[str, str], _Account]) -> None:
    """Add to each account what the roles bound to it allow."""
    roles: dict[tuple[str, str, str], _Role] = {}
    for kind in ("Role", "ClusterRole"):
        for role in _decoded(documents, kind, _Role):
            roles[kind, role.metadata.namespace, role.metadata.name] = role
    for kind in ("RoleBinding", "ClusterRoleBinding"):
        for binding in _decoded(documents, kind, _Binding):
            scope = binding.metadata.namespace if kind == "RoleBinding" else ""
            where = scope if binding.role_ref.kind == "Role" else ""
            found = roles.get((binding.role_ref.kind, where, binding.role_ref.name))
            for subject in binding.subjects:
                account = accounts.get((subject.namespace, subject.name)) if subject.kind == "ServiceAccount" else None
                if account is None:
                    continue
                if found is None:
                    account.elsewhere.add(binding.role_ref.name)
                else:
                    account.given |= set(_granted(found, scope))


def _granted(role: _Role, scope: str) -> Iterator[Access]:
    for rule in role.rules:
        for group in rule.api_groups:
            for resource in rule.resources:
                for verb in rule.verbs:
                    for name in rule.resource_names or ("",):
                        yield Access(verb, resource, group, scope, name)
        for path in rule.non_resource_urls:
            for verb in rule.verbs:
                yield Access(verb, path)


def _allows(given: Access, needed: Access) -> bool:
    return (
        given.verb in (ANY, needed.verb)
        and given.resource in (ANY, needed.resource)
        and given.group in (ANY, needed.group)
        and given.namespace in ("", needed.namespace)
        and given.name in ("", needed.name)
    )


def _compared(place: tuple[str, str], account: _Account) -> AccountRights:
    missing = sorted(one for one in account.needed if not any(_allows(given, one) for given in account.given))
    extra = [str(one) for one in sorted(account.given - account.needed) if not _is_only_way(one, account)]
    foreign = [
        f"everything that the role {name} allows, whose rules are not in these manifests"
        for name in sorted(account.elsewhere - account.may_have)
    ]
    namespace, name = place
    return AccountRights(
        namespace,
        name,
        tuple(account.processes),
        frozenset(account.needed),
        frozenset(account.given),
        tuple(missing),
        (*extra, *foreign),
    )


def _is_only_way(given: Access, account: _Account) -> bool:
    """`create` cannot be narrowed to a name: the object's name is not known to RBAC when it is asked."""
    if given.verb != "create" or given.name:
        return False
    return any(
        one.verb == "create" and _allows(given, one) and one.namespace == given.namespace for one in account.needed
    )
