"""What keeping certificates relies on: Secrets and webhook configurations by name, and writes that hold for one version alone."""

import base64
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trustme

from .client import Http

SECRETS = "/api/v1/namespaces/default/secrets"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
async def secret(http: Http) -> AsyncIterator[dict[str, Any]]:
    name = f"contract-{uuid.uuid4().hex[:8]}"
    yield await http.created(SECRETS, {"metadata": {"name": name}, "type": "Opaque", "data": {"a": "eA=="}})
    await http.delete(f"{SECRETS}/{name}")


@pytest.fixture
async def configuration(http: Http) -> AsyncIterator[dict[str, Any]]:
    """One whose webhook is never called: it has no rules."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    hook = {
        "name": "pods.contract.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/webhook"},
    }
    yield await http.created(
        WEBHOOKS, {"metadata": {"name": name}, "webhooks": [hook, {**hook, "name": "b.contract.example"}]}
    )
    await http.delete(f"{WEBHOOKS}/{name}")


def patch(version: str, bundle: str, index: int = 0) -> list[dict[str, Any]]:
    return [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle},
    ]


@pytest.fixture
def bundle(certificates: trustme.CA) -> str:
    return base64.b64encode(certificates.cert_pem.bytes()).decode()


async def test_a_bundle_is_patched_for_the_version_that_was_read(
    http: Http, configuration: dict[str, Any], bundle: str
) -> None:
    path = f"{WEBHOOKS}/{configuration['metadata']['name']}"
    version = configuration["metadata"]["resourceVersion"]
    answer = await http.json_patch(path, patch(version, bundle, 1))
    assert answer.code == 200
    assert [hook["clientConfig"].get("caBundle") for hook in answer.body["webhooks"]] == [None, bundle]
    late = await http.json_patch(path, patch(version, bundle))
    assert (late.code, late.body["reason"]) == (409, "Conflict")


async def test_a_bundle_of_a_webhook_that_is_not_there_changes_nothing(
    http: Http, configuration: dict[str, Any], bundle: str
) -> None:
    path = f"{WEBHOOKS}/{configuration['metadata']['name']}"
    answer = await http.json_patch(path, patch(configuration["metadata"]["resourceVersion"], bundle, 7))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
    assert (await http.get(path)).body == configuration


async def test_a_bundle_that_is_there_already_makes_no_version(
    http: Http, configuration: dict[str, Any], bundle: str
) -> None:
    path = f"{WEBHOOKS}/{configuration['metadata']['name']}"
    first = await http.json_patch(path, patch(configuration["metadata"]["resourceVersion"], bundle))
    again = await http.json_patch(path, patch(first.body["metadata"]["resourceVersion"], bundle))
    assert again.body["metadata"]["resourceVersion"] == first.body["metadata"]["resourceVersion"]


async def test_a_secret_is_replaced_for_the_version_that_was_read(http: Http, secret: dict[str, Any]) -> None:
    path = f"{SECRETS}/{secret['metadata']['name']}"
    answer = await http.put(path, {**secret, "data": {"b": "eQ=="}})
    assert (answer.code, answer.body["data"]) == (200, {"b": "eQ=="})
    late = await http.put(path, {**secret, "data": {"c": "eg=="}})
    assert (late.code, late.body["reason"]) == (409, "Conflict")


async def test_a_secret_that_was_deleted_is_not_made_again_by_a_replacement(http: Http, secret: dict[str, Any]) -> None:
    path = f"{SECRETS}/{secret['metadata']['name']}"
    await http.delete(path)
    assert (await http.put(path, secret)).code in (404, 409)
    assert (await http.get(path)).code == 404


@pytest.mark.parametrize("kind", ["secret", "configuration"])
async def test_one_object_is_listed_and_watched_by_its_name(
    http: Http, secret: dict[str, Any], configuration: dict[str, Any], kind: str
) -> None:
    collection, stored = (SECRETS, secret) if kind == "secret" else (WEBHOOKS, configuration)
    name = stored["metadata"]["name"]
    selector = f"metadata.name={name}"
    listed = (await http.get(collection, fieldSelector=selector)).body
    assert [item["metadata"]["name"] for item in listed["items"]] == [name]
    version = listed["metadata"]["resourceVersion"]
    async with http.watch(collection, fieldSelector=selector, resourceVersion=version) as watch:
        other = f"contract-{uuid.uuid4().hex[:8]}"
        await http.created(SECRETS, {"metadata": {"name": other}})
        await http.merge(f"{collection}/{name}", {"metadata": {"labels": {"seen": "yes"}}})
        assert await watch.take(1) == [("MODIFIED", name)]
        await http.delete(f"{SECRETS}/{other}")
