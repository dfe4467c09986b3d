"""What a set of settings makes of an overlay: collected first, then carried out in an order that is always the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from manifests.errors import SettingError
from manifests.families import Families, shipped_document
from manifests.objects import Objects

__all__ = ["Edit", "Plan", "Setting", "planned"]

T = TypeVar("T")
Edit = Callable[[Objects], None]


@dataclass
class Plan:
    """Filled by settings in the order of their table, whatever the order on the command line."""

    device_config: dict[str, object] = field(default_factory=shipped_document)
    enabled: list[str] = field(default_factory=list)
    """Optional families to be on."""
    components: list[str] = field(default_factory=list)
    """Kustomize components to be put on top of the overlay."""
    edits: list[Edit] = field(default_factory=list)
    namespace: str = ""
    """Where everything goes; empty: where the files put it."""
    warnings: list[str] = field(default_factory=list)
    """What was given and has no effect."""

    def families(self) -> Families:
        """Raises `devices.errors.ConfigError` for a device configuration that cannot be used."""
        return Families(self.device_config, tuple(self.enabled))


@dataclass(frozen=True)
class Setting:
    """One key of `--set`. `default` is what the files say (of `base`, where overlays differ); empty means none."""

    name: str
    default: str
    accepts: str
    """In words, for the table and for errors."""
    about: str
    example: str
    """Another value than the default."""
    apply: Callable[[Plan, str], None] = field(repr=False)
    """Raises ValueError with what is accepted."""

    def put(self, plan: Plan, text: str) -> None:
        """Take a value into the plan. Raises `SettingError` naming key, value and what is accepted."""
        try:
            self.apply(plan, text)
        except ValueError as error:
            raise SettingError(f"--set {self.name}={text}: {error}; accepted: {self.accepts}") from error


def planned(read: Callable[[str], T], edit: Callable[[Objects, T], None]) -> Callable[[Plan, str], None]:
    """A setting's `apply`: read the value at once, change objects with it later."""

    def apply(plan: Plan, text: str) -> None:
        value = read(text)
        plan.edits.append(lambda objects: edit(objects, value))

    return apply
