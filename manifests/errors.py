"""Errors of the manifests: everything that is refused says where, what, and what is accepted."""

__all__ = ["ManifestError", "ProcessError", "RegionError", "SettingError"]


class ManifestError(Exception):
    """Manifests cannot be rendered, changed or checked as asked."""


class RegionError(ManifestError):
    """A generated part of a file has no name we know, or no end."""


class ProcessError(ManifestError):
    """A container's command line does not start what it should; the text names the flag."""


class SettingError(ManifestError):
    """A setting that is not there, or a value that it does not take; the text names key, value and what is accepted."""
