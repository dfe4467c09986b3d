"""HAMi 2.10 as its chart installs it with release name `hami`: what stays when only the extender's image changes.

(HAMi v2.10 wire contract: command line, environment, service and Deployment, RBAC, kube-scheduler configuration, webhook.)
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devices.kube.protocols import JsonObject

__all__ = [
    "CLUSTER_RULES",
    "EXTENDER",
    "NAMESPACE",
    "NAMESPACE_RULES",
    "SCHEDULER_NAME",
    "Values",
    "command",
    "deployment",
    "mutating_webhook",
    "pod_labels",
    "scheduler_configuration",
]

NAMESPACE: Final = "kube-system"
SCHEDULER_NAME: Final = "hami-scheduler"
EXTENDER: Final = "vgpu-scheduler-extender"
_LABELS: Final = {
    "app.kubernetes.io/component": "hami-scheduler",
    "app.kubernetes.io/name": "hami",
    "app.kubernetes.io/instance": "hami",
}
_READ: Final = ("get", "list", "watch")

CLUSTER_RULES: Final[Sequence[Mapping[str, Sequence[str]]]] = (
    {"apiGroups": [""], "resources": ["pods", "configmaps"], "verbs": [*_READ, "patch"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": [*_READ, "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "list"]},
    {"apiGroups": [""], "resources": ["resourcequotas"], "verbs": list(_READ)},
)
NAMESPACE_RULES: Final[Sequence[Mapping[str, Sequence[str]]]] = (
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["create", "get", "list", "watch", "update", "patch"],
    },
)


@dataclass(frozen=True)
class Values:
    """The chart's values that reach the extender's command line."""

    webhook: bool = True
    leader_elect: bool = True
    ascend: bool = False
    iluvatar: bool = False
    legacy_metrics: bool = False
    node_label_selector: Mapping[str, str] = field(default_factory=dict)
    node_policy: str = "binpack"
    gpu_policy: str = "spread"
    force_overwrite: bool = True
    metrics_bind_address: str = ":9395"
    extra_args: Sequence[str] = ("--debug", "-v=4")
    node_lock_expire: str = "5m"


DEFAULTS: Final = Values()


def command(values: Values = DEFAULTS) -> list[str]:
    """The container's command, the program's name first."""
    if values.webhook:
        port = ["--http_bind=0.0.0.0:443", "--cert_file=/tls/tls.crt", "--key_file=/tls/tls.key"]
    else:
        port = ["--http_bind=0.0.0.0:80"]
    optional = []
    if values.ascend:
        optional.append("--enable-ascend=true")
    if values.iluvatar:
        optional.append("--enable-iluvatar=true")
    if values.node_label_selector:
        pairs = ",".join(f"{key}={value}" for key, value in values.node_label_selector.items())
        optional.append(f"--node-label-selector={pairs}")
    if values.legacy_metrics:
        optional.append("--legacy-metrics=true")
    return [
        "scheduler",
        *port,
        f"--scheduler-name={SCHEDULER_NAME}",
        f"--metrics-bind-address={values.metrics_bind_address}",
        f"--node-scheduler-policy={values.node_policy}",
        f"--gpu-scheduler-policy={values.gpu_policy}",
        f"--force-overwrite-default-scheduler={str(values.force_overwrite).lower()}",
        "--device-config-file=/device-config.yaml",
        f"--leader-elect={str(values.leader_elect).lower()}",
        f"--leader-elect-resource-name={SCHEDULER_NAME}",
        f"--leader-elect-resource-namespace={NAMESPACE}",
        *optional,
        *values.extra_args,
    ]


def environment(values: Values = DEFAULTS) -> list[JsonObject]:
    """The container's environment."""
    found: list[JsonObject] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"))
    ]
    if values.node_lock_expire:
        found.append({"name": "HAMI_NODELOCK_EXPIRE", "value": values.node_lock_expire})
    return found


def pod_labels() -> dict[str, str]:
    """The labels of the scheduler's pods."""
    return {**_LABELS, "hami.io/webhook": "ignore"}


def deployment(values: Values = DEFAULTS) -> JsonObject:
    """The scheduler's Deployment: kube-scheduler and the extender."""
    probe: JsonObject = {"httpGet": {"path": "/readyz", "port": 443, "scheme": "HTTPS"}}
    extender: JsonObject = {
        "name": EXTENDER,
        "image": "docker.io/projecthami/hami:v2.10.0",
        "imagePullPolicy": "IfNotPresent",
        "env": environment(values),
        "command": command(values),
        "ports": [
            {"name": "http", "containerPort": 443 if values.webhook else 80},
            {"name": "metrics", "containerPort": 9395},
        ],
        "volumeMounts": [
            {"name": "device-config", "mountPath": "/device-config.yaml", "subPath": "device-config.yaml"},
            *([{"name": "tls-config", "mountPath": "/tls"}] if values.webhook else []),
        ],
        **({"readinessProbe": probe} if values.leader_elect else {}),
    }
    kube_scheduler: JsonObject = {
        "name": "kube-scheduler",
        "image": "registry.k8s.io/kube-scheduler:v1.37.2",
        "command": ["kube-scheduler", "--config=/config/config.yaml", "-v=4"],
        "volumeMounts": [{"name": "scheduler-config", "mountPath": "/config"}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "hami-scheduler", "namespace": NAMESPACE, "labels": dict(_LABELS)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(_LABELS)},
            "template": {
                "metadata": {"labels": pod_labels()},
                "spec": {
                    "serviceAccountName": "hami-scheduler",
                    "priorityClassName": "system-node-critical",
                    "containers": [kube_scheduler, extender],
                    "volumes": [
                        *(
                            [{"name": "tls-config", "secret": {"secretName": "hami-scheduler-tls"}}]
                            if values.webhook
                            else []
                        ),
                        {"name": "device-config", "configMap": {"name": "hami-scheduler-device"}},
                        {"name": "scheduler-config", "configMap": {"name": "hami-scheduler"}},
                    ],
                },
            },
        },
    }


def scheduler_configuration(url: str, resources: Sequence[Mapping[str, object]]) -> JsonObject:
    """The KubeSchedulerConfiguration; `url` is that of the extender on loopback."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": True, "resourceName": SCHEDULER_NAME, "resourceNamespace": NAMESPACE},
        "profiles": [{"schedulerName": SCHEDULER_NAME}],
        "extenders": [
            {
                "urlPrefix": url,
                "enableHTTPS": url.startswith("https:"),
                **({"tlsConfig": {"insecure": True}} if url.startswith("https:") else {}),
                "filterVerb": "filter",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "weight": 1,
                "httpTimeout": "30s",
                "managedResources": list(resources),
            }
        ],
    }


def mutating_webhook(url: str, ca_pem: bytes) -> JsonObject:
    """The MutatingWebhookConfiguration, reached by a URL as with `admissionWebhook.customURL`."""
    not_ignored = {"matchExpressions": [{"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}]}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "hami-webhook"},
        "webhooks": [
            {
                "name": "vgpu.hami.io",
                "admissionReviewVersions": ["v1beta1"],
                "clientConfig": {"url": f"{url}/webhook", "caBundle": b64encode(ca_pem).decode()},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                        "scope": "*",
                    }
                ],
                "failurePolicy": "Ignore",
                "matchPolicy": "Equivalent",
                "reinvocationPolicy": "Never",
                "sideEffects": "None",
                "timeoutSeconds": 10,
                "namespaceSelector": not_ignored,
                "objectSelector": not_ignored,
            }
        ],
    }
