"""The command line."""

from pathlib import Path

import pytest
import yaml

from devices.admission_objects import admission_documents
from devices.config import default_config
from webhook.__main__ import main
from webhook.config import AdmissionSettings, Settings, parse
from webhook.errors import SettingsError

ROOT = Path(__file__).parents[2]


def test_defaults_are_the_settings_own() -> None:
    assert parse([], {}) == Settings()


def test_every_flag_in_either_spelling() -> None:
    flags = (
        "--http_bind=127.0.0.1:9443 --cert_file=/tls/tls.crt --key-file /tls/tls.key --metrics_bind_address=:9090"
        " --drain-timeout=1m30s --scheduler-name=s --force-overwrite-default-scheduler=false"
        " --foreign-schedulers=volcano,yunikorn --ignored_device_pods=warn --quota-counts=placed --quota-in-webhook"
        " --scheduler-accounts=system:kube-scheduler,volcano --key_writers=plugin"
        " --device-config-file=d.yaml --node-label-selector=gpu=on,zone=a --kubeconfig=k --kube-qps=5 --kube-burst=10"
        " --kube-timeout=7 -v=4"
    )
    settings = parse(flags.split())
    assert settings == Settings(
        admission=AdmissionSettings(
            scheduler_name="s",
            force_overwrite_default_scheduler=False,
            foreign_schedulers=frozenset({"volcano", "yunikorn"}),
            ignored_device_pods="warn",
            quota_in_webhook=True,
            scheduler_accounts=frozenset({"system:kube-scheduler", "volcano"}),
            key_writers=frozenset({"plugin"}),
        ),
        host="127.0.0.1",
        port=9443,
        cert_file=Path("/tls/tls.crt"),
        key_file=Path("/tls/tls.key"),
        plain_port=9090,
        device_config_file="d.yaml",
        node_selector={"gpu": "on", "zone": "a"},
        kubeconfig="k",
        kube_qps=5,
        kube_burst=10,
        kube_timeout_s=7,
        drain_timeout_s=90,
        debug=True,
    )


VARIABLES = {
    "SLOTWISE_FOREIGN_SCHEDULERS": "volcano",
    "SLOTWISE_IGNORED_DEVICE_PODS": "warn",
    "SLOTWISE_SCHEDULER_ACCOUNTS": "a, b",
    "SLOTWISE_KEY_WRITERS": "",
}


def test_lists_of_the_policy_come_from_the_environment_where_no_flag_gives_them() -> None:
    found = parse([], VARIABLES).admission
    assert (found.foreign_schedulers, found.ignored_device_pods) == (frozenset({"volcano"}), "warn")
    assert (found.scheduler_accounts, found.key_writers) == (frozenset({"a", "b"}), frozenset())
    flags = ["--foreign-schedulers=", "--ignored-device-pods=allow", "--scheduler-accounts=c", "--key-writers=d,e"]
    given = parse(flags, VARIABLES).admission
    assert (given.foreign_schedulers, given.ignored_device_pods) == (frozenset(), "allow")
    assert (given.scheduler_accounts, given.key_writers) == (frozenset({"c"}), frozenset({"d", "e"}))


def test_a_word_of_the_environment_that_is_not_accepted_is_named() -> None:
    with pytest.raises(
        SettingsError, match="--ignored-device-pods: 'drop' is not accepted: expected deny, warn, allow"
    ):
        parse([], {"SLOTWISE_IGNORED_DEVICE_PODS": "drop"})


def test_verbosity_below_4_is_no_debugging() -> None:
    assert not parse(["-v=3"]).debug
    assert parse(["--debug"]).debug


UNREADABLE = {
    "unknown": ("--nonsense=1", "unrecognized arguments: --nonsense=1"),
    "a shortened flag": ("--scheduler=x", "unrecognized arguments"),
    "an address without port": ("--http_bind=localhost", "'localhost' is not an address: expected host:port or :port"),
    "a duration without unit": ("--drain-timeout=25", "'25' is not a duration"),
    "a boolean that is none": ("--quota-in-webhook=maybe", "'maybe' is not a boolean: expected true or false"),
    "an unknown word": ("--ignored-device-pods=drop", "invalid choice: 'drop'"),
}


@pytest.mark.parametrize(("flag", "text"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_flags(flag: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


REFUSED = {
    "another word for quota": (
        ["--quota-counts=all"],
        "webhook: --quota-counts: 'all' is not accepted: expected placed, admitted\n",
    ),
    "half a pair": (["--cert_file=x"], "webhook: --cert_file and --key_file belong together: give both or neither\n"),
    "a negative time": (
        ["--drain-timeout=-1s"],
        "webhook: --drain-timeout: -1 s is not accepted: expected a duration above 0\n",
    ),
    "a burst below 1": (
        ["--kube-burst=0"],
        "webhook: --kube-burst: 0 is not accepted: with --kube-qps above 0 it must be at least 1\n",
    ),
    "a missing device config": (
        ["--device-config-file=/nowhere.yaml"],
        "webhook: cannot read the device configuration /nowhere.yaml:"
        " [Errno 2] No such file or directory: '/nowhere.yaml'\n",
    ),
    "a missing kubeconfig": (
        ["--kubeconfig=/nowhere"],
        "webhook: --kubeconfig: no such file: /nowhere\n",
    ),
}


@pytest.mark.parametrize(("argv", "text"), REFUSED.values(), ids=REFUSED)
def test_values_that_cannot_be_used_end_the_start(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err == text


def test_a_word_outside_the_list_is_no_setting() -> None:
    with pytest.raises(SettingsError, match="'drop' is not accepted: expected deny, warn, allow"):
        AdmissionSettings(ignored_device_pods="drop")
    with pytest.raises(SettingsError, match="port 70000 is out of range"):
        Settings(port=70000)


def test_the_manifests_give_the_webhook_what_they_give_the_policy() -> None:
    """Each variable comes from a key of the ConfigMap that the policy reads, and what is shipped is what is the default."""
    parameters, *_ = admission_documents(default_config())["policy.yaml"]
    data = parameters["data"]
    assert isinstance(data, dict)
    documents = yaml.safe_load_all((ROOT / "manifests" / "base" / "webhook.yaml").read_text())
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    sources = {row["name"]: row["valueFrom"].get("configMapKeyRef") for row in container["env"]}
    given = {name: source["key"] for name, source in sources.items() if source and source["name"] == "slotwise-policy"}
    assert given == {
        "SLOTWISE_KEY_WRITERS": "keyWriters",
        "SLOTWISE_SCHEDULER_ACCOUNTS": "schedulerAccounts",
        "SLOTWISE_FOREIGN_SCHEDULERS": "foreignSchedulers",
        "SLOTWISE_IGNORED_DEVICE_PODS": "ignoredDevicePods",
    }
    shipped = parse([], {name: data[key] for name, key in given.items()})
    assert shipped == parse([], {})
    assert data["schedulerNames"] == shipped.admission.scheduler_name
    assert set(given.values()) | {"schedulerNames"} == set(data)
