"""Calling a webhook: AdmissionReview over HTTPS, and what counts as an answer."""

from __future__ import annotations

import base64
import binascii
import io
import ssl
import uuid
from dataclasses import dataclass

import aiohttp
import orjson

from .documents import JsonObject, mapping, text
from .hooks import Attributes, Webhook

JSON_PATCH_TYPE = "JSONPatch"
_LARGE_BODY_BYTES = 1 << 20


class WebhookCallError(Exception):
    """A webhook gave no usable answer; the text says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a webhook answered, checked and decoded."""

    allowed: bool
    status: JsonObject
    """Code, reason and message of a refusal; may be empty."""
    operations: list[JsonObject]
    """Its JSON patch; empty when it changes nothing."""
    warnings: tuple[str, ...]


class WebhookCaller:
    """Sends reviews over kept-alive connections. `close` ends them."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[bytes | None, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close all connections to webhooks."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, hook: Webhook, attributes: Attributes, raw: bytes | None) -> Verdict:
        """Return the verdict in the webhook's AdmissionReview.

        Args:
            hook: whom to ask.
            attributes: the request under review.
            raw: the object under review as JSON; None for DELETE.

        Raises:
            WebhookCallError: not reachable, certificate not accepted, too late, or no valid answer.
        """
        if hook.review_version is None:
            raise WebhookCallError(
                "could not create admission objects: webhook does not accept known AdmissionReview versions "
                "(v1, v1beta1)"
            )
        if hook.url is None:
            raise WebhookCallError(
                f'could not get REST client: service "{hook.service}" cannot be reached from the lab'
            )
        uid = str(uuid.uuid4())
        body = orjson.dumps(review(hook.review_version, uid, attributes, raw))
        answer = await self._post(hook, hook.url, body)
        try:
            document = orjson.loads(answer)
        except orjson.JSONDecodeError as error:
            raise WebhookCallError(
                f"failed to call webhook: couldn't get version/kind; json parse error: {error}"
            ) from error
        try:
            return read_verdict(document, hook, uid)
        except ValueError as error:
            raise WebhookCallError(f"received invalid webhook response: {error}") from error

    async def _post(self, hook: Webhook, url: str, body: bytes) -> bytes:
        if self._session is None:
            # One pool for all webhooks; a pod burst may have as many reviews under way as creates.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=90))
        address = f"{url}?timeout={hook.timeout_s}s"
        try:
            async with self._session.post(
                address,
                # aiohttp wants large bodies as files, so that it can send them in pieces
                data=body if len(body) < _LARGE_BODY_BYTES else io.BytesIO(body),
                headers={"Content-Type": "application/json", "Accept": "application/json, */*"},
                ssl=self._context(hook.ca_bundle),
                timeout=aiohttp.ClientTimeout(total=hook.timeout_s),
                allow_redirects=False,
            ) as response:
                answer = await response.read()
        except TimeoutError as error:
            raise WebhookCallError(f'failed to call webhook: Post "{address}": context deadline exceeded') from error
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError) as error:
            raise WebhookCallError(f'failed to call webhook: Post "{address}": {error}') from error
        if not 200 <= response.status < 300:
            raise WebhookCallError(
                f"failed to call webhook: the server responded with the status code {response.status} "
                "but did not return more information"
            )
        return answer

    def _context(self, ca_bundle: bytes | None) -> ssl.SSLContext:
        context = self._contexts.get(ca_bundle)
        if context is None:
            context = ssl.create_default_context(cadata=None if ca_bundle is None else ca_bundle.decode("ascii"))
            self._contexts[ca_bundle] = context
        return context


def review(version: str, uid: str, attributes: Attributes, raw: bytes | None) -> JsonObject:
    """Return the AdmissionReview request document."""
    resource = attributes.resource
    group_version = {"group": resource.group, "version": resource.version}
    kind = {**group_version, "kind": attributes.kind}
    plural = {**group_version, "resource": resource.plural}
    request: JsonObject = {
        "uid": uid,
        "kind": kind,
        "resource": plural,
        "requestKind": kind,
        "requestResource": plural,
        "operation": attributes.operation,
        "userInfo": {"username": attributes.user.name, "groups": list(attributes.user.groups)},
        "object": None if raw is None else orjson.Fragment(raw),
        "oldObject": attributes.old,
        "dryRun": attributes.dry_run,
        "options": attributes.options,
    }
    optional = {
        "name": attributes.name,
        "namespace": attributes.namespace,
        "subResource": attributes.subresource,
        "requestSubResource": attributes.subresource,
    }
    request.update({key: value for key, value in optional.items() if value})
    return {"kind": "AdmissionReview", "apiVersion": f"admission.k8s.io/{version}", "request": request}


def read_verdict(document: object, hook: Webhook, uid: str) -> Verdict:
    """Return what an AdmissionReview answers.

    v1 is held to its rules (version, uid, patch together with patchType); v1beta1 never was.

    Raises:
        ValueError: the review breaks a rule, or its patch cannot be decoded.
        WebhookCallError: it is of another version.
    """
    given = mapping(document)
    response = given.get("response")
    if not isinstance(response, dict):
        raise ValueError("webhook response was absent")
    if hook.review_version == "v1":
        _hold_to_v1(given, response, hook, uid)
    patch = response.get("patch") if hook.mutating else None
    return Verdict(
        allowed=response.get("allowed") is True,
        status=mapping(response.get("status")),
        operations=_operations(patch) if patch else [],
        warnings=tuple(text(warning) for warning in response.get("warnings") or ()),
    )


def _hold_to_v1(given: JsonObject, response: JsonObject, hook: Webhook, uid: str) -> None:
    kind = f"{given.get('apiVersion')}, Kind={given.get('kind')}"
    if kind == "admission.k8s.io/v1beta1, Kind=AdmissionReview":
        raise WebhookCallError(
            "failed to call webhook: converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion"
        )
    if kind != "admission.k8s.io/v1, Kind=AdmissionReview":
        raise ValueError(f"expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {kind}")
    if response.get("uid") != uid:
        raise ValueError(f'expected response.uid="{uid}", got "{text(response.get("uid"))}"')
    patch, patch_type = response.get("patch"), response.get("patchType")
    if not hook.mutating:
        if patch:
            raise ValueError("validating webhook may not return response.patch")
        if patch_type is not None:
            raise ValueError("validating webhook may not return response.patchType")
    elif patch and patch_type is None:
        raise ValueError("webhook returned response.patch but not response.patchType")
    elif not patch and patch_type is not None:
        raise ValueError("webhook returned response.patchType but not response.patch")
    elif patch and patch_type != JSON_PATCH_TYPE:
        raise ValueError(f'unsupported patch type "{patch_type}"')


def _operations(patch: object) -> list[JsonObject]:
    try:
        operations = orjson.loads(base64.b64decode(text(patch), validate=True))
    except (binascii.Error, orjson.JSONDecodeError) as error:
        raise ValueError(f"received undecodable patch in webhook response: {error}") from error
    if not isinstance(operations, list):
        raise ValueError("received undecodable patch in webhook response: not a list of operations")
    return operations
