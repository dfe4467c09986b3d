"""The fields of Kubernetes objects that the doctor looks at; everything else is skipped while decoding."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import msgspec

from devices.kube.protocols import JsonObject
from manifests.processes import Variable

__all__ = [
    "ClientConfig",
    "ConfigMap",
    "Container",
    "ContainerStatus",
    "Endpoint",
    "EndpointSlice",
    "Lease",
    "Metadata",
    "Pod",
    "Policy",
    "PolicyBinding",
    "Secret",
    "Service",
    "Webhook",
    "WebhookConfiguration",
    "Workload",
    "read",
]

T = TypeVar("T")
NOTHING: Mapping[str, str] = MappingProxyType({})


class _Struct(msgspec.Struct, rename="camel", frozen=True):
    pass


class Metadata(_Struct, frozen=True):
    """`metadata` of any object."""

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Object(_Struct, frozen=True):
    metadata: Metadata = Metadata()

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @property
    def annotations(self) -> Mapping[str, str]:
        """`metadata.annotations`, empty when absent."""
        return self.metadata.annotations or NOTHING

    @property
    def labels(self) -> Mapping[str, str]:
        """`metadata.labels`, empty when absent."""
        return self.metadata.labels or NOTHING


class Container(_Struct, frozen=True):
    """A container of a pod or of a pod template."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Variable] | None = None

    @property
    def line(self) -> Sequence[str]:
        """Command and arguments."""
        return (*(self.command or ()), *(self.args or ()))


class Condition(_Struct, frozen=True):
    """One of `status.conditions`."""

    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class _Reason(_Struct, frozen=True):
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None


class _State(_Struct, frozen=True):
    waiting: _Reason | None = None
    terminated: _Reason | None = None


class ContainerStatus(_Struct, frozen=True):
    """One of `status.containerStatuses`."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: _State | None = None
    last_state: _State | None = None

    @property
    def trouble(self) -> str:
        """Why it does not run, as the kubelet words it; empty where nothing is said."""
        for state in (self.state, self.last_state):
            for found in (state.waiting, state.terminated) if state else ():
                if found is not None and (found.reason or found.message):
                    code = f", exit status {found.exit_code}" if found.exit_code is not None else ""
                    return f"{found.reason or 'stopped'}{code}{': ' + found.message.strip() if found.message else ''}"
        return ""


class _PodSpec(_Struct, frozen=True):
    node_name: str | None = None
    scheduler_name: str | None = None
    service_account_name: str | None = None
    containers: list[Container] = []


class _PodStatus(_Struct, frozen=True):
    phase: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(_Object, frozen=True):
    """A pod of the installation, or one that waits for cards."""

    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its Ready condition holds and it is not on its way out."""
        ready = any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())
        return ready and self.metadata.deletion_timestamp is None


class _Template(_Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _WorkloadSpec(_Struct, frozen=True):
    replicas: int | None = None
    template: _Template = _Template()


class _WorkloadStatus(_Struct, frozen=True):
    ready_replicas: int | None = None
    updated_replicas: int | None = None
    conditions: list[Condition] | None = None
    number_ready: int | None = None
    desired_number_scheduled: int | None = None


class Workload(_Object, frozen=True):
    """A Deployment or a DaemonSet."""

    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()

    def container(self, name: str) -> Container | None:
        """Its container of that name."""
        return next((c for c in self.spec.template.spec.containers if c.name == name), None)


class _Port(_Struct, frozen=True):
    name: str | None = None
    port: int | None = None


class _ServiceSpec(_Struct, frozen=True):
    ports: list[_Port] | None = None


class Service(_Object, frozen=True):
    """A Service."""

    spec: _ServiceSpec = _ServiceSpec()


class _EndpointConditions(_Struct, frozen=True):
    ready: bool | None = None


class Endpoint(_Struct, frozen=True):
    """One of a slice's endpoints; no word on readiness means ready, as in Kubernetes."""

    addresses: list[str] | None = None
    conditions: _EndpointConditions = _EndpointConditions()

    @property
    def is_ready(self) -> bool:
        """Whether traffic goes there."""
        return self.conditions.ready is not False


class EndpointSlice(_Object, frozen=True):
    """Where a Service's traffic goes."""

    endpoints: list[Endpoint] | None = None


class _LeaseSpec(_Struct, frozen=True):
    holder_identity: str | None = None
    renew_time: str | None = None
    lease_duration_seconds: int | None = None


class Lease(_Object, frozen=True):
    """Who leads."""

    spec: _LeaseSpec = _LeaseSpec()


class ConfigMap(_Object, frozen=True):
    """A ConfigMap."""

    data: dict[str, str] | None = None

    def text(self, key: str) -> str | None:
        """One of its files."""
        return (self.data or {}).get(key)


class Secret(_Object, frozen=True):
    """A Secret, of which nothing but certificates is kept."""

    data: dict[str, str] | None = None


class _ServiceReference(_Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    path: str | None = None
    port: int | None = None


class ClientConfig(_Struct, frozen=True):
    """How the API server reaches a webhook."""

    url: str | None = None
    service: _ServiceReference | None = None
    ca_bundle: str | None = None

    @property
    def path(self) -> str:
        """The path it calls."""
        if self.service is not None:
            return self.service.path or ""
        rest = (self.url or "").partition("://")[2]
        return rest[rest.find("/") :] if "/" in rest else ""


class _Rule(_Struct, frozen=True):
    operations: list[str] | None = None
    resources: list[str] | None = None


class Webhook(_Struct, frozen=True):
    """One webhook of a configuration."""

    name: str = ""
    client_config: ClientConfig = ClientConfig()
    failure_policy: str | None = None
    rules: list[_Rule] | None = None

    def covers(self, operation: str, resource: str) -> bool:
        """Whether a rule names both."""
        return any(
            {operation, "*"} & set(rule.operations or ()) and {resource, "*", "*/*"} & set(rule.resources or ())
            for rule in self.rules or ()
        )


class WebhookConfiguration(_Object, frozen=True):
    """A Mutating- or ValidatingWebhookConfiguration."""

    webhooks: list[Webhook] | None = None


class _ParamRef(_Struct, frozen=True):
    name: str | None = None
    namespace: str | None = None
    parameter_not_found_action: str | None = None


class _PolicySpec(_Struct, frozen=True):
    failure_policy: str | None = None
    policy_name: str | None = None
    validation_actions: list[str] | None = None
    param_ref: _ParamRef | None = None


class _PolicyStatus(_Struct, frozen=True):
    type_checking: JsonObject | None = None


class Policy(_Object, frozen=True):
    """A ValidatingAdmissionPolicy."""

    spec: _PolicySpec = _PolicySpec()
    status: _PolicyStatus = _PolicyStatus()


class PolicyBinding(_Object, frozen=True):
    """A ValidatingAdmissionPolicyBinding."""

    spec: _PolicySpec = _PolicySpec()


def read(document: object, kind: type[T]) -> T:
    """The object decoded. Raises `msgspec.ValidationError` for a shape that no API server sends."""
    return msgspec.convert(document, kind)
