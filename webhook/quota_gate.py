"""The last step of `/validate` where quota counts every admitted pod: recorded first, then allowed."""

from typing import Protocol

from msgspec.structs import replace

from webhook.admission import Verdict
from webhook.advice import Advice
from webhook.errors import QuotaUnavailableError
from webhook.quota_service import QuotaAsk, QuotaJudgement
from webhook.validators import RefusalReason, exceeding

__all__ = ["Admitter", "settled"]


class Admitter(Protocol):
    """Records admissions; `webhook.admitted.store.Admissions` does."""

    async def admit(self, ask: QuotaAsk, *, dry_run: bool = False) -> QuotaJudgement:
        """The judgement; without excesses the pod counts from now on. Raises `QuotaUnavailableError`."""
        ...


async def settled(verdict: Verdict, admitter: Admitter | None, *, dry_run: bool) -> Verdict:
    """The verdict with quota decided. One without anything to ask comes back as it is, and nobody is called."""
    if admitter is None or not verdict.allowed or verdict.ask is None:
        return verdict
    advice = Advice()
    for text in verdict.warnings:
        advice.add(text)
    try:
        judgement = await admitter.admit(verdict.ask, dry_run=dry_run)
    except QuotaUnavailableError as error:
        return replace(verdict, allowed=False, message=str(error), code=503, reason=RefusalReason.QUOTA_UNKNOWN)
    if judgement.excesses:
        refusal = exceeding(judgement.excesses)
        return replace(
            verdict,
            allowed=False,
            message=refusal.message,
            code=refusal.code,
            reason=refusal.reason,
            excesses=refusal.excesses,
        )
    for text in judgement.warnings:
        advice.add(text)
    return replace(verdict, warnings=advice.texts())
