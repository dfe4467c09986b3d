"""Settings read from the command line of a container, as the process in it reads them."""

import msgspec
import pytest

from manifests.errors import ProcessError
from manifests.processes import Variable, environment_of, module_of, scheduler_settings, webhook_settings


def test_settings_are_those_of_the_process() -> None:
    assert scheduler_settings(["python", "-m", "scheduler", "--node-lock=never"], {}).node_lock == "never"
    webhook = webhook_settings(["python", "-m", "webhook", "--scheduler-name=ours"], {"POD_NAMESPACE": "tenants"})
    assert (webhook.admission.scheduler_name, webhook.own_namespace) == ("ours", "tenants")


REFUSED = {
    "another module": (["python", "-m", "webhook"], "does not run the module scheduler"),
    "no module": (["scheduler"], "does not run the module scheduler"),
    "an unknown flag": (["python", "-m", "scheduler", "--nodelock=auto"], "unrecognized arguments: --nodelock=auto"),
    "a value that is not accepted": (["python", "-m", "scheduler", "--node-lock=maybe"], "--node-lock: 'maybe'"),
}


@pytest.mark.parametrize(("line", "text"), REFUSED.values(), ids=REFUSED)
def test_a_command_line_that_starts_nothing_is_refused(line: list[str], text: str) -> None:
    with pytest.raises(ProcessError, match=text):
        scheduler_settings(line, {})


def test_environment_of_a_container() -> None:
    documents = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "PLAIN", "value": "value"},
    ]
    known = environment_of(msgspec.convert(documents, list[Variable]), "ours")
    assert known == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "ours", "PLAIN": "value"}


def test_module_of_a_command_line() -> None:
    assert module_of(["python", "-X", "dev", "-m", "webhook", "--debug"]) == "webhook"
    assert module_of(["kube-scheduler", "--config=/x"]) == module_of(["python", "-m"]) == ""
