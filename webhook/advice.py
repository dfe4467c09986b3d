"""What a pod's author should know although the pod is allowed: warnings of the answer, which kubectl prints."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from devices.config import DeviceConfig
from devices.errors import WeightsError
from devices.keys import CARD_POLICY, IGNORE_LABEL, NODE_POLICY, WEIGHTS
from devices.ledger import Ledger
from devices.requests import PodRequest
from devices.score import weights_of

__all__ = ["CARD_POLICY_WORDS", "NODE_POLICY_WORDS", "OWN_PREFIX", "Advice", "annotation_advice", "too_many_cards"]

NODE_POLICY_WORDS = ("binpack", "spread")
CARD_POLICY_WORDS = ("binpack", "spread", "numa", "mutex", "topology-aware")

_POLICIES = frozenset({NODE_POLICY, CARD_POLICY, WEIGHTS})

OWN_PREFIX = "hami.io/"
"""Of annotations and labels: whoever writes one means us."""
_ONE_MAX = 256
"""Characters of a warning that the API server passes on when the total is long."""
_TOTAL_MAX = 4096
"""Characters of all warnings together that the API server passes on."""


class Advice:
    """Collects warnings in order, each once."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}

    def add(self, text: str) -> None:
        """Add one; users' own text in it is made printable, because a warning travels as an HTTP header."""
        clean = "".join(character if character.isprintable() else " " for character in text)
        self._texts[clean if len(clean) <= _ONE_MAX else clean[: _ONE_MAX - 1] + "…"] = None

    def texts(self) -> tuple[str, ...]:
        """All of them, or as many as are passed on and a last one that says how many more there were."""
        kept: list[str] = []
        room = _TOTAL_MAX - len("and 1000000 more warnings")
        for text in self._texts:
            room -= len(text)
            if room < 0:
                return (*kept, f"and {len(self._texts) - len(kept)} more warnings")
            kept.append(text)
        return tuple(kept)


def annotation_advice(annotations: Mapping[str, str], config: DeviceConfig, asks: bool) -> Iterable[str]:
    """Annotations that look like ours and have no effect, and values of ours that are not understood.

    Keys with a family's own prefix are looked at in device pods only: others use such prefixes too.
    """
    if not annotations:
        return
    prefixes = config.annotation_prefixes if asks else (OWN_PREFIX,)
    for key in sorted(annotations):
        if key == IGNORE_LABEL:
            yield f"annotation {key} has no effect: it is a label"
        elif key.startswith(prefixes) and key not in config.known_annotations and key not in _POLICIES:
            close = get_close_matches(key, sorted(_POLICIES | config.known_annotations), n=1, cutoff=0.8)
            yield f"annotation {key} has no effect" + (f", did you mean {close[0]}?" if close else "")
    if asks and not _POLICIES.isdisjoint(annotations):
        yield from _policy_advice(annotations)


def _policy_advice(annotations: Mapping[str, str]) -> Iterable[str]:
    node = annotations.get(NODE_POLICY, "").strip()
    if node and node not in NODE_POLICY_WORDS:
        yield f"{NODE_POLICY}: {node} is unknown and acts as binpack; known are {', '.join(NODE_POLICY_WORDS)}"
    for word in (part.strip() for part in annotations.get(CARD_POLICY, "").split(",")):
        if word and word not in CARD_POLICY_WORDS:
            yield f"{CARD_POLICY}: {word} is unknown and ignored; known are {', '.join(CARD_POLICY_WORDS)}"
    try:
        weights_of(annotations)
    except WeightsError as error:
        yield f"the pod will not be placed: {error}"


def too_many_cards(request: PodRequest, ledger: Ledger) -> Iterable[str]:
    """Containers that ask for more cards than any node has; nothing is said while no node has any."""
    for container in request.containers:
        for device in container.devices:
            most = ledger.most_cards(device.vendor)
            if 0 < most < device.count:
                yield f"container {container.name} asks for {device.count} {device.vendor} cards, the largest node has {most}"
