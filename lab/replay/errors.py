"""What makes a scenario unplayable, as opposed to different."""


class ReplayError(Exception):
    """The scenario cannot be played; the text names file, place, value and what is accepted."""
