"""What the extender answers as an error, apart from "does not fit"."""


class SchedulerError(Exception):
    """The root; the text goes to the caller."""


class RequestError(SchedulerError):
    """A request of kube-scheduler that cannot be understood."""


class SettingsError(SchedulerError):
    """A flag or setting that cannot be used; names flag, value and what is accepted."""


class BindError(SchedulerError):
    """The pod was not bound."""


class PodNotFoundError(BindError):
    """The pod does not exist (any more)."""


class NodeNotFoundError(BindError):
    """The node is not known."""


class LockContentionError(BindError):
    """Another pod holds the node's lock."""


class LockFailedError(BindError):
    """The node's lock could not be taken for another reason than contention."""


class NotLeadingError(BindError):
    """This replica may not bind: it does not lead, or not for long enough."""
