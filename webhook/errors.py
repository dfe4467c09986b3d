"""Everything the webhook can object to.

A refused pod is none of these: it is a value (`webhook.validators.Refusal`). These are a pod that is none, a request that is no
review, and settings that cannot be used; whatever else is raised is a fault of ours.
"""

from serving.errors import RequestError

__all__ = ["BadReviewError", "NotAPodError", "QuotaUnavailableError", "SettingsError", "WebhookError"]


class WebhookError(Exception):
    """Root of this package's errors."""


class NotAPodError(WebhookError):
    """The object of a review is not a Pod; the text is the decoder's."""


class SettingsError(WebhookError):
    """The settings cannot be used; the text names flag, value and what is accepted."""


class QuotaUnavailableError(WebhookError):
    """Quota could not be checked, so the pod must be refused; the text is for the pod's author."""


class BadReviewError(RequestError, WebhookError):
    """The body is not an AdmissionReview that could be answered: HTTP 400 with one line."""
