"""AdmissionReviews as an API server sends them, of a given size, the same for the same numbers."""

import orjson

__all__ = ["SMALLEST_BYTES", "review_body"]

JsonObject = dict[str, object]
SMALLEST_BYTES = 3072
"""A pod with what the API server's own defaults and admission add is about as large without any text of its own."""
_VALUE = 64
"""Characters of a variable's value."""


def _container(gpu: bool, lines: int, rest: int) -> JsonObject:
    limits = {"cpu": "4", "memory": "16Gi"}
    if gpu:
        limits |= {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
    settings = [{"name": f"SETTING_{n:04d}", "value": "x" * _VALUE} for n in range(lines)]
    return {
        "name": "main",
        "image": "registry.example.org/team/training:1",
        "command": ["python", "-m", "train"],
        "env": [{"name": "MODE", "value": "x" * rest}, *settings],
        "resources": {"limits": limits, "requests": {"cpu": "4", "memory": "16Gi"}},
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            {
                "name": "kube-api-access-x7k2p",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _pod(gpu: bool, lines: int, rest: int) -> JsonObject:
    access = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    fields = {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
        "f:spec": {
            "f:containers": {'k:{"name":"main"}': {".": {}, "f:command": {}, "f:env": {".": {}}, "f:image": {}}}
        },
    }
    written = {"manager": "kubectl-create", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    metadata: JsonObject = {
        "generateName": "train-",
        "namespace": "team-a",
        "creationTimestamp": None,
        "labels": {"app": "train", "team": "a"},
        "annotations": {"example.org/owner": "team-a"},
        "managedFields": [{**written, "time": "2026-01-01T06:00:00Z", "fieldsV1": fields}],
    }
    lasting = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": {
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "kube-api-access-x7k2p", "projected": {"sources": access, "defaultMode": 420}},
            ],
            "containers": [_container(gpu, lines, rest)],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "serviceAccount": "default",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": f"node.kubernetes.io/{key}", **lasting} for key in ("not-ready", "unreachable")],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    }


def _review(gpu: bool, lines: int = 0, rest: int = 0) -> bytes:
    version = {"group": "", "version": "v1"}
    request = {
        "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
        "kind": {**version, "kind": "Pod"},
        "resource": {**version, "resource": "pods"},
        "requestKind": {**version, "kind": "Pod"},
        "requestResource": {**version, "resource": "pods"},
        "namespace": "team-a",
        "operation": "CREATE",
        "userInfo": {
            "username": "system:serviceaccount:kube-system:job-controller",
            "uid": "5c1f",
            "groups": ["system:serviceaccounts", "system:authenticated"],
        },
        "object": _pod(gpu, lines, rest),
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return orjson.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})


def review_body(size_bytes: int, *, gpu: bool) -> bytes:
    """A review of a pod with one container, of exactly `size_bytes`; `gpu`: the container asks for a share of a card.

    Raises `ValueError` for a size below `SMALLEST_BYTES`.
    """
    if size_bytes < SMALLEST_BYTES:
        raise ValueError(f"size {size_bytes}: expected at least {SMALLEST_BYTES} bytes")
    bare = len(_review(gpu))
    lines, rest = divmod(size_bytes - bare, len(_review(gpu, 1)) - bare)
    return _review(gpu, lines, rest)
