"""The command line."""

from pathlib import Path

import pytest

from devices.kube.freshness import OwnPod
from scheduler.__main__ import main
from scheduler.config import Settings, parse
from scheduler.errors import SettingsError

NO_ENVIRONMENT: dict[str, str] = {}


def test_defaults_are_the_settings_own() -> None:
    assert parse([], NO_ENVIRONMENT) == Settings()
    settings = Settings()
    assert (settings.host, settings.port, settings.plain_host, settings.plain_port) == (
        "127.0.0.1",
        8888,
        "0.0.0.0",
        9395,
    )
    assert (settings.node_scheduler_policy, settings.gpu_scheduler_policy) == ("binpack", "spread")
    assert (settings.node_lock_timeout_s, settings.node_lock_wait_s, settings.node_lock_retry_timeout_s) == (300, 2, 28)
    assert (settings.reservation_timeout_s, settings.bind_timeout_s, settings.event_nodes) == (660, 5, 100)


FLAGS = (
    "--http_bind=127.0.0.1:9443 --cert_file=/tls/tls.crt --key-file /tls/tls.key --metrics_bind_address=:9090"
    " --drain-timeout=1m30s --scheduler-name=s --node_scheduler_policy=spread --gpu-scheduler-policy=numa,binpack"
    " --node-choice=scheduler --reservation-timeout=5m --bind-timeout=4s --event-nodes=0 --decisions-kept=7"
    " --node-lock=never --node-lock-timeout=1m --node_lock_wait=1s --node-lock-retry-timeout=0 --handshake=always"
    " --device-config-file=d.yaml --node-label-selector=gpu=on,zone=a --kubeconfig=k --kube-qps=5 --kube-burst=10"
    " --kube-timeout=7 --legacy-metrics=true --leader-elect=true --leader-elect-resource-name=x"
    " --leader-elect-resource-namespace=y --leader-elect-margin=2s --profiling=false -v=4"
)


@pytest.mark.parametrize("spelling", ["as given", "hyphens", "underscores"])
def test_every_flag_in_either_spelling(spelling: str) -> None:
    words = FLAGS.split()
    if spelling != "as given":
        old, new = ("_", "-") if spelling == "hyphens" else ("-", "_")
        words = [
            word.partition("=")[0][:2]
            + (word.partition("=")[0][2:].replace(old, new))
            + "".join(word.partition("=")[1:])
            if word.startswith("--")
            else word
            for word in words
        ]
    environment = {"HAMI_NODELOCK_EXPIRE": "9m", "POD_NAME": "p", "POD_NAMESPACE": "ns"}
    assert parse(words, environment) == Settings(
        host="127.0.0.1",
        port=9443,
        cert_file=Path("/tls/tls.crt"),
        key_file=Path("/tls/tls.key"),
        plain_port=9090,
        scheduler_name="s",
        node_scheduler_policy="spread",
        gpu_scheduler_policy="numa,binpack",
        node_choice="scheduler",
        node_lock="never",
        node_lock_timeout_s=60,
        node_lock_wait_s=1,
        node_lock_retry_timeout_s=0,
        bind_timeout_s=4,
        reservation_timeout_s=300,
        handshake="always",
        legacy_metrics=True,
        event_nodes=0,
        decisions_kept=7,
        leader_elect=True,
        leader_elect_resource_name="x",
        leader_elect_resource_namespace="y",
        leader_elect_margin_s=2,
        own_pod=OwnPod("ns", "p"),
        device_config_file="d.yaml",
        node_selector={"gpu": "on", "zone": "a"},
        kubeconfig="k",
        kube_qps=5,
        kube_burst=10,
        kube_timeout_s=7,
        drain_timeout_s=90,
        debug=True,
    )


EXPIRY: dict[str, tuple[list[str], dict[str, str], float]] = {
    "neither": ([], {}, 300),
    "the environment": ([], {"HAMI_NODELOCK_EXPIRE": "1m30s"}, 90),
    "an empty environment": ([], {"HAMI_NODELOCK_EXPIRE": ""}, 300),
    "the flag before the environment": (["--node-lock-timeout=2m"], {"HAMI_NODELOCK_EXPIRE": "9m"}, 120),
    "the flag, even where it says the default": (["--node-lock-timeout=5m"], {"HAMI_NODELOCK_EXPIRE": "9m"}, 300),
}


@pytest.mark.parametrize(("argv", "environment", "seconds"), EXPIRY.values(), ids=EXPIRY)
def test_expiry_of_the_node_lock(argv: list[str], environment: dict[str, str], seconds: float) -> None:
    assert parse(argv, environment).node_lock_timeout_s == seconds


def test_the_environment_is_the_process_own_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMI_NODELOCK_EXPIRE", "7m")
    assert parse([]).node_lock_timeout_s == 420


def test_verbosity_below_4_is_no_debugging() -> None:
    assert not parse(["-v=3"]).debug
    assert parse(["--debug"]).debug
    assert parse(["--v", "5"]).debug


