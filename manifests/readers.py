"""Values of settings as people write them: each reader says in its error what is accepted, never which setting it was."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from serving.flags import boolean, duration

__all__ = [
    "at_least",
    "boolean",
    "choice",
    "dns_label",
    "duration",
    "image",
    "labels",
    "names",
    "quantities",
    "some_text",
    "tolerations",
    "url",
    "version",
]

_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_IMAGE: Final = re.compile(r"[a-z0-9][a-z0-9._:/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?")
_VERSION: Final = re.compile(r"v?(\d+\.\d+\.\d+([-+.][0-9A-Za-z.+-]*)?)")
_QUANTITY: Final = re.compile(r"(\d+|\d+\.\d+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")
_URL: Final = re.compile(r"https://[^\s/?#@]+(/[^\s?#]*)?")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def choice(*accepted: str) -> Callable[[str], str]:
    """One of these words."""

    def read(text: str) -> str:
        if text not in accepted:
            raise ValueError(f"expected {' or '.join(accepted)}")
        return text

    return read


def at_least(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """A whole number within bounds."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
            raise ValueError(
                f"expected a whole number of {least} or more" + (f", at most {most}" if most < 2**31 - 1 else "")
            )
        return int(text)

    return read


def some_text(text: str) -> str:
    """Anything but nothing."""
    if not text.strip():
        raise ValueError("expected a text that is not empty")
    return text


def dns_label(text: str) -> str:
    """What a namespace may be called."""
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError("expected a DNS label: lower-case letters, digits and '-', at most 63 characters")
    return text


def names(text: str) -> Sequence[str]:
    """Names joined by commas, in their order; empty text is none."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in found:
        if re.search(r"\s", name):
            raise ValueError(f"{name!r} has blanks: expected names joined by commas")
    return found


def labels(text: str) -> Mapping[str, str]:
    """`key=value,key=value`; empty text is none."""
    found: dict[str, str] = {}
    for part in (piece.strip() for piece in text.split(",")):
        key, equals, value = part.partition("=")
        if part and (not equals or not key.strip()):
            raise ValueError(f"{part!r} is no pair: expected key=value, several of them joined by commas")
        if part:
            found[key.strip()] = value.strip()
    return found


def image(text: str) -> str:
    """A reference of a container image."""
    if not _IMAGE.fullmatch(text):
        raise ValueError("expected an image such as registry.example.com/slotwise:0.1.0, or with @sha256:…")
    return text


def version(text: str) -> str:
    """A version of Kubernetes with its patch level, without the v."""
    found = _VERSION.fullmatch(text)
    if not found:
        raise ValueError("expected a version of Kubernetes with its patch level, such as 1.37.2")
    return found[1]


def url(text: str) -> str:
    """Where the API server reaches something; without a slash at its end."""
    if not _URL.fullmatch(text):
        raise ValueError("expected https://host:port, perhaps with a path")
    return text.rstrip("/")


def quantities(text: str) -> Mapping[str, Mapping[str, str]]:
    """`requests.cpu=100m,limits.memory=1Gi` as the `resources` of a container."""
    found: dict[str, dict[str, str]] = {}
    for key, quantity in labels(text).items():
        kind, dot, resource = key.partition(".")
        if kind not in ("requests", "limits") or not dot or not resource or not _QUANTITY.fullmatch(quantity):
            raise ValueError(
                f"{key}={quantity} is not accepted: expected requests.NAME=QUANTITY or limits.NAME=QUANTITY joined by commas,"
                " such as requests.cpu=100m,limits.memory=1Gi"
            )
        found.setdefault(kind, {})[resource] = quantity
    return found


def tolerations(text: str) -> Sequence[Mapping[str, str]]:
    """`key:Effect,key=value:Effect`; without an effect, all of them."""
    found = []
    for part in names(text):
        head, colon, effect = part.partition(":")
        key, equals, value = head.partition("=")
        if not key or (colon and effect not in _EFFECTS):
            raise ValueError(
                f"{part!r} is no toleration: expected key:Effect, key=value:Effect or key, joined by commas, with an effect of"
                f" {', '.join(_EFFECTS)}"
            )
        toleration = {"key": key, "operator": "Equal" if equals else "Exists"}
        if equals:
            toleration["value"] = value
        if effect:
            toleration["effect"] = effect
        found.append(toleration)
    return found
