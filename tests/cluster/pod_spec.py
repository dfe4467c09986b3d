"""The parts of a pod that the fixture's kubelet acts on. A field that it neither knows nor may pass over is refused, not ignored."""

from collections.abc import Mapping
from typing import Final

import msgspec

__all__ = [
    "Container",
    "EnvVar",
    "Item",
    "Pod",
    "Probe",
    "ProjectedSource",
    "TokenSource",
    "UnsupportedPodError",
    "Volume",
    "VolumeMount",
    "decode_pod",
]


class UnsupportedPodError(Exception):
    """A manifest asks for something that the fixture's kubelet cannot do; the text names it."""


class _Struct(msgspec.Struct, rename="camel", frozen=True):
    """Passes over what it does not name."""


class _Strict(msgspec.Struct, rename="camel", frozen=True, forbid_unknown_fields=True):
    """Refuses what it does not name."""


class FieldRef(_Strict, frozen=True):
    field_path: str
    api_version: str = "v1"


class KeySource(_Strict, frozen=True):
    """A key of a ConfigMap or Secret."""

    name: str
    key: str
    optional: bool = False


class EnvSource(_Strict, frozen=True):
    field_ref: FieldRef | None = None
    config_map_key_ref: KeySource | None = None
    secret_key_ref: KeySource | None = None


class EnvVar(_Strict, frozen=True):
    name: str
    value: str = ""
    value_from: EnvSource | None = None


class Port(_Struct, frozen=True):
    container_port: int
    name: str = ""


class VolumeMount(_Strict, frozen=True):
    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    recursive_read_only: str = ""


class HttpGet(_Strict, frozen=True):
    port: int | str
    path: str = "/"
    scheme: str = "HTTP"


class Probe(_Strict, frozen=True):
    """Times are in seconds."""

    http_get: HttpGet
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    success_threshold: int = 1
    failure_threshold: int = 3


class Sleep(_Strict, frozen=True):
    seconds: int


class Hook(_Strict, frozen=True):
    sleep: Sleep


class Lifecycle(_Strict, frozen=True):
    pre_stop: Hook | None = None


class SecurityContext(_Struct, frozen=True):
    read_only_root_filesystem: bool = False
    allow_privilege_escalation: bool = True
    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None


class Container(_Strict, frozen=True):
    """One container of a pod."""

    name: str
    image: str
    command: list[str] = []
    args: list[str] = []
    env: list[EnvVar] = []
    ports: list[Port] = []
    volume_mounts: list[VolumeMount] = []
    startup_probe: Probe | None = None
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    lifecycle: Lifecycle = Lifecycle()
    security_context: SecurityContext = SecurityContext()
    # Without meaning here: the machine is not divided, and nothing is pulled.
    resources: dict[str, object] = {}
    image_pull_policy: str = ""
    termination_message_path: str = ""
    termination_message_policy: str = ""

    def port(self, wanted: int | str) -> int:
        """The number of a port given by number or name. Raises `UnsupportedPodError` for an unknown name."""
        if isinstance(wanted, int):
            return wanted
        for port in self.ports:
            if port.name == wanted:
                return port.container_port
        raise UnsupportedPodError(f"container {self.name} has no port {wanted!r}")


class Item(_Strict, frozen=True):
    key: str
    path: str
    mode: int | None = None


class DownwardItem(_Strict, frozen=True):
    path: str
    field_ref: FieldRef
    mode: int | None = None


class ConfigMapSource(_Strict, frozen=True):
    name: str
    items: list[Item] | None = None
    default_mode: int = 0o644
    optional: bool = False


class SecretSource(_Strict, frozen=True):
    secret_name: str
    items: list[Item] | None = None
    default_mode: int = 0o644
    optional: bool = False


class ProjectedSecret(_Strict, frozen=True):
    name: str
    items: list[Item] | None = None
    optional: bool = False


class TokenSource(_Strict, frozen=True):
    path: str
    expiration_seconds: int = 3600
    audience: str = ""


class DownwardSource(_Strict, frozen=True):
    items: list[DownwardItem]


class ProjectedSource(_Strict, frozen=True):
    """One of them is set."""

    service_account_token: TokenSource | None = None
    config_map: ConfigMapSource | None = None
    secret: ProjectedSecret | None = None
    downward_api: DownwardSource | None = msgspec.field(default=None, name="downwardAPI")


class Projected(_Strict, frozen=True):
    sources: list[ProjectedSource]
    default_mode: int = 0o644


class Volume(_Strict, frozen=True):
    """One of the sources is set."""

    name: str
    config_map: ConfigMapSource | None = None
    secret: SecretSource | None = None
    projected: Projected | None = None
    empty_dir: dict[str, object] | None = None


class PodSecurityContext(_Struct, frozen=True):
    run_as_user: int = 0
    run_as_group: int = 0
    run_as_non_root: bool = False
    fs_group: int | None = None


class Spec(_Struct, frozen=True):
    containers: list[Container]
    init_containers: list[object] = []
    volumes: list[Volume] = []
    node_name: str = ""
    service_account_name: str = "default"
    hostname: str = ""
    host_network: bool = False
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    security_context: PodSecurityContext = PodSecurityContext()


class Metadata(_Struct, frozen=True):
    name: str
    namespace: str
    uid: str
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None


class Condition(_Struct, frozen=True):
    type: str
    status: str


class Status(_Struct, frozen=True):
    phase: str = "Pending"
    conditions: list[Condition] = []


class Pod(_Struct, frozen=True):
    """A pod as the API server gives it."""

    metadata: Metadata
    spec: Spec
    status: Status = Status()

    @property
    def is_ready(self) -> bool:
        """Whether its Ready condition is true."""
        return any((c.type, c.status) == ("Ready", "True") for c in self.status.conditions)

    def field(self, path: str, address: str) -> str:
        """What the downward API gives for a field path. Raises `UnsupportedPodError`."""
        if path.startswith("metadata.labels['"):
            return self.metadata.labels.get(path.split("'")[1], "")
        if path.startswith("metadata.annotations['"):
            return self.metadata.annotations.get(path.split("'")[1], "")
        fields: Mapping[str, str] = {
            "metadata.name": self.metadata.name,
            "metadata.namespace": self.metadata.namespace,
            "metadata.uid": self.metadata.uid,
            "spec.nodeName": self.spec.node_name,
            "spec.serviceAccountName": self.spec.service_account_name,
            "status.podIP": address,
        }
        if path not in fields:
            raise UnsupportedPodError(f"pod {self.metadata.name}: field {path!r} is not known here")
        return fields[path]


_DECODER: Final = msgspec.json.Decoder(Pod)


def decode_pod(raw: bytes) -> Pod:
    """Raises `UnsupportedPodError` for a pod that the fixture's kubelet could not run as it is written."""
    try:
        pod = _DECODER.decode(raw)
    except msgspec.ValidationError as error:
        raise UnsupportedPodError(f"a pod of the manifests: {error}") from error
    for what, given in {
        "initContainers": bool(pod.spec.init_containers),
        "hostNetwork": pod.spec.host_network,
        f"restartPolicy {pod.spec.restart_policy}": pod.spec.restart_policy != "Always",
    }.items():
        if given:
            raise UnsupportedPodError(f"pod {pod.metadata.name}: {what} is not known to the fixture's kubelet")
    return pod
