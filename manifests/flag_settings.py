"""Settings that are one flag of a process: the process's own parser says which values it takes."""

from collections.abc import Sequence
from typing import Final

from manifests.errors import ProcessError
from manifests.objects import EXTENDER, WEBHOOK, Objects
from manifests.plan import Plan, Setting
from manifests.processes import scheduler_settings, webhook_settings

__all__ = ["FLAGS", "checked_flag", "flag_setting"]

_BOTH: Final = (WEBHOOK, EXTENDER)


def checked_flag(container: str, flag: str, value: str, beside: Sequence[str] = ()) -> None:
    """Raises ValueError with the words of the process that would refuse this value; `beside` are flags that it needs."""
    try:
        if container == WEBHOOK:
            webhook_settings(["python", "-m", "webhook", *beside, f"{flag}={value}"], {})
        else:
            scheduler_settings(["python", "-m", "scheduler", *beside, f"{flag}={value}"], {})
    except ProcessError as error:
        raise ValueError(str(error)) from error


def flag_setting(
    name: str, containers: Sequence[str], flag: str, default: str, example: str, accepts: str, about: str
) -> Setting:
    """A setting that puts `flag` into these containers."""

    def apply(plan: Plan, text: str) -> None:
        for container in containers:
            checked_flag(container, flag, text)
        plan.edits.append(lambda objects: _put(objects, containers, flag, text))

    return Setting(name, default, accepts, about, example, apply)


def _put(objects: Objects, containers: Sequence[str], flag: str, text: str) -> None:
    for container in containers:
        objects.put_flag(container, flag, text)


_DURATION = "a duration such as 300ms, 28s, 1m30s"
_BOOL = "true or false"

FLAGS: Final = (
    flag_setting(
        "node-policy",
        (EXTENDER,),
        "--node-scheduler-policy",
        "binpack",
        "spread",
        "binpack or spread",
        "which node, where a pod does not say",
    ),
    flag_setting(
        "card-policy",
        (EXTENDER,),
        "--gpu-scheduler-policy",
        "spread",
        "binpack",
        "binpack, spread, numa, mutex, topology-aware, or several joined by commas",
        "which card, where a pod does not say",
    ),
    flag_setting(
        "quota-counts",
        _BOTH,
        "--quota-counts",
        "admitted",
        "placed",
        "placed or admitted",
        "which pods use quota: those with cards, or every live pod from its creation",
    ),
    flag_setting(
        "node-lock",
        (EXTENDER,),
        "--node-lock",
        "auto",
        "never",
        "auto, always or never",
        "whether a bind takes the node's lock",
    ),
    flag_setting(
        "node-lock-timeout",
        (EXTENDER,),
        "--node-lock-timeout",
        "5m",
        "2m",
        _DURATION,
        "age from which a lock is nobody's",
    ),
    flag_setting(
        "node-lock-wait",
        (EXTENDER,),
        "--node-lock-wait",
        "2s",
        "3s",
        f"{_DURATION}, under 30s",
        "how long a bind waits for the lock",
    ),
    flag_setting(
        "node-lock-retry-timeout",
        (EXTENDER,),
        "--node-lock-retry-timeout",
        "28s",
        "20s",
        f"{_DURATION}, under 30s",
        "how long the bind of a gang's member waits for it",
    ),
    flag_setting(
        "handshake",
        (EXTENDER,),
        "--handshake",
        "auto",
        "always",
        "auto, always or never",
        "whether device plugins' handshakes are answered",
    ),
    flag_setting(
        "bind-timeout",
        (EXTENDER,),
        "--bind-timeout",
        "5s",
        "4s",
        _DURATION,
        "of one Binding request",
    ),
    flag_setting(
        "leader-elect-margin",
        (EXTENDER,),
        "--leader-elect-margin",
        "1s",
        "2s",
        f"{_DURATION}; with bind-timeout less than the Lease's duration",
        "what must be left of the Lease beyond bind-timeout for a Binding to go out",
    ),
    flag_setting(
        "reservation-timeout",
        (EXTENDER,),
        "--reservation-timeout",
        "11m",
        "12m",
        _DURATION,
        "how long a reservation counts that is not seen bound",
    ),
    flag_setting(
        "event-nodes",
        (EXTENDER,),
        "--event-nodes",
        "100",
        "50",
        "a whole number",
        "up to so many offered nodes the Event of a placement lists all that fit",
    ),
    flag_setting(
        "decisions-kept",
        (EXTENDER,),
        "--decisions-kept",
        "512",
        "100",
        "a whole number",
        "how many decisions can be read at /decisions",
    ),
    flag_setting(
        "metrics-max-series",
        (EXTENDER,),
        "--metrics-max-series",
        "0",
        "1000",
        "a whole number; 0: no limit",
        "how many series the metrics page may have",
    ),
    flag_setting(
        "legacy-metrics",
        (EXTENDER,),
        "--legacy-metrics",
        "false",
        "true",
        _BOOL,
        "also the metric names from before HAMi 2.10",
    ),
    flag_setting(
        "node-label-selector",
        _BOTH,
        "--node-label-selector",
        "",
        "gpu=on",
        "key=value,key=value",
        "only nodes with all these labels count",
    ),
    flag_setting(
        "force-overwrite-default-scheduler",
        (WEBHOOK,),
        "--force-overwrite-default-scheduler",
        "true",
        "false",
        _BOOL,
        "take over device pods that name default-scheduler",
    ),
    flag_setting(
        "kube-qps",
        _BOTH,
        "--kube-qps",
        "500",
        "50",
        "a number; 0 for no limit",
        "API requests a second, of each process",
    ),
    flag_setting(
        "kube-burst", _BOTH, "--kube-burst", "1000", "100", "a whole number", "API requests at once, of each process"
    ),
    flag_setting("kube-timeout", _BOTH, "--kube-timeout", "0", "20", "seconds; 0: 30 s", "longest API call"),
)
