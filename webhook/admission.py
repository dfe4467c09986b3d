"""Admission, top to bottom: mutators → validators → patch. Pure functions of the pod, the settings and the ledger at this moment.

`/webhook` asks `mutate`, `/validate` asks `validate`, and HAMi's single webhook, where both are one, asks `drop_in`
(HAMi v2.10 wire contract: admission).
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from devices.config import DeviceConfig
from devices.errors import MalformedValue
from devices.ledger import ADMITTED, Ledger
from devices.objects import Pod, pod_of
from devices.quota import Excess
from devices.requests import PodRequest, pod_request
from webhook.advice import OWN_PREFIX, Advice, annotation_advice, too_many_cards
from webhook.config import AdmissionSettings
from webhook.errors import NotAPodError
from webhook.mutators import MUTATORS, Mutation, apply_family_rules
from webhook.patch import PodEdit
from webhook.quota_service import QuotaAsk, QuotaService
from webhook.requester import Requester
from webhook.updates import Change, added_ephemeral, first_objection
from webhook.validators import (
    AFTER_MUTATION,
    BEFORE_EXEMPTIONS,
    BEFORE_MUTATION,
    DEFAULT_SCHEDULER,
    FINAL,
    Case,
    Refusal,
    RefusalReason,
    exceeding,
    first_refusal,
    is_ignored,
)
from webhook.wire import JsonObject, Operation

__all__ = ["CREATE", "FOREIGN_SCHEDULER", "UPDATE", "Admission", "Verdict", "not_the_last", "refused"]

CREATE = "CREATE"
UPDATE = "UPDATE"
FOREIGN_SCHEDULER = "pod already has different scheduler assigned"


class Verdict(msgspec.Struct, frozen=True):
    """The answer on one pod: `pod` is the one given with the changes, `patch` the operations that lead there."""

    allowed: bool
    message: str
    code: int
    pod: JsonObject
    patch: list[Operation]
    warnings: tuple[str, ...] = ()
    reason: RefusalReason | None = None
    """What a refusal counts as."""
    ask: QuotaAsk | None = None
    """What the pod asks of its namespace's quota, where any limit covers it; only in the answer that decides about it."""
    excesses: tuple[Excess, ...] = ()
    """Of a refusal for quota: every key that is over."""


