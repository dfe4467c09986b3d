"""What can go wrong in the doctor itself, as a tree."""

__all__ = ["BundleError", "DoctorError"]


class DoctorError(Exception):
    """The doctor cannot do what it was asked; the text tells the repair."""


class BundleError(DoctorError):
    """The archive cannot be written."""
