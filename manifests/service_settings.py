"""Settings of scheduling, admission, certificates, and of what is around the pods."""

import json
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from manifests.documents import Document, mapping, sequence
from manifests.errors import ManifestError
from manifests.flag_settings import checked_flag
from manifests.objects import EXTENDER, KUBE_SCHEDULER, WEBHOOK, Objects, inside, without_empty
from manifests.plan import Plan, Setting, planned
from manifests.readers import at_least, boolean, choice, dns_label, duration, labels, names, url

__all__ = ["SERVICES"]

_MUTATING: Final = "MutatingWebhookConfiguration"
_VALIDATING: Final = "ValidatingWebhookConfiguration"
_POLICY: Final = "ValidatingAdmissionPolicy"
_OWN_CERTIFICATE: Final = "--cert-secret"
_BOOL: Final = "true or false"
_NAMES: Final = "names joined by commas"
_OWN_NAMESPACE_KEY: Final = "kubernetes.io/metadata.name"


def _namespace(plan: Plan, text: str) -> None:
    plan.namespace = dns_label(text)


# --- scheduling ---


def _scheduler_name(objects: Objects, name: str) -> None:
    for container in (WEBHOOK, EXTENDER):
        objects.put_flag(container, "--scheduler-name", name)
    objects.kube_scheduler(lambda document: _profile(document).update(schedulerName=name))
    objects.policy()["schedulerNames"] = name


def _profile(configuration: Document) -> Document:
    return mapping(sequence(configuration["profiles"], "profiles")[0], "profiles")


def _node_choice(objects: Objects, how: str) -> None:
    objects.put_flag(EXTENDER, "--node-choice", how)

    def edit(configuration: Document) -> None:
        extender = mapping(sequence(configuration["extenders"], "extenders")[0], "extenders")
        # Scores of ours mean something only where kube-scheduler is given more than one node.
        without_empty(extender, "prioritizeVerb", "prioritize" if how == "scheduler" else "")

    objects.kube_scheduler(edit)


def _configured(*path: str) -> Callable[[Objects, object], None]:
    """A value in the KubeSchedulerConfiguration."""

    def edit(objects: Objects, value: object) -> None:
        objects.kube_scheduler(lambda document: inside(document, *path[:-1]).update({path[-1]: value}))

    return edit


def _go_duration(text: str) -> str:
    if duration(text) <= 0:
        raise ValueError("expected a duration above 0")
    return text


def _kube_scheduler_log(objects: Objects, level: int) -> None:
    objects.put_flag(KUBE_SCHEDULER, "--v", str(level) if level else None)


def _log_level(objects: Objects, level: str) -> None:
    for container in (WEBHOOK, EXTENDER):
        objects.put_flag(container, "--debug", "true" if level == "debug" else None)


# --- admission ---


def _failure(kind: str) -> Callable[[Objects, str], None]:
    """Of the webhooks that decide about new pods; `changes.slotwise.io` is a second net and stays open."""

    def edit(objects: Objects, policy: str) -> None:
        for hook in objects.hooks(kind):
            if hook["name"] != "changes.slotwise.io":
                hook["failurePolicy"] = policy

    return edit


def _reinvocation(objects: Objects, policy: str) -> None:
    for hook in objects.hooks(_MUTATING):
        hook["reinvocationPolicy"] = policy


def _exempt(objects: Objects, namespaces: Sequence[str]) -> None:
    selectors = [inside(hook, "namespaceSelector") for hook in objects.hooks(_MUTATING, _VALIDATING)]
    selectors += [inside(p, "spec", "matchConstraints", "namespaceSelector") for p in objects.of(_POLICY)]
    for selector in selectors:
        for expression in sequence(selector["matchExpressions"], "matchExpressions"):
            if mapping(expression, "matchExpressions")["key"] == _OWN_NAMESPACE_KEY:
                values = sequence(mapping(expression, "matchExpressions")["values"], "values")
                values += [name for name in namespaces if name not in values]


