"""The KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1), checked as strictly as kube-scheduler reads it."""

from collections.abc import Iterator
from typing import Final

from jsonschema import Draft202012Validator

from manifests.documents import Document, mapping
from manifests.findings import Finding, schema_findings
from serving.flags import duration

__all__ = ["API_VERSION", "KIND", "configuration_findings"]

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"
KIND: Final = "KubeSchedulerConfiguration"
_JITTER: Final = 1.2
"""client-go: a renewal has to find time for one more try, which may come so much later."""


def _object(required: tuple[str, ...] = (), /, **properties: object) -> Document:
    found: Document = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


def _list(items: object) -> Document:
    return {"type": "array", "items": items}


_TEXT: Final[Document] = {"type": "string"}
_WHOLE: Final[Document] = {"type": "integer"}
_BOOL: Final[Document] = {"type": "boolean"}
_DURATION: Final[Document] = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+$"}
_PLUGINS: Final = _object(enabled=_list(_object(("name",), name=_TEXT, weight=_WHOLE)), disabled=_list(_object(("name",), name=_TEXT, weight=_WHOLE)))  # fmt: skip
_POINTS: Final = (
    "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit", "preBind", "bind", "postBind",
    "multiPoint",
)  # fmt: skip
_SCHEMA: Final = _object(
    ("apiVersion", "kind"),
    apiVersion={"enum": [API_VERSION]},
    kind={"enum": [KIND]},
    parallelism={"type": "integer", "minimum": 1},
    leaderElection=_object(
        leaderElect=_BOOL,
        leaseDuration=_DURATION,
        renewDeadline=_DURATION,
        retryPeriod=_DURATION,
        resourceLock={"enum": ["leases"]},
        resourceName=_TEXT,
        resourceNamespace=_TEXT,
    ),
    clientConnection=_object(
        kubeconfig=_TEXT, acceptContentTypes=_TEXT, contentType=_TEXT, qps={"type": "number"}, burst=_WHOLE
    ),
    enableProfiling=_BOOL,
    enableContentionProfiling=_BOOL,
    percentageOfNodesToScore={"type": "integer", "minimum": 0, "maximum": 100},
    podInitialBackoffSeconds={"type": "integer", "minimum": 1},
    podMaxBackoffSeconds={"type": "integer", "minimum": 1},
    delayCacheUntilActive=_BOOL,
    profiles=_list(
        _object(
            schedulerName=_TEXT,
            percentageOfNodesToScore={"type": "integer", "minimum": 0, "maximum": 100},
            plugins=_object(**dict.fromkeys(_POINTS, _PLUGINS)),
            pluginConfig=_list(_object(("name",), name=_TEXT, args={"type": "object"})),
        )
    ),
    extenders=_list(
        _object(
            ("urlPrefix",),
            urlPrefix={"type": "string", "minLength": 1},
            filterVerb=_TEXT,
            preemptVerb=_TEXT,
            prioritizeVerb=_TEXT,
            weight=_WHOLE,
            bindVerb=_TEXT,
            enableHTTPS=_BOOL,
            tlsConfig=_object(
                insecure=_BOOL,
                serverName=_TEXT,
                certFile=_TEXT,
                keyFile=_TEXT,
                caFile=_TEXT,
                certData=_TEXT,
                keyData=_TEXT,
                caData=_TEXT,
            ),
            httpTimeout=_DURATION,
            nodeCacheCapable=_BOOL,
            managedResources=_list(
                _object(("name",), name={"type": "string", "minLength": 1}, ignoredByScheduler=_BOOL)
            ),
            ignorable=_BOOL,
        )
    ),
)


def configuration_findings(document: Document) -> Iterator[Finding]:
    """What kube-scheduler would not take, and what we know to be wrong with it; paths are within the configuration."""
    found = list(schema_findings(Draft202012Validator(_SCHEMA), document))
    yield from found
    if not found:
        yield from _election(document)
        yield from _extenders(document)


def _election(document: Document) -> Iterator[Finding]:
    election = mapping(document.get("leaderElection", {}), "leaderElection")
    lease_s, renew_s, retry_s = (
        duration(str(election.get(key, default)))
        for key, default in (("leaseDuration", "15s"), ("renewDeadline", "10s"), ("retryPeriod", "2s"))
    )
    if lease_s <= renew_s:
        yield Finding("leaderElection.leaseDuration", f"{lease_s:g} s is not above renewDeadline, {renew_s:g} s")
    if renew_s <= _JITTER * retry_s:
        yield Finding(
            "leaderElection.renewDeadline",
            f"{renew_s:g} s is not above {_JITTER:g} × retryPeriod, {_JITTER * retry_s:g} s",
        )


def _extenders(document: Document) -> Iterator[Finding]:
    extenders = document.get("extenders", [])
    assert isinstance(extenders, list)
    for number, item in enumerate(extenders):
        extender = mapping(item, "extenders")
        if extender.get("prioritizeVerb") and int(str(extender.get("weight", 0))) <= 0:
            yield Finding(f"extenders[{number}].weight", "expected more than 0 beside prioritizeVerb")
    if sum(bool(mapping(item, "extenders").get("bindVerb")) for item in extenders) > 1:
        yield Finding("extenders", "only one extender may have a bindVerb")
