"""An address that means "here" becomes the pod's own, and nothing else does."""

import pytest

from tests.cluster.addresses import loopback_of, moved, pod_addresses, service_range

HERE = "127.200.1.2"
CASES = {
    "a flag with loopback": ("--http-bind=127.0.0.1:8888", "--http-bind=127.200.1.2:8888"),
    "a flag with any address": ("--http-bind=0.0.0.0:8443", "--http-bind=127.200.1.2:8443"),
    "a flag with a port alone": ("--metrics-bind-address=:9395", "--metrics-bind-address=127.200.1.2:9395"),
    "an argument that is a port alone": (":8080", "127.200.1.2:8080"),
    "an address without port": ("--bind-address=0.0.0.0", "--bind-address=127.200.1.2"),
    "a name": ("--http-bind=localhost:1", "--http-bind=127.200.1.2:1"),
    "an extender's URL": (
        "- urlPrefix: http://127.0.0.1:8888\n  weight: 1",
        f"- urlPrefix: http://{HERE}:8888\n  weight: 1",
    ),
    "another loopback address stays": ("http://127.0.0.10:1", "http://127.0.0.10:1"),
    "a number that only ends so stays": ("10.127.0.0.1", "10.127.0.0.1"),
    "a longer name stays": ("localhost.example", "localhost.example"),
    "a time stays": ("--drain-timeout=30s", "--drain-timeout=30s"),
    "a colon elsewhere stays": ("image:8080", "image:8080"),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_moved(text: str, expected: str) -> None:
    assert moved(text, HERE) == expected


def test_a_pod_is_where_its_address_says() -> None:
    addresses = pod_addresses()
    first, second = next(addresses), next(addresses)
    assert first != second
    assert first.startswith("10.")
    assert loopback_of(first) == "127." + first.removeprefix("10.")


def test_services_and_pods_never_meet() -> None:
    assert int(service_range().split(".")[1]) < 128 <= int(loopback_of(next(pod_addresses())).split(".")[1])