class Admission:
    """Judges pods. Never changes what it is given, neither pods nor ledger."""

    def __init__(self, settings: AdmissionSettings, config: DeviceConfig, ledger: Ledger) -> None:
        self.settings = settings
        self.config = config
        self._ledger = ledger
        self._quota = QuotaService(ledger)

    def mutate(self, pod: JsonObject, namespace: str, *, operation: str = CREATE) -> Verdict:
        """Fill in what a device pod needs, or refuse it. `namespace` is that of the request."""
        return self._answer(
            pod, lambda: not_the_last(self._mutate(pod, namespace, operation, self.settings.quota_in_webhook))
        )

    def drop_in(self, pod: JsonObject, namespace: str, *, operation: str = CREATE) -> Verdict:
        """Mutation and validation in one, as where no validating webhook is installed: quota is always checked."""
        return self._answer(pod, lambda: self._mutate(pod, namespace, operation, check_quota=True))

    def validate(self, pod: JsonObject, namespace: str) -> Verdict:
        """Repeat every refusal on the final new pod, since the mutating webhook may have been skipped."""
        return self._answer(pod, lambda: self._validate(pod, namespace))

    def validate_update(self, pod: JsonObject, old: JsonObject | None, resource: str, requester: Requester) -> Verdict:
        """Whether `requester` may turn `old` into `pod` through `resource` (`pods/status`, for example). Quota is not asked again."""
        return self._answer(pod, lambda: self._validate_update(pod, old, resource, requester))

    def _mutate(self, pod: JsonObject, namespace: str, operation: str, check_quota: bool) -> Verdict:
        if operation != CREATE:
            return _allowed(pod)
        given = _decoded(pod)
        if is_ignored(given):
            return _allowed(pod)
        managed = _managed(given, self.config)
        is_plain = self._is_plain(given, managed)
        if not is_plain and (
            refusal := first_refusal(BEFORE_MUTATION, self._case(given, managed, namespace, Advice()))
        ):
            return refused(pod, refusal)
        if self._is_foreign(given):
            return _allowed(pod, FOREIGN_SCHEDULER)
        if is_plain:
            return _allowed(pod)

        mutation = Mutation(PodEdit(pod), self.config, self.settings, cluster=self._ledger)
        for mutator in MUTATORS:
            mutator(mutation)

        edit = mutation.edit
        if operations := edit.operations:
            changed = _decoded(edit.pod)
            case = self._case(changed, _managed(changed, self.config), namespace, mutation.advice, mutation.asks)
        else:
            case = self._case(given, managed, namespace, mutation.advice, mutation.asks)
        if refusal := first_refusal(AFTER_MUTATION, case):
            return refused(pod, refusal, case.advice)
        request = self._request(case)
        ask = self._quota.ask(case.pod, request, namespace) if check_quota else None
        if ask is not None and (refusal := self._over_quota(ask, case.advice)):
            return refused(pod, refusal, case.advice, ask)

        self._advise(given, case, request)
        return Verdict(True, "", 200, edit.pod, operations, case.advice.texts(), ask=ask)

    def _validate_update(self, pod: JsonObject, old: JsonObject | None, resource: str, requester: Requester) -> Verdict:
        if old is None:
            raise NotAPodError("oldObject is not a Pod: there is none")
        change = Change(
            before=_decoded(old),
            after=_decoded(pod),
            added=added_ephemeral(pod, old),
            resource=resource,
            requester=requester,
            settings=self.settings,
            config=self.config,
            managed=_managed(_decoded(pod), self.config),
        )
        refusal = first_objection(change)
        return _allowed(pod) if refusal is None else refused(pod, refusal)

    def _validate(self, pod: JsonObject, namespace: str) -> Verdict:
        final = _decoded(pod)
        managed = _managed(final, self.config)
        if self._is_plain(final, managed):
            return _allowed(pod)
        case = self._case(final, managed, namespace, Advice())
        if refusal := first_refusal(BEFORE_EXEMPTIONS, case):
            return refused(pod, refusal, case.advice)
        counts_all = self.settings.quota_counts == ADMITTED
        if is_ignored(final) or self._is_foreign(final):
            # Others' pods get no cards of ours; where quota counts every live pod it counts them too, if they can be read.
            try:
                return (
                    self._within_quota(pod, case, self._request(case)) if counts_all else _allowed(pod, "", case.advice)
                )
            except MalformedValue:
                return _allowed(pod, "", case.advice)

        # The families word their own refusals; what they would change goes into a copy that nobody looks at.
        mutation = Mutation(PodEdit(pod), self.config, self.settings, case.advice, cluster=self._ledger)
        apply_family_rules(mutation)
        if refusal := first_refusal(FINAL, case):
            return refused(pod, refusal, case.advice)
        request = self._request(case)
        verdict = self._within_quota(pod, case, request)
        if not verdict.allowed:
            return verdict
        self._advise(final, case, request)
        return replace(verdict, warnings=case.advice.texts())

    def _request(self, case: Case) -> PodRequest:
        return pod_request(case.pod, self.config.owners(case.managed), case.cluster)

    def _within_quota(self, pod: JsonObject, case: Case, request: PodRequest) -> Verdict:
        """Judged by the books where quota counts what holds cards; else the caller has to settle `ask` with the record."""
        ask = self._quota.ask(case.pod, request, case.namespace)
        if ask is not None and self.settings.quota_counts != ADMITTED:
            refusal = self._over_quota(ask, case.advice)
            if refusal is not None:
                return refused(pod, refusal, case.advice, ask)
        return replace(_allowed(pod, advice=case.advice), ask=ask)

    def _over_quota(self, ask: QuotaAsk, advice: Advice) -> Refusal | None:
        """What the books say about the namespace's limits, with the arithmetic in the text; warnings go into `advice`."""
        judgement = self._quota.judge(ask)
        for warning in judgement.warnings:
            advice.add(warning)
        return exceeding(judgement.excesses) if judgement.excesses else None

    def _answer(self, pod: JsonObject, judge: Callable[[], Verdict]) -> Verdict:
        try:
            return judge()
        except NotAPodError as error:
            return refused(pod, Refusal(RefusalReason.NOT_A_POD, str(error), 400))
        except MalformedValue as error:
            return refused(pod, Refusal(RefusalReason.MALFORMED, str(error), 422))

    def _case(
        self, pod: Pod, managed: tuple[str, ...], namespace: str, advice: Advice, asks: bool | None = None
    ) -> Case:
        """The pod as the rules see it. Before any family was asked, every managed resource counts as asking."""
        return Case(
            pod=pod,
            namespace=namespace,
            settings=self.settings,
            config=self.config,
            managed=managed,
            asks=bool(managed) if asks is None else asks,
            cluster=self._ledger,
            advice=advice,
        )

    def _is_plain(self, pod: Pod, managed: tuple[str, ...]) -> bool:
        """Whether the pod has containers and names nothing of ours: no rule changes or refuses it, or has a word to say."""
        return (
            not managed
            and bool(pod.containers)
            and not self.config.changes_every_pod
            and self.config.known_annotations.isdisjoint(pod.annotations)
            and not any(key.startswith(OWN_PREFIX) for values in (pod.annotations, pod.labels) for key in values)
        )

    def _is_foreign(self, pod: Pod) -> bool:
        """Whether the pod names a scheduler of its own choice that is not ours."""
        name = pod.spec.scheduler_name
        if not name or name == self.settings.scheduler_name:
            return False
        return not (name == DEFAULT_SCHEDULER and self.settings.force_overwrite_default_scheduler)

    def _advise(self, given: Pod, case: Case, request: PodRequest) -> None:
        """Warnings about annotations as the user gave them, and about what the pod asks in the end."""
        for text in annotation_advice(given.annotations, self.config, bool(case.managed)):
            case.advice.add(text)
        if case.managed:
            for text in too_many_cards(request, self._ledger):
                case.advice.add(text)


def _decoded(pod: JsonObject) -> Pod:
    kind = pod.get("kind", "Pod")
    if kind != "Pod":
        raise NotAPodError(f"object is not a Pod: its kind is {kind}")
    try:
        return pod_of(pod)
    except msgspec.ValidationError as error:
        raise NotAPodError(f"object is not a Pod: {error}") from error


def _managed(pod: Pod, config: DeviceConfig) -> tuple[str, ...]:
    """Managed resources that any container names, sorted."""
    return tuple(sorted(config.managed_by(pod)))


def _allowed(pod: JsonObject, message: str = "", advice: Advice | None = None) -> Verdict:
    return Verdict(True, message, 200, pod, [], advice.texts() if advice else ())


def not_the_last(verdict: Verdict) -> Verdict:
    """The verdict of a webhook after or before which another one of ours is asked, so that a pod let in is counted once."""
    return replace(verdict, ask=None) if verdict.allowed and verdict.ask is not None else verdict


def refused(pod: JsonObject, refusal: Refusal, advice: Advice | None = None, ask: QuotaAsk | None = None) -> Verdict:
    """The answer that goes with a refusal."""
    texts = advice.texts() if advice else ()
    return Verdict(False, refusal.message, refusal.code, pod, [], texts, refusal.reason, ask, refusal.excesses)
