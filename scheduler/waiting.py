"""Which refused pod kube-scheduler is asked to try again, and when: a plain function of what was refused and where room was made.

kube-scheduler may ask for a pod a moment before our watch shows the deletion that made room for it; no event of the cluster would bring
that pod back before the next one. So a pod that was refused, still waits although room was made since, and would fit, is touched.
Times are seconds of any clock that does not jump.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Judgement", "Next", "Rules", "WaitingPods"]


class Judgement(Enum):
    """Whether a pod fits where room was made."""

    FITS = "fits"
    NOT = "not"
    LATER = "later"
    """Enough was judged for now."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Bounds, whatever happens in the cluster."""

    under_way: int = 16
    """So many touched pods at most that kube-scheduler has not asked for since; and for `answer_s` at most they count."""
    answer_s: float = 10.0
    """kube-scheduler's longest back-off."""
    again_s: float = 5.0
    """A pod is not touched again sooner. Doubled with every touch after which kube-scheduler did not ask: others refuse it before us."""
    longest_s: float = 300.0
    """After so long kube-scheduler tries every pod of its own accord."""


@dataclass(slots=True)
class _Pod:
    room: int
    """Room made up to here has been looked at."""
    not_before_s: float = 0.0
    touched_at_s: float | None = None
    unheard: int = 0
    """Touches since kube-scheduler asked for it last."""


@dataclass(frozen=True, slots=True)
class Next:
    """The pod to be touched, None for nobody; `more`: not everybody was looked at."""

    uid: str | None = None
    more: bool = False


class WaitingPods:
    """The pods that were refused and wait, the longest refused first."""

    def __init__(self, rules: Rules = Rules()) -> None:
        self._rules = rules
        self._pods: dict[str, _Pod] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def __contains__(self, uid: str) -> bool:
        return uid in self._pods

    def uids(self) -> tuple[str, ...]:
        """Everybody who waits."""
        return tuple(self._pods)

    def refused(self, uid: str, room: int, not_before_s: float = 0.0) -> None:
        """kube-scheduler has asked, and nothing fitted with all room made up to number `room`."""
        before = self._pods.pop(uid, None)
        touched_at_s = before.touched_at_s if before is not None else None
        again_at_s = touched_at_s + self._rules.again_s if touched_at_s is not None else 0.0
        self._pods[uid] = _Pod(room, max(again_at_s, not_before_s), touched_at_s)

    def forget(self, uid: str) -> None:
        """It is placed, gone, or not refused any more."""
        self._pods.pop(uid, None)

    def clear(self) -> None:
        """Forget everybody."""
        self._pods.clear()

    def next(self, now_s: float, room: int, judge: Callable[[str, int], Judgement]) -> Next:
        """Who is to be touched because of room made up to number `room`.

        `judge` says whether a pod fits where room was made after a number; who does not is not looked at again for the same room.
        """
        if sum(self._is_under_way(pod, now_s) for pod in self._pods.values()) >= self._rules.under_way:
            return Next()
        behind = [(uid, pod) for uid, pod in self._pods.items() if pod.room < room and pod.not_before_s <= now_s]
        # Whom others refuse before us comes last; then who was looked at the longest ago, so that everybody's turn comes.
        for uid, pod in sorted(behind, key=lambda entry: (entry[1].unheard, entry[1].room)):
            judgement = judge(uid, pod.room)
            if judgement is Judgement.LATER:
                return Next(more=True)
            if judgement is Judgement.FITS:
                return Next(uid)
            pod.room = room
        return Next()

    def _is_under_way(self, pod: _Pod, now_s: float) -> bool:
        return pod.unheard > 0 and pod.touched_at_s is not None and now_s - pod.touched_at_s < self._rules.answer_s

    def touched(self, uid: str, now_s: float, room: int) -> None:
        """The pod was touched because of room made up to number `room`."""
        pod = self._pods.get(uid)
        if pod is not None:
            wait_s = min(self._rules.longest_s, self._rules.again_s * 2.0 ** min(pod.unheard, 30))
            pod.room, pod.touched_at_s, pod.not_before_s = room, now_s, now_s + wait_s
            pod.unheard += 1

    def failed(self, uid: str, now_s: float) -> None:
        """Touching failed; its turn comes again."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.not_before_s = now_s + self._rules.again_s
