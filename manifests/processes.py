"""The settings with which a container of ours is started, read from its command line as the process itself reads it."""

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from manifests.errors import ProcessError
from scheduler.config import Settings as SchedulerSettings
from scheduler.config import parse as parse_scheduler
from scheduler.errors import SettingsError as SchedulerSettingsError
from webhook.config import NAMESPACE_VARIABLE
from webhook.config import Settings as WebhookSettings
from webhook.config import parse as parse_webhook
from webhook.errors import SettingsError as WebhookSettingsError

__all__ = ["SCHEDULER_MODULE", "WEBHOOK_MODULE", "module_of", "scheduler_settings", "webhook_settings"]

S = TypeVar("S")

SCHEDULER_MODULE: Final = "scheduler"
WEBHOOK_MODULE: Final = "webhook"


def module_of(line: Sequence[str]) -> str:
    """Which module of Python `line` (command and arguments) runs; empty where it runs none."""
    return next((line[at + 1] for at, word in enumerate(line[:-1]) if word == "-m"), "")


def webhook_settings(line: Sequence[str], namespace: str) -> WebhookSettings:
    """Of `python -m webhook …`, run in that namespace. Raises `ProcessError`."""
    return _settings(
        line, WEBHOOK_MODULE, lambda flags: parse_webhook(flags, {NAMESPACE_VARIABLE: namespace}), WebhookSettingsError
    )


def scheduler_settings(line: Sequence[str]) -> SchedulerSettings:
    """Of `python -m scheduler …`. Raises `ProcessError`."""
    return _settings(line, SCHEDULER_MODULE, lambda flags: parse_scheduler(flags, {}), SchedulerSettingsError)


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
