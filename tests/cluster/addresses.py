"""Where pods and Services of the fixture are: everything is on loopback, and each has an address of its own there.

Loopback can be no endpoint of a Service, so pods say that they have 10.a.b.c and listen on 127.a.b.c. Services really have an address
of 127/8, at which the fixture plays kube-proxy: the API server calls webhooks by their Service, as it does anywhere.
"""

import itertools
import re
import secrets
from collections.abc import Iterator
from typing import Final

__all__ = ["loopback_of", "moved", "pod_addresses", "service_range"]

_ADDRESS: Final = re.compile(r"(?<![\w.])(?:127\.0\.0\.1|0\.0\.0\.0|localhost)(?![\w.])")
_BARE_PORT: Final = re.compile(r"(^|=)(?=:\d+$)")


def service_range() -> str:
    """A range for Services that no other control plane on this machine is likely to have taken."""
    return f"127.{64 + secrets.randbelow(32)}.{secrets.randbelow(256)}.0/24"


def pod_addresses() -> Iterator[str]:
    """Addresses for pods, one after the other, that no other fixture on this machine is likely to give."""
    first = f"10.{128 + secrets.randbelow(127)}.{secrets.randbelow(256)}"
    return (f"{first}.{number}" for number in itertools.count(1))


def loopback_of(address: str) -> str:
    """Where a pod of this address really listens: 10.a.b.c is at 127.a.b.c."""
    return f"127.{address.split('.', 1)[1]}"


def moved(text: str, address: str) -> str:
    """An argument or a file of a pod, with every address that means "here" or "anywhere" replaced by the pod's own.

    `--a=127.0.0.1:1`, `--a=0.0.0.0:1`, `--a=localhost`, `http://127.0.0.1:1/x` and, at the end of an argument, `--a=:1`.
    """
    return _BARE_PORT.sub(rf"\g<1>{address}", _ADDRESS.sub(address, text))
