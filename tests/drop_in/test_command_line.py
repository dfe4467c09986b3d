"""The command lines that HAMi's chart writes, and what becomes of each flag."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from cli import hami
from cli.hami_flags import Settings, new_parser, parse
from devices.kube.freshness import OwnPod
from scheduler.errors import SettingsError
from tests.drop_in.chart import Values, command

POD = {"POD_NAME": "hami-scheduler-0", "POD_NAMESPACE": "kube-system"}


def read(*argv: str, **environment: str) -> Settings:
    return parse(argv, environment)


def charted(**values: object) -> Settings:
    return parse(command(Values(**values))[1:], {**POD, "HAMI_NODELOCK_EXPIRE": "5m"})  # type: ignore[arg-type] # fields of several types in one mapping


def test_the_chart_s_own_command_line() -> None:
    settings = charted()
    assert (settings.host, settings.port) == ("0.0.0.0", 443)
    assert (settings.cert_file, settings.key_file) == (Path("/tls/tls.crt"), Path("/tls/tls.key"))
    assert (settings.plain_host, settings.plain_port) == ("0.0.0.0", 9395)
    assert (settings.scheduler_name, settings.admission.scheduler_name) == ("hami-scheduler", "hami-scheduler")
    assert (settings.node_scheduler_policy, settings.gpu_scheduler_policy) == ("binpack", "spread")
    assert settings.admission.force_overwrite_default_scheduler
    assert settings.device_config_file == "/device-config.yaml"
    assert settings.enabled_families == frozenset()
    assert settings.node_lock_timeout_s == 300
    assert settings.leader_elect
    assert settings.leader_elect_resource_name == "hami-scheduler"
    assert settings.leader_elect_resource_namespace == "kube-system"
    assert settings.own_pod == OwnPod("kube-system", "hami-scheduler-0")
    assert settings.debug
    assert settings.notices == ()


OPTIONAL: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "no leader election": ({"leader_elect": False}, {"leader_elect": False}),
    "webhook off": ({"webhook": False}, {"port": 80, "cert_file": None, "key_file": None}),
    "Ascend": ({"ascend": True}, {"enabled_families": frozenset({"ascend"})}),
    "Iluvatar": ({"iluvatar": True}, {"enabled_families": frozenset({"iluvatar"})}),
    "legacy metrics": ({"legacy_metrics": True}, {"legacy_metrics": True}),
    "only some nodes": (
        {"node_label_selector": {"gpu": "on", "zone": "a"}},
        {"node_selector": {"gpu": "on", "zone": "a"}},
    ),
    "policies": (
        {"node_policy": "spread", "gpu_policy": "topology-aware"},
        {"node_scheduler_policy": "spread", "gpu_scheduler_policy": "topology-aware"},
    ),
    "metrics elsewhere": (
        {"metrics_bind_address": "127.0.0.1:9000"},
        {"plain_host": "127.0.0.1", "plain_port": 9000},
    ),
    "quiet": ({"extra_args": ()}, {"debug": False}),
    "verbose only": ({"extra_args": ("-v=4",)}, {"debug": True}),
    "less verbose": ({"extra_args": ("-v=2",)}, {"debug": False}),
}


@pytest.mark.parametrize(("values", "expected"), OPTIONAL.values(), ids=OPTIONAL)
def test_every_optional_part(values: dict[str, object], expected: dict[str, object]) -> None:
    settings = charted(**values)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_pods_that_name_the_default_scheduler_may_keep_it() -> None:
    assert not charted(force_overwrite=False).admission.force_overwrite_default_scheduler


FLAGS: dict[str, tuple[Sequence[str], dict[str, object]]] = {
    "underscores": (["--http_bind=:80", "--scheduler_name=x"], {"host": "0.0.0.0", "port": 80, "scheduler_name": "x"}),
    "hyphens": (["--http-bind=:80", "--scheduler-name", "x"], {"host": "0.0.0.0", "port": 80, "scheduler_name": "x"}),
    "API client": (
        ["--kube-qps=20", "--kube-burst=40", "--kube-timeout=5"],
        {"kube_qps": 20.0, "kube_burst": 40, "kube_timeout_s": 5.0},
    ),
    "lock": (
        ["--node-lock-timeout=2m", "--node-lock-retry-timeout=10s"],
        {"node_lock_timeout_s": 120.0, "node_lock_retry_timeout_s": 10.0},
    ),
    "no waiting for locks": (["--node-lock-retry-timeout=0"], {"node_lock_retry_timeout_s": 0.0}),
    "nothing given": (
        [],
        {"host": "127.0.0.1", "port": 8080, "scheduler_name": "", "cert_file": None, "plain_port": 9395},
    ),
    "a false switch says nothing": (["--profiling=false", "--logtostderr=false"], {"notices": ()}),
}


@pytest.mark.parametrize(("argv", "expected"), FLAGS.values(), ids=FLAGS)
def test_flags(argv: Sequence[str], expected: dict[str, object]) -> None:
    settings = read(*argv)
    assert {name: getattr(settings, name) for name in expected} == expected


def test_the_environment_sets_the_lock_s_age_and_the_flag_wins() -> None:
    assert read(HAMI_NODELOCK_EXPIRE="90s").node_lock_timeout_s == 90
    assert read("--node-lock-timeout=2m", HAMI_NODELOCK_EXPIRE="90s").node_lock_timeout_s == 120
    assert read(NODE_SELECTOR_USAGE="gpu") == read()


def test_a_variable_that_hami_never_looked_at_does_not_keep_it_from_starting() -> None:
    settings = read("--scheduler-name=x", HAMI_NODELOCK_EXPIRE="300")
    assert settings.node_lock_timeout_s == 300
    (notice,) = settings.notices
    assert notice.startswith("$HAMI_NODELOCK_EXPIRE: '300' is not a duration: expected numbers with units")
    assert notice.endswith("; 5m0s instead")


WITHOUT_EFFECT = {
    "klog switch": (["--alsologtostderr"], "--alsologtostderr has no effect here"),
    "klog value": (["--log_dir=/var/log"], "--log-dir has no effect here"),
    "klog vmodule": (["--vmodule", "score=5"], "--vmodule has no effect here"),
    "profiling": (
        ["--profiling"],
        "--profiling has no effect here: there is no pprof in Python; use py-spy on the process",
    ),
    "a resource name": (
        ["--dcu-name=hygon.com/other"],
        "--dcu-name has no effect: resource names come from the device configuration, as with HAMi",
    ),
    "a resource name with a blank": (
        ["--cambricon-mlu-memory", "x"],
        "--cambricon-mlu-memory has no effect: resource names come from the device configuration, as with HAMi",
    ),
    "sGPU": (
        ["--sgpu-topology-aware=true"],
        "--sgpu-topology-aware has no effect here: the device configuration says it: metax.sgpuTopologyAware",
    ),
    "longer than the caller waits": (
        ["--node-lock-retry-timeout=1m"],
        "--node-lock-retry-timeout: 29s instead of 1m0s, so that a bind ends before its caller gives up",
    ),
}


@pytest.mark.parametrize(("argv", "notice"), WITHOUT_EFFECT.values(), ids=WITHOUT_EFFECT)
def test_what_has_no_effect_is_taken_and_said(argv: Sequence[str], notice: str) -> None:
    settings = read(*argv, "--scheduler-name=x")
    assert settings.notices == (notice,)
    assert settings.scheduler_name == "x"
    assert settings.node_lock_retry_timeout_s <= 29


REFUSED = {
    "quota that needs other rights": (
        ["--quota-counts=admitted"],
        r"--quota-counts: 'admitted' is not accepted here: HAMi's account may not write the records",
    ),
    "half a certificate": (["--cert_file=/tls/tls.crt"], "--cert_file and --key_file belong together"),
    "leader election without a pod": (
        ["--leader-elect", "--leader-elect-resource-name=a", "--leader-elect-resource-namespace=b"],
        r"--leader-elect: \$POD_NAME and \$POD_NAMESPACE must name the pod",
    ),
    "a name without its value": (["--dcu-name"], "--dcu-name: a value is missing: expected a resource name"),
}


@pytest.mark.parametrize(("argv", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(argv: Sequence[str], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        parse(argv, {})


@pytest.mark.parametrize("argv", [["--dcu"], ["--unknown=1"], ["--enable-biren"]])
def test_unknown_flags_end_the_start(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read(*argv)
    assert ended.value.code == 2
    assert f"unrecognized arguments: {argv[0]}" in capsys.readouterr().err


def test_other_schedulers_pods_and_ignored_pods_are_let_through_as_with_hami() -> None:
    admission = charted().admission
    assert admission.lets_pass("default-scheduler")
    assert admission.ignored_device_pods == "allow"
    assert admission.quota_counts == "placed"


def test_the_version_is_a_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert hami.main(["version"]) == 0
    assert capsys.readouterr().out.startswith("slotwise ")


def test_the_help_names_every_flag_that_does_something() -> None:
    shown = new_parser().format_help()
    for argument in command(Values(ascend=True, iluvatar=True, legacy_metrics=True, node_label_selector={"a": "b"}))[
        1:
    ]:
        flag = argument.partition("=")[0]
        assert (flag.replace("_", "-") if flag.startswith("--") else f"{flag} ") in shown
