"""May the processes make the calls that they have to make?"""

from collections.abc import Iterator

from cli.doctor.facts import Facts
from cli.doctor.findings import Finding, problem, unknown, well

__all__ = ["rights"]


def rights(facts: Facts) -> Iterator[Finding]:
    """Does RBAC let each account do what its process does?"""
    check = "rights"
    if "subjectaccessreviews" in facts.unread or not facts.reviews:
        refusal = facts.unread.get("subjectaccessreviews")
        why = refusal.why if refusal is not None else "the processes' command lines are not known"
        yield unknown(
            check,
            f"rights cannot be asked for: {why}",
            "run the doctor as somebody who may create subjectaccessreviews",
        )
        return
    sound = True
    for account, answers in facts.reviews.items():
        refused = [call for call, allowed in answers.items() if not allowed]
        if refused:
            sound = False
            yield problem(
                check,
                f"service account {facts.namespace}/{account} may not {', '.join(refused)}",
                "slotwise manifests ha | kubectl apply -f -; slotwise rbac-check compares any manifests with what the code calls",
            )
    if sound:
        asked = sum(map(len, facts.reviews.values()))
        yield well(check, f"all {asked} calls that the processes make are allowed")
