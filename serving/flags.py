"""Command lines as HAMi's takes them: Go durations and booleans, either spelling of a flag, and the flags both services have."""

import argparse
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NoReturn, TypeVar

from devices.config import optional_families

__all__ = [
    "FlagParser",
    "add_bool_flag",
    "add_cluster_flags",
    "add_log_flags",
    "address",
    "boolean",
    "duration",
    "duration_text",
    "enabled_families",
    "hyphened",
    "labels",
    "names",
    "seconds",
    "value",
]

T = TypeVar("T")

_UNKNOWN = "unrecognized arguments: "
"""How argparse begins to say which flags it does not know."""

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")


class FlagParser(argparse.ArgumentParser):
    """A parser of whole flags whose errors are one line: what is wrong, what may have been meant, and where to read on."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        known = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        unknown = message.removeprefix(_UNKNOWN).split() if message.startswith(_UNKNOWN) else []
        close = [flag for word in unknown for flag in get_close_matches(word.partition("=")[0], known, n=1)]
        meant = f" (did you mean {' '.join(close)}?)" if close else ""
        self.exit(2, f"{self.prog}: error: {message}{meant}; see {self.prog} --help\n")


def duration(text: str) -> float:
    """Seconds of a Go duration: `300ms`, `28s`, `1m30s`, `5m`; `0` needs no unit. Raises `ValueError` saying what is accepted."""
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text.removeprefix("+"))
    if body == "0":
        return 0.0
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError(f"{text!r} is not a duration: expected numbers with units such as 300ms, 28s, 1m30s or 5m")
    return sign * sum(float(number) * _UNITS_S[unit] for number, unit in parts)


def duration_text(seconds: float) -> str:
    """Seconds as Go prints a duration: `300ms`, `28s`, `1m30s`, `5m0s`."""
    nanoseconds = round(abs(seconds) * 1e9)
    sign = "-" if seconds < 0 else ""
    if nanoseconds == 0:
        return "0s"
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if nanoseconds < size * 1000:
            return f"{sign}{_decimal(nanoseconds, size)}{unit}"
    minutes, rest = divmod(nanoseconds, 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(rest, 10**9)}s"
    if hours or minutes:
        text = f"{minutes}m{text}"
    return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _decimal(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    return str(whole) if not rest else f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}"


def boolean(text: str) -> bool:
    """A boolean as Go's flag package reads it. Raises `ValueError` saying what is accepted."""
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(f"{text!r} is not a boolean: expected true or false")


def labels(text: str) -> dict[str, str]:
    """`k=v,k=v` as a mapping; empty text is empty. Raises `ValueError` naming the part that is no pair."""
    found: dict[str, str] = {}
    for part in (piece.strip() for piece in text.split(",")):
        if part:
            key, equals, value = part.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"{part!r} is not a label: expected key=value, several of them joined by commas")
            found[key.strip()] = value.strip()
    return found


def names(text: str) -> frozenset[str]:
    """`a,b` as a set; blanks around and empty parts do not count."""
    return frozenset(name for name in (part.strip() for part in text.split(",")) if name)


def seconds(text: str) -> float:
    """Seconds as a plain number or a Go duration."""
    return float(text) if text.isascii() and text.isdigit() else duration(text)


def address(text: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `:port` (all interfaces). Raises `ValueError` saying what is accepted."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address: expected host:port or :port with a port of 0 to 65535")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def value(read: Callable[[str], T]) -> Callable[[str], T]:
    """An argparse type whose error is the reader's own text."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def hyphened(argument: str) -> str:
    """`--cert_file=x` as `--cert-file=x`: both spellings are in use."""
    if not argument.startswith("--"):
        return argument
    name, equals, rest = argument.partition("=")
    return name.replace("_", "-") + equals + rest


def add_bool_flag(group: "argparse._ArgumentGroup", flag: str, default: bool, text: str) -> None:
    """A Go boolean flag: `--flag` and `--flag=true` mean the same."""
    shown = f"{text} (default {'true' if default else 'false'})"
    group.add_argument(flag, type=value(boolean), nargs="?", const=True, default=default, metavar="BOOL", help=shown)


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """How the API server is reached, which nodes count, and what the accelerator families are called."""
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument(
        "--device-config-file", default="", metavar="FILE", help="accelerator families, YAML (default: shipped values)"
    )
    for family in optional_families():
        add_bool_flag(cluster, f"--enable-{family}", False, "manage this accelerator family too")
    cluster.add_argument(
        "--node-label-selector",
        type=value(labels),
        default={},
        metavar="K=V,K=V",
        help="only nodes with all these labels count",
    )
    cluster.add_argument("--kubeconfig", metavar="FILE", help="default: $KUBECONFIG, ~/.kube/config, then in-cluster")
    cluster.add_argument(
        "--kube-qps", type=float, default=500.0, help="API requests a second, 0 for no limit (default 500)"
    )
    cluster.add_argument("--kube-burst", type=int, default=1000, help="API requests at once (default 1000)")
    cluster.add_argument(
        "--kube-timeout", type=value(seconds), default=0.0, metavar="SECONDS", help="longest API call (default 0: 30 s)"
    )


def enabled_families(given: argparse.Namespace) -> frozenset[str]:
    """Which of the families that are off by default the arguments switch on."""
    return frozenset(family for family in optional_families() if getattr(given, f"enable_{family}"))


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    """`--debug`, and klog's verbosity, of which 4 and above mean the same."""
    add_bool_flag(parser.add_argument_group("log"), "--debug", False, "log more")
    parser.add_argument(
        "-v",
        "--v",
        dest="verbosity",
        type=int,
        default=0,
        metavar="N",
        help="klog verbosity; 4 and above log as --debug",
    )
