"""`/validate` on Bindings: who may put a device pod on a node besides the schedulers, which is nobody.

A Binding says little of its pod, so the pod is read, with quorum. What was read must still be the pod when the API server acts on
the Binding: one that is deleted and made anew under its name meanwhile has another UID, which the Binding's own UID rules out.
"""

import asyncio
from typing import Final

import msgspec

from devices.config import DeviceConfig
from devices.keys import VGPU_NODE
from devices.kube.errors import KubeError, NotFound
from devices.kube.protocols import PodReader
from devices.objects import Metadata, Pod, pod_of
from webhook.admission import Verdict, refused
from webhook.config import AdmissionSettings
from webhook.requester import Requester
from webhook.updates import forged
from webhook.validators import DEFAULT_SCHEDULER, Refusal, RefusalReason
from webhook.wire import JsonObject

__all__ = ["Bindings"]

_READ_S: Final = 5.0
"""Well below the time that the API server gives us."""
_LEGACY: Final = "bindings"


class _Binding(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


class Bindings:
    """Judges Bindings. `pods` is None where there is no API server to ask."""

    def __init__(self, settings: AdmissionSettings, config: DeviceConfig, pods: PodReader | None) -> None:
        self._settings = settings
        self._config = config
        self._pods = pods

    async def judge(
        self, binding: JsonObject, namespace: str, name: str, resource: str, requester: Requester
    ) -> Verdict:
        """The verdict on a Binding that `requester` sent to `resource` (`pods/binding` or `bindings`); `name` is the request's."""
        try:
            metadata = msgspec.convert(binding, _Binding).metadata
        except msgspec.ValidationError as error:
            return refused(binding, Refusal(RefusalReason.NOT_A_POD, f"object is not a Binding: {error}", 400))
        named = metadata.name or name
        if not named or (name and name != named):
            text = f"object is not a Binding: metadata.name {metadata.name!r} must be that of the request, {name!r}"
            return refused(binding, Refusal(RefusalReason.NOT_A_POD, text, 400))
        objection = self._forged(metadata, requester)
        if objection is None and not requester.is_among(self._settings.scheduler_accounts):
            objection = await self._others(metadata.uid, namespace, named, resource, requester)
        return Verdict(True, "", 200, binding, []) if objection is None else refused(binding, objection)

    def _forged(self, metadata: Metadata, requester: Requester) -> Refusal | None:
        """What a Binding carries is merged into its pod."""
        if requester.is_among(self._settings.key_writers):
            return None
        annotations, labels = metadata.annotations or {}, metadata.labels or {}
        found = [f"annotation {key}" for key in self._config.protected_annotations if key in annotations]
        found += [f"label {VGPU_NODE}"] if VGPU_NODE in labels else []
        return forged(found[0], requester) if found else None

    async def _others(self, uid: str, namespace: str, name: str, resource: str, requester: Requester) -> Refusal | None:
        who = requester.name or "an unnamed user"
        listed = "list the account with --scheduler-accounts, in ConfigMap slotwise-policy and in the webhook's matchConditions"
        if resource == _LEGACY:
            text = f"{who} may bind through pods/{name}/binding only, where metadata.uid is kept: send it there, or {listed}"
            return Refusal(RefusalReason.BINDING, text)
        if not uid:
            text = f"a Binding of {who} must carry metadata.uid of pod {namespace}/{name}: set it, or {listed}"
            return Refusal(RefusalReason.BINDING, text)
        pod = await self._pod(namespace, name)
        if isinstance(pod, Refusal):
            return pod
        if pod.uid != uid:
            return Refusal(
                RefusalReason.BINDING, f"the Binding is for pod {uid}, but {namespace}/{name} is {pod.uid}", 409
            )
        vendors = self._config.named_by(pod)
        scheduler = pod.spec.scheduler_name or DEFAULT_SCHEDULER
        if not vendors or self._settings.lets_pass(scheduler):
            return None
        text = f"pod {namespace}/{name} asks for {vendors[0].key} cards, so {who} may not bind it: leave it to {scheduler}, or {listed}"
        return Refusal(RefusalReason.BINDING, text)

    async def _pod(self, namespace: str, name: str) -> Pod | Refusal:
        """The pod as it is stored now, or why that is not known."""
        if self._pods is None:
            return Refusal(RefusalReason.POD_UNKNOWN, "what a Binding is about cannot be read: no API server", 503)
        try:
            async with asyncio.timeout(_READ_S):
                return pod_of(await self._pods.get_pod(namespace, name))
        except NotFound:
            # It may be made between this answer and the Binding.
            return Refusal(RefusalReason.POD_UNKNOWN, f"pod {namespace}/{name} is not there", 404)
        except (KubeError, TimeoutError, msgspec.ValidationError) as error:
            text = f"pod {namespace}/{name} cannot be read: {str(error) or 'no answer in time'}: try again"
            return Refusal(RefusalReason.POD_UNKNOWN, text, 503)
