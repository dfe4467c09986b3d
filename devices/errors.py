"""Everything the device model can object to, as one tree.

"Does not fit" is not among them: that is a value with a `devices.reasons.Reason`.
"""


class DeviceError(Exception):
    """The root: bad input that names what is wrong with it."""


class QuantityError(DeviceError):
    """A text that is no Kubernetes quantity, or one that is not a whole number where one is needed."""


class MalformedValue(DeviceError):
    """A resource value of a container that cannot be used; its text is the denial a user reads."""


class WeightsError(DeviceError):
    """The annotation `hami.io/device-scoring-weights` cannot be used; the text is the recorded one."""


class RegistrationError(DeviceError):
    """A node's card list (or one card in it) cannot be read."""


class AllocationError(DeviceError):
    """The allocation text or MIG reservation of a pod cannot be read."""


class LockError(DeviceError):
    """The value of a node lock cannot be read."""


class BindingMetadataError(DeviceError):
    """An annotation or label that the API server would store in a Binding but never accept afterwards."""


class ConfigError(DeviceError):
    """The device configuration cannot be used; the text names line and key."""