def _webhook_url(objects: Objects, base: str) -> None:
    if not base:
        return
    for hook in objects.hooks(_MUTATING, _VALIDATING):
        client = inside(hook, "clientConfig")
        service = mapping(client.pop("service"), "service")
        client["url"] = f"{base}{service['path']}"
    host = urlsplit(base).hostname or ""
    if objects.has_flag(WEBHOOK, _OWN_CERTIFICATE):
        objects.put_flag(WEBHOOK, "--cert-hosts", host)
        return
    certificate = objects.spec("Certificate", "slotwise-webhook")
    kind = "ipAddresses" if _is_address(host) else "dnsNames"
    sequence(certificate.setdefault(kind, []), kind).append(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _optional_url(text: str) -> str:
    return url(text) if text else ""


def _foreign(objects: Objects, schedulers: Sequence[str]) -> None:
    objects.policy()["foreignSchedulers"] = ",".join(schedulers)


def _ignored(objects: Objects, what: str) -> None:
    objects.policy()["ignoredDevicePods"] = what


def _listed(parameter: str, condition: str) -> Callable[[Objects, Sequence[str]], None]:
    """More accounts on one of the two lists: in the policy's parameters, which the webhook reads too, and in its condition."""

    def edit(objects: Objects, accounts: Sequence[str]) -> None:
        policy = objects.policy()
        known = str(policy[parameter]).split(",")
        every = [*known, *(account for account in accounts if account not in known)]
        policy[parameter] = ",".join(every)
        for hook in objects.hooks(_VALIDATING):
            for item in sequence(hook.get("matchConditions", []), "matchConditions"):
                found = mapping(item, "matchConditions")
                if found["name"] == condition:
                    found["expression"] = f"!(request.userInfo.username in {json.dumps(every)})"

    return edit


def _quota_annotation(objects: Objects, wanted: bool) -> None:
    objects.put_flag(WEBHOOK, "--quota-annotation", "true" if wanted else None)
    rules = sequence(objects.one("ClusterRole", "slotwise-webhook").setdefault("rules", []), "rules")
    if wanted:
        rules.append({"apiGroups": [""], "resources": ["resourcequotas"], "verbs": ["patch"]})


# --- around the pods ---


def _certificates(plan: Plan, text: str) -> None:
    if choice("own", "cert-manager")(text) == "cert-manager":
        plan.components.append("cert-manager")


def _service_monitor(plan: Plan, text: str) -> None:
    if boolean(text):
        plan.components.append("monitoring")


def _monitor_labels(objects: Objects, found: Mapping[str, str]) -> None:
    for document in objects.of("ServiceMonitor") if found else ():
        inside(document, "metadata", "labels").update(found)


def _network_policies(objects: Objects, wanted: bool) -> None:
    if not wanted:
        objects.documents = [document for document in objects.documents if document["kind"] != "NetworkPolicy"]


def _monitoring_namespaces(objects: Objects, namespaces: Sequence[str]) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {_OWN_NAMESPACE_KEY: name}}} for name in namespaces]
    for document in objects.of("NetworkPolicy"):
        for rule in sequence(inside(document, "spec")["ingress"], "ingress"):
            found = mapping(rule, "ingress")
            if "from" in found:
                found["from"] = [dict(peer) for peer in peers]


def _some_namespaces(text: str) -> Sequence[str]:
    found = [dns_label(name) for name in names(text)]
    if not found:
        raise ValueError("expected at least one namespace")
    return found


def _api_ports(objects: Objects, ports: Sequence[int]) -> None:
    for document in objects.of("NetworkPolicy"):
        for rule in sequence(inside(document, "spec")["egress"], "egress"):
            mapping(rule, "egress")["ports"] = [{"port": port, "protocol": "TCP"} for port in ports]


def _ports(text: str) -> Sequence[int]:
    found = [at_least(1, 65535)(port) for port in names(text)]
    if not found:
        raise ValueError("expected at least one port")
    return found


def _service_type(objects: Objects, kind: str) -> None:
    spec = objects.spec("Service", "slotwise-scheduler")
    if kind == "ClusterIP":
        spec.pop("type", None)
    else:
        spec["type"] = kind


def _node_port(objects: Objects, port: int) -> None:
    spec = objects.spec("Service", "slotwise-scheduler")
    if port and spec.get("type") not in ("NodePort", "LoadBalancer"):
        raise ManifestError("--set views-node-port goes with views-service-type NodePort or LoadBalancer")
    if port:
        mapping(sequence(spec["ports"], "ports")[0], "ports")["nodePort"] = port


def _node_port_number(text: str) -> int:
    return at_least(0, 65535)(text)


def _days(flag: str) -> Callable[[Plan, str], None]:
    def edit(objects: Objects, text: str) -> None:
        if not objects.has_flag(WEBHOOK, _OWN_CERTIFICATE):
            raise ManifestError(
                f"--set {flag.removeprefix('--')} goes with certificates=own: cert-manager has its own days"
            )
        objects.put_flag(WEBHOOK, flag, text)

    def read(text: str) -> str:
        checked_flag(WEBHOOK, flag, text, beside=(f"{_OWN_CERTIFICATE}=x",))
        return text

    return planned(read, edit)


