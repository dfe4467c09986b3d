"""The settings with which a container of ours is started, read from its command line as the process itself reads it."""

import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from manifests.errors import ProcessError
from scheduler.config import Settings as SchedulerSettings
from scheduler.config import parse as parse_scheduler
from scheduler.errors import SettingsError as SchedulerSettingsError
from webhook.config import Settings as WebhookSettings
from webhook.config import parse as parse_webhook
from webhook.errors import SettingsError as WebhookSettingsError

__all__ = [
    "SCHEDULER_MODULE",
    "WEBHOOK_MODULE",
    "Variable",
    "environment_of",
    "module_of",
    "scheduler_settings",
    "webhook_settings",
]

S = TypeVar("S")

SCHEDULER_MODULE: Final = "scheduler"
WEBHOOK_MODULE: Final = "webhook"


class _FieldReference(msgspec.Struct, rename="camel", frozen=True):
    field_path: str = ""


class _Source(msgspec.Struct, rename="camel", frozen=True):
    field_ref: _FieldReference = _FieldReference()


class Variable(msgspec.Struct, rename="camel", frozen=True):
    """One of a container's `env`."""

    name: str = ""
    value: str = ""
    value_from: _Source | None = None


def environment_of(variables: Sequence[Variable], namespace: str) -> Mapping[str, str]:
    """What the variables will hold in that namespace; what only a running pod knows (its name) stands for itself."""
    found: dict[str, str] = {}
    for variable in variables:
        path = variable.value_from.field_ref.field_path if variable.value_from is not None else ""
        found[variable.name] = namespace if path == "metadata.namespace" else path or variable.value
    return found


def module_of(line: Sequence[str]) -> str:
    """Which module of Python `line` (command and arguments) runs; empty where it runs none."""
    return next((line[at + 1] for at, word in enumerate(line[:-1]) if word == "-m"), "")


def webhook_settings(line: Sequence[str], environment: Mapping[str, str]) -> WebhookSettings:
    """Of `python -m webhook …` with these environment variables. Raises `ProcessError`."""
    return _settings(line, WEBHOOK_MODULE, lambda flags: parse_webhook(flags, environment), WebhookSettingsError)


def scheduler_settings(line: Sequence[str], environment: Mapping[str, str]) -> SchedulerSettings:
    """Of `python -m scheduler …` with these environment variables. Raises `ProcessError`."""
    return _settings(line, SCHEDULER_MODULE, lambda flags: parse_scheduler(flags, environment), SchedulerSettingsError)


def _settings(line: Sequence[str], module: str, parse: Callable[[Sequence[str]], S], refused: type[Exception]) -> S:
    if module_of(line) != module:
        raise ProcessError(
            f"the command {' '.join(line)!r} does not run the module {module}: expected python -m {module} …"
        )
    flags = line[list(line).index(module) + 1 :]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parse(flags)
    except refused as error:
        raise ProcessError(str(error)) from error
    except SystemExit as error:  # argparse's way of refusing flags that it cannot read
        last = said.getvalue().strip().splitlines()[-1:]
        raise ProcessError(last[0] if last else f"the flags {' '.join(flags)!r} cannot be read") from error