UNREADABLE = {
    "unknown": ("--nonsense=1", "unrecognized arguments: --nonsense=1; see python -m scheduler --help"),
    "a slip of the pen": (
        "--nodelock=never",
        "unrecognized arguments: --nodelock=never (did you mean --node-lock?); see",
    ),
    "a shortened flag": ("--node-lock-time=1m", "unrecognized arguments"),
    "an address without port": ("--http_bind=localhost", "'localhost' is not an address: expected host:port or :port"),
    "a duration without unit": ("--bind-timeout=25", "'25' is not a duration"),
    "no number": ("--event-nodes=few", "invalid int value: 'few'"),
    "a boolean that is none": ("--leader-elect=maybe", "'maybe' is not a boolean: expected true or false"),
    "a label that is none": ("--node-label-selector=gpu", "'gpu' is not a label: expected key=value"),
}


@pytest.mark.parametrize(("flag", "text"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_flags_end_with_2(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


UNACCEPTED = {
    "node choice": ("--node-choice=both", "--node-choice: 'both' is not accepted: expected extender, scheduler"),
    "node lock": ("--node-lock=on", "--node-lock: 'on' is not accepted: expected auto, always, never"),
    "handshake": ("--handshake=", "--handshake: '' is not accepted: expected auto, always, never"),
    "half a pair": ("--cert_file=x", "--cert_file and --key_file belong together: give both or neither"),
    "no expiry": ("--node-lock-timeout=0", "--node-lock-timeout: 0 s is not accepted: expected a duration above 0"),
    "a negative duration": ("--bind-timeout=-5s", "--bind-timeout: -5 s is not accepted: expected a duration above 0"),
    "no reservation": ("--reservation-timeout=0s", "--reservation-timeout: 0 s is not accepted"),
    "no drain": ("--drain-timeout=0", "--drain-timeout: 0 s is not accepted"),
    "a wait as long as the caller's": (
        "--node-lock-retry-timeout=30s",
        "--node-lock-retry-timeout, --node-lock-wait: 30 s is not accepted: expected less than the 30 s",
    ),
    "a longer ordinary wait": ("--node-lock-wait=1m", "60 s is not accepted"),
    "fewer than no nodes": ("--event-nodes=-1", "--event-nodes: -1 is not accepted: expected 0 or more"),
    "fewer than no decisions": ("--decisions-kept=-1", "--decisions-kept: -1 is not accepted"),
    "a negative time-out": ("--kube-timeout=-1s", "--kube-timeout: -1 s is not accepted: expected 0 or more"),
    "no margin": ("--leader-elect-margin=0", "--leader-elect-margin: 0 s is not accepted: expected a duration above 0"),
    "leader election without a Lease": (
        "--leader-elect",
        "--leader-elect-resource-name: '' is not accepted: with --leader-elect it must be leaderElection.resourceName",
    ),
    "profiling": ("--profiling=true", "--profiling: true is not available: there is no pprof in Python"),
    "a device configuration that is not there": ("--device-config-file=/nowhere.yaml", "/nowhere.yaml"),
}


@pytest.mark.parametrize(("flag", "text"), UNACCEPTED.values(), ids=UNACCEPTED)
def test_values_that_are_not_accepted_end_with_2(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([flag]) == 2
    err = capsys.readouterr().err
    assert err.startswith("scheduler: ")
    assert text in err


LEASE = ["--leader-elect", "--leader-elect-resource-name=x"]
POD = {"POD_NAME": "p", "POD_NAMESPACE": "ns"}
ELECTIONS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "no namespace": (LEASE, POD, "--leader-elect-resource-namespace: '' is not accepted"),
    "a namespace within the name": (
        ["--leader-elect", "--leader-elect-resource-name=ns/x"],
        POD,
        "--leader-elect-resource-name: 'ns/x' is not accepted",
    ),
    "no pod": (
        [*LEASE, "--leader-elect-resource-namespace=ns"],
        {},
        "--leader-elect: $POD_NAME and $POD_NAMESPACE must",
    ),
    "half a pod": ([*LEASE, "--leader-elect-resource-namespace=ns"], {"POD_NAME": "p"}, "--leader-elect: $POD_NAME"),
}


@pytest.mark.parametrize(("argv", "environment", "text"), ELECTIONS.values(), ids=ELECTIONS)
def test_leader_election_needs_all_that_it_works_with(argv: list[str], environment: dict[str, str], text: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(argv, environment)
    assert str(refused.value).startswith(text)


def test_an_unreadable_environment_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^\$HAMI_NODELOCK_EXPIRE: '300' is not a duration: expected numbers"):
        parse([], {"HAMI_NODELOCK_EXPIRE": "300"})


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"])
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for flag in ("--http-bind", "--node-lock-timeout", "--gpu-scheduler-policy", "--kube-qps", "Example:"):
        assert flag in shown


def test_a_kubeconfig_that_is_not_there_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--kubeconfig={tmp_path / 'none'}"]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