SERVICES: Final = (
    Setting("namespace", "slotwise-system", "a DNS label", "where Slotwise runs", "accelerators", _namespace),
    Setting(
        "scheduler-name",
        "hami-scheduler",
        "a name",
        "whom pods with devices go to",
        "slotwise",
        planned(dns_label, _scheduler_name),
    ),
    Setting(
        "node-choice",
        "extender",
        "extender or scheduler",
        "who takes the node among those that fit; scheduler honours soft affinity and spread",
        "scheduler",
        planned(choice("extender", "scheduler"), _node_choice),
    ),
    Setting(
        "lease-duration",
        "15s",
        "a duration",
        "life of the scheduler's Lease",
        "30s",
        planned(_go_duration, _configured("leaderElection", "leaseDuration")),
    ),
    Setting(
        "renew-deadline",
        "10s",
        "a duration below lease-duration",
        "a leader that has not renewed for so long gives up",
        "12s",
        planned(_go_duration, _configured("leaderElection", "renewDeadline")),
    ),
    Setting(
        "retry-period",
        "2s",
        "a duration below renew-deadline",
        "between two tries to renew or take the Lease",
        "1s",
        planned(_go_duration, _configured("leaderElection", "retryPeriod")),
    ),
    Setting(
        "kube-scheduler-qps",
        "200",
        "a whole number",
        "API requests a second of kube-scheduler",
        "500",
        planned(at_least(1), _configured("clientConnection", "qps")),
    ),
    Setting(
        "kube-scheduler-burst",
        "400",
        "a whole number",
        "API requests at once of kube-scheduler",
        "1000",
        planned(at_least(1), _configured("clientConnection", "burst")),
    ),
    Setting(
        "kube-scheduler-log-level",
        "0",
        "0 to 10",
        "verbosity of kube-scheduler",
        "4",
        planned(at_least(0, 10), _kube_scheduler_log),
    ),
    Setting(
        "log-level",
        "info",
        "info or debug",
        "of webhook and extender",
        "debug",
        planned(choice("info", "debug"), _log_level),
    ),
    Setting(
        "failure-policy",
        "Ignore",
        "Ignore or Fail",
        "of the mutating webhook; with Ignore plain pods never wait for Slotwise",
        "Fail",
        planned(choice("Ignore", "Fail"), _failure(_MUTATING)),
    ),
    Setting(
        "validating-failure-policy",
        "Fail",
        "Ignore or Fail",
        "of the validating webhook, which is asked about device pods alone",
        "Ignore",
        planned(choice("Ignore", "Fail"), _failure(_VALIDATING)),
    ),
    Setting(
        "reinvocation-policy",
        "IfNeeded",
        "IfNeeded or Never",
        "whether the mutating webhook is asked again after other webhooks",
        "Never",
        planned(choice("IfNeeded", "Never"), _reinvocation),
    ),
    Setting(
        "exempt-namespaces",
        "",
        _NAMES,
        "besides kube-system and Slotwise's own: their pods are not looked at",
        "monitoring",
        planned(names, _exempt),
    ),
    Setting(
        "webhook-url",
        "",
        "https://host:port",
        "where the API server calls, instead of the Service",
        "https://10.0.0.1:31998",
        planned(_optional_url, _webhook_url),
    ),
    Setting(
        "foreign-schedulers",
        "",
        _NAMES + "; * for all",
        "other schedulers that may have device pods",
        "volcano",
        planned(names, _foreign),
    ),
    Setting(
        "ignored-device-pods",
        "deny",
        "deny, warn or allow",
        "device pods with the label hami.io/webhook: ignore",
        "warn",
        planned(choice("deny", "warn", "allow"), _ignored),
    ),
    Setting(
        "key-writers",
        "",
        "names of accounts joined by commas",
        "besides the extender and HAMi's device plugin: who may write the system's annotations",
        "system:serviceaccount:gpu:device-plugin",
        planned(names, _listed("keyWriters", "not-by-a-listed-account")),
    ),
    Setting(
        "scheduler-accounts",
        "",
        "names of accounts joined by commas",
        "besides kube-scheduler's and ours: who binds pods without Slotwise being asked",
        "system:serviceaccount:volcano-system:volcano-scheduler",
        planned(names, _listed("schedulerAccounts", "not-by-a-scheduler")),
    ),
    Setting(
        "quota-annotation",
        "false",
        _BOOL,
        "keep slotwise.io/quota-used on every ResourceQuota",
        "true",
        planned(boolean, _quota_annotation),
    ),
    Setting(
        "certificates",
        "own",
        "own or cert-manager",
        "who makes the webhook's certificate",
        "cert-manager",
        _certificates,
    ),
    Setting("cert-days", "90", "days", "life of a certificate of our own", "30", _days("--cert-days")),
    Setting("ca-days", "730", "days", "life of a CA of our own", "365", _days("--ca-days")),
    Setting(
        "views-service-type",
        "ClusterIP",
        "ClusterIP, NodePort or LoadBalancer",
        "of the scheduler's Service, for metrics and views",
        "NodePort",
        planned(choice("ClusterIP", "NodePort", "LoadBalancer"), _service_type),
    ),
    Setting(
        "views-node-port",
        "0",
        "a port; 0: any",
        "its port on every node",
        "31993",
        planned(_node_port_number, _node_port),
    ),
    Setting(
        "network-policies",
        "true",
        _BOOL,
        "whether there are NetworkPolicies",
        "false",
        planned(boolean, _network_policies),
    ),
    Setting(
        "monitoring-namespaces",
        "monitoring",
        _NAMES,
        "from where Prometheus may read metrics",
        "prometheus,metrics",
        planned(_some_namespaces, _monitoring_namespaces),
    ),
    Setting(
        "api-server-ports",
        "443,6443",
        "ports joined by commas",
        "where the pods may reach the API server",
        "443,16443",
        planned(_ports, _api_ports),
    ),
    Setting("service-monitor", "false", _BOOL, "ServiceMonitors for Prometheus' operator", "true", _service_monitor),
    Setting(
        "service-monitor-labels",
        "",
        "key=value,key=value",
        "also on them",
        "release=prometheus",
        planned(labels, _monitor_labels),
    ),
)
