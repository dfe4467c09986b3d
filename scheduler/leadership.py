"""Whether this extender leads, as a plain function of what it sees: Lease events in, phase and term out. No clock, no waiting.

The extender does not campaign. The kube-scheduler beside it does, and the Lease that it holds says who may bind. All times are
monotonic seconds of this process. Why each rule is there is shown by a search over all histories of a small model (see tests).
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

__all__ = ["CaughtUp", "Event", "Gone", "Lease", "Listed", "Phase", "Rules", "Seen", "Standing", "Tick", "after"]


class Phase(Enum):
    """How far a term has come; filter and bind are answered in the last one alone."""

    FOLLOWING = "following"
    WAITING = "waiting"
    """Bindings of an earlier leader may still be on their way."""
    STAMPING = "stamping"
    """Our own pod is patched, and the pod watch has not delivered that yet."""
    LEADING = "leading"


@dataclass(frozen=True, slots=True)
class Rules:
    """`needed_s` of the Lease must be left when a Binding goes out; `wait_s` passes before one after a Lease that was handed over."""

    needed_s: float
    wait_s: float

    @staticmethod
    def of(bind_timeout_s: float, margin_s: float) -> "Rules":
        """A Binding lasts no longer than its time-out; the margin covers clocks and a watch that is behind.

        Example: 5 s + 1 s. A Binding that goes out with 6 s of the Lease left has landed, or never will, a second before the next
        holder can come; one that the last holder sent just before its release has landed 6 s after it.
        """
        return Rules(bind_timeout_s + margin_s, bind_timeout_s + margin_s)


@dataclass(frozen=True, slots=True)
class Lease:
    """What of a Lease object decides. `holder` is empty once it was released; times are texts that are only compared."""

    uid: str
    holder: str
    acquired: str
    transitions: int
    renewed: str
    duration_s: float

    def continues(self, other: "Lease") -> bool:
        """Whether `other` is the same holder in the same term."""
        mine = (self.uid, self.holder, self.acquired, self.transitions)
        return mine == (other.uid, other.holder, other.acquired, other.transitions)


@dataclass(frozen=True, slots=True)
class Seen:
    """The Lease is so now. `ours`: its holder is the kube-scheduler beside us. `age_s`: at least so old is its renewal."""

    lease: Lease
    ours: bool
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no Lease."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Everything was listed anew: what happened in between was not seen."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The pod watch has delivered the patch of our own pod that was made in this term."""

    term: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event: TypeAlias = Seen | Gone | Listed | CaughtUp | Tick


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a replica stands. `term` counts the terms it has begun."""

    phase: Phase = Phase.FOLLOWING
    term: int = 0
    lease: Lease | None = None
    seen_at_s: float | None = None
    """When the Lease was last seen to change; None where changes may have been missed."""
    renewed_at_s: float | None = None
    """Our Lease was renewed no earlier; None until a renewal was seen, which a first list is not."""
    may_bind_from_s: float = 0.0

    @property
    def ends_at_s(self) -> float | None:
        """When our Lease runs out unless it is renewed; None while none of ours is known to be in force."""
        if self.phase is Phase.FOLLOWING or self.lease is None or self.renewed_at_s is None:
            return None
        return self.renewed_at_s + self.lease.duration_s

    def left_s(self, now_s: float) -> float:
        """Seconds of our Lease that are left, 0 where there is none."""
        ends_at_s = self.ends_at_s
        return 0.0 if ends_at_s is None else max(0.0, ends_at_s - now_s)

    def may_bind(self, now_s: float, rules: Rules) -> bool:
        """Whether a Binding may go out now."""
        return self.phase is Phase.LEADING and self.left_s(now_s) >= rules.needed_s

    def next_s(self) -> float | None:
        """When a `Tick` changes something, if nothing else happens before."""
        due = [] if self.ends_at_s is None else [self.ends_at_s]
        if self.phase is Phase.WAITING and self.renewed_at_s is not None:
            due.append(self.may_bind_from_s)
        return min(due, default=None)


def after(standing: Standing, event: Event, now_s: float, rules: Rules) -> Standing:
    """The standing once `event` has happened at `now_s`."""
    match event:
        case Seen():
            standing = _seen(standing, event, now_s, rules)
        case Gone():
            standing = Standing(term=standing.term)
        case Listed():
            standing = replace(standing, seen_at_s=None)
        case CaughtUp(term) if term == standing.term and standing.phase is Phase.STAMPING:
            standing = replace(standing, phase=Phase.LEADING)
        case _:
            pass
    return _passed(standing, now_s)


def _passed(standing: Standing, now_s: float) -> Standing:
    ends_at_s = standing.ends_at_s
    if ends_at_s is not None and now_s >= ends_at_s:
        return replace(standing, phase=Phase.FOLLOWING)
    if standing.phase is Phase.WAITING and ends_at_s is not None and now_s >= standing.may_bind_from_s:
        return replace(standing, phase=Phase.STAMPING)
    return standing


def _seen(standing: Standing, event: Seen, now_s: float, rules: Rules) -> Standing:
    before, lease = standing.lease, event.lease
    if not event.ours:
        return Standing(term=standing.term, lease=lease, seen_at_s=now_s)
    renewed_at_s = now_s - event.age_s
    if before is not None and lease.continues(before):
        if lease.renewed == before.renewed:
            return replace(standing, lease=lease)
        if standing.phase is not Phase.FOLLOWING:
            if standing.renewed_at_s is not None:
                renewed_at_s = max(renewed_at_s, standing.renewed_at_s)
            return replace(standing, lease=lease, seen_at_s=now_s, renewed_at_s=renewed_at_s)
        # It had run out as far as we could see: what it goes on with is a term of its own.
    ran_out = (
        before is not None
        and not lease.continues(before)
        and before.holder != ""
        and standing.seen_at_s is not None
        and now_s >= standing.seen_at_s + before.duration_s
    )
    return Standing(
        Phase.WAITING,
        standing.term + 1,
        lease,
        now_s,
        # Nothing came before: how long ago it was renewed, and whether its holder still lives, its next renewal tells.
        renewed_at_s if before is not None else None,
        now_s if ran_out else now_s + rules.wait_s,
    )
