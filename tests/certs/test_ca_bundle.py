"""Which webhooks of a configuration are ours, and the patch that tells them whom to trust."""

from base64 import b64encode

import jsonpatch
import pytest

from certs.ca_bundle import bundle_patch, bundles, foreign_hosts
from certs.pki import create_ca
from certs.secret import fingerprint
from devices.kube.protocols import JsonObject
from tests.certs.replicas import START

HOSTS = ("slotwise-webhook.slotwise-system.svc", "10.0.0.7", "fd00::7", "Hooks.Example")
CA = create_ca("test", now=START, days=1)
PEM = CA.certificate_pem()
GOOD = b64encode(PEM).decode()


def configuration(*clients: JsonObject) -> JsonObject:
    webhooks = [{"name": f"{number}.slotwise.io", "clientConfig": client} for number, client in enumerate(clients)]
    return {"metadata": {"name": "slotwise", "resourceVersion": "7"}, "webhooks": webhooks}


def service(name: str = "slotwise-webhook", namespace: str = "slotwise-system") -> JsonObject:
    return {"service": {"name": name, "namespace": namespace, "path": "/webhook"}}


OURS: dict[str, tuple[JsonObject, bool]] = {
    "our Service": (service(), True),
    "our Service on another port": ({"service": {**service()["service"], "port": 8443}}, True),  # type: ignore[dict-item] # a mapping in a JSON object
    "another Service": (service("other"), False),
    "our Service's name elsewhere": (service(namespace="default"), False),
    "an address": ({"url": "https://10.0.0.7:31998/webhook"}, True),
    "an IPv6 address": ({"url": "https://[fd00::7]:443/webhook"}, True),
    "a name in other case": ({"url": "https://hooks.EXAMPLE/webhook"}, True),
    "somebody else's address": ({"url": "https://10.0.0.8/webhook"}, False),
    "our address as a path": ({"url": "https://evil.example/10.0.0.7"}, False),
    "our address as a user": ({"url": "https://10.0.0.7@evil.example/"}, False),
    "no URL at all": ({"url": "https://[::1"}, False),
    "neither": ({}, False),
}


@pytest.mark.parametrize(("client", "ours"), OURS.values(), ids=OURS)
def test_ours_are_those_called_under_a_name_of_the_certificate(client: JsonObject, ours: bool) -> None:
    stored = configuration(client)
    assert [bundle.index for bundle in bundles(stored, HOSTS)] == ([0] if ours else [])
    assert (foreign_hosts(stored, HOSTS) == ()) == ours
    assert bool(bundle_patch(stored, HOSTS, PEM)) == ours


def test_the_patch_changes_what_is_wrong_and_nothing_else() -> None:
    stored = configuration(
        {**service(), "caBundle": GOOD},
        service(),
        service("other"),
        {**service(), "caBundle": b64encode(b"x").decode()},
    )
    operations = bundle_patch(stored, HOSTS, PEM)
    patched = jsonpatch.apply_patch(stored, operations)
    found = [hook["clientConfig"].get("caBundle") for hook in patched["webhooks"]]
    assert found == [GOOD, GOOD, None, GOOD]
    # As a precondition: a server that has another version refuses all of it.
    assert operations[0] == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    assert [operation["path"] for operation in operations[1:]] == [
        "/webhooks/1/clientConfig/caBundle",
        "/webhooks/3/clientConfig/caBundle",
    ]
    assert bundle_patch({**patched, "metadata": {"resourceVersion": "8"}}, HOSTS, PEM) == []


def test_a_configuration_without_webhooks_needs_nothing() -> None:
    assert bundle_patch({"metadata": {}}, HOSTS, PEM) == []


@pytest.mark.parametrize("bundle", ["", "!", b64encode(b"no PEM").decode(), None, 7])
def test_a_bundle_that_cannot_be_read_holds_nothing(bundle: object) -> None:
    (found,) = bundles(configuration({**service(), "caBundle": bundle}), HOSTS)
    assert found.fingerprints() == frozenset()


def test_a_bundle_holds_all_its_certificates() -> None:
    other = create_ca("other", now=START, days=1)
    both = b64encode(PEM + other.certificate_pem()).decode()
    (found,) = bundles(configuration({**service(), "caBundle": both}), HOSTS)
    assert found.fingerprints() == {fingerprint(CA.certificate), fingerprint(other.certificate)}
