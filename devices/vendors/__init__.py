"""The accelerator families, one module each. A module with a `FAMILY` is part of the system; nothing else names it."""

import importlib
import pkgutil
from dataclasses import replace

from devices.vendor import Family, FamilySettings

__all__ = ["families"]


def families() -> tuple[Family[FamilySettings], ...]:
    """Every family of this package, by section name."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = (replace(module.FAMILY, about=(module.__doc__ or "").partition("\n")[0]) for module in modules)
    return tuple(sorted(found, key=lambda family: family.section))
