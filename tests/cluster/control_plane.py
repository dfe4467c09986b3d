"""Kept for a moment: moved to lab.control_plane."""

from lab.control_plane import ADMIN, ApiError, AuditedCall, ControlPlane, User

__all__ = ["ADMIN", "ApiError", "AuditedCall", "ControlPlane", "User"]
