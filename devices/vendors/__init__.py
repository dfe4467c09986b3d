"""The accelerator families, one module each. A module with a `FAMILY` is part of the system; nothing else names it."""

import importlib
import pkgutil

from devices.vendor import Family, FamilySettings

__all__ = ["families"]


def families() -> tuple[Family[FamilySettings], ...]:
    """Every family of this package, by section name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return tuple(sorted((module.FAMILY for module in modules), key=lambda family: family.section))
