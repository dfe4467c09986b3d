"""What has to run: the pods of both Deployments and the Service in front of the webhook."""

from collections.abc import Iterator

from cli.doctor.facts import SCHEDULER, WEBHOOK, Facts
from cli.doctor.findings import Finding, problem, unknown, warning, well
from cli.doctor.objects import Pod

__all__ = ["scheduler_pods", "webhook_pods", "webhook_service"]


def webhook_pods(facts: Facts) -> Iterator[Finding]:
    """Do the webhook's replicas run?"""
    yield from _pods(facts, "webhook-pods", WEBHOOK, "webhook")


def scheduler_pods(facts: Facts) -> Iterator[Finding]:
    """Do the scheduler's replicas run, with both containers?"""
    yield from _pods(facts, "scheduler-pods", SCHEDULER, "scheduler")


def _pods(facts: Facts, check: str, deployment: str, component: str) -> Iterator[Finding]:
    if "deployments" in facts.unread:
        yield unknown(check, f"the Deployments cannot be read: {facts.unread['deployments'].why}", _MAY_READ)
        return
    found = facts.deployments.get(deployment)
    if found is None:
        yield problem(
            check,
            f"there is no Deployment {facts.namespace}/{deployment}",
            "install it: slotwise manifests ha | kubectl apply -f - (another namespace? see --namespace)",
        )
        return
    wanted = 1 if found.spec.replicas is None else found.spec.replicas
    ready = sum(pod.is_ready for pod in facts.pods_of(component))
    if wanted == 0:
        yield problem(
            check,
            f"Deployment {deployment} is scaled to 0 replicas",
            f"kubectl -n {facts.namespace} scale deployment {deployment} --replicas=2",
        )
    elif ready >= wanted:
        yield well(check, f"{ready} of {wanted} pods of {deployment} are ready")
    else:
        reasons = sorted({text for pod in facts.pods_of(component) for text in _why(pod)})
        conditions = [c.message for c in found.status.conditions or () if c.status == "False" and c.message]
        why = "; ".join(reasons or conditions) or "the pods say no reason"
        tell = problem if ready == 0 else warning
        yield tell(
            check,
            f"{ready} of {wanted} pods of {deployment} are ready: {why}",
            f"kubectl -n {facts.namespace} describe pods -l app.kubernetes.io/component={component};"
            f" kubectl -n {facts.namespace} logs deployment/{deployment} --all-containers --previous",
        )


_MAY_READ = "run the doctor as somebody who may read the namespace"


def _why(pod: Pod) -> Iterator[str]:
    if pod.is_ready:
        return
    said = False
    for status in pod.status.container_statuses or ():
        if not status.ready:
            said = True
            yield f"container {status.name} of {pod.name}: {status.trouble or 'not ready'}"
    for condition in pod.status.conditions or ():
        if not said and condition.status == "False" and condition.message:
            yield f"{pod.name}: {condition.message}"


def webhook_service(facts: Facts) -> Iterator[Finding]:
    """Does the Service lead to a ready pod?"""
    check = "webhook-service"
    configurations = [c for c in (*facts.mutating, *facts.validating) if c.name == "slotwise"]
    by_url = [w.client_config.url for c in configurations for w in c.webhooks or () if w.client_config.url]
    if by_url and all(w.client_config.url for c in configurations for w in c.webhooks or ()):
        yield well(check, f"not needed: the API server calls {by_url[0]}")
        return
    if "services" in facts.unread:
        yield unknown(check, f"the Services cannot be read: {facts.unread['services'].why}", _MAY_READ)
        return
    service = facts.services.get(WEBHOOK)
    if service is None:
        yield problem(
            check,
            f"there is no Service {facts.namespace}/{WEBHOOK}: the API server cannot reach the webhook",
            "slotwise manifests ha | kubectl apply -f -",
        )
        return
    asked = {
        w.client_config.service.port or 443
        for c in configurations
        for w in c.webhooks or ()
        if w.client_config.service is not None and w.client_config.service.name == WEBHOOK
    }
    offered = {port.port for port in service.spec.ports or ()}
    if asked - offered:
        missing = ", ".join(map(str, sorted(asked - offered)))
        yield problem(
            check,
            f"the webhook configurations name port {missing} of Service {WEBHOOK}, which has none such",
            "slotwise manifests ha | kubectl apply -f -",
        )
        return
    slices = [s for s in facts.slices if s.labels.get("kubernetes.io/service-name") == WEBHOOK]
    ready = sum(endpoint.is_ready for one in slices for endpoint in one.endpoints or ())
    if ready == 0:
        yield problem(
            check,
            f"Service {WEBHOOK} has no ready endpoint: device pods are refused, plain pods are not affected",
            "repair webhook-pods; if those are ready, the Service's selector does not match their labels",
        )
        return
    yield well(check, f"Service {WEBHOOK} leads to {ready} ready endpoints")
