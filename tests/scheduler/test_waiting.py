"""Who of the refused pods is touched, and when: tables over the pure core."""

from collections.abc import Callable, Sequence

import pytest

from scheduler.waiting import Judgement, Next, Rules, WaitingPods

RULES = Rules(under_way=3, answer_s=10.0, again_s=5.0, longest_s=40.0)


def fits(*uids: str) -> Callable[[str, int], Judgement]:
    return lambda uid, _: Judgement.FITS if uid in uids else Judgement.NOT


def everybody(uid: str, room: int) -> Judgement:
    return Judgement.FITS


def waiting(*refused: tuple[str, int]) -> WaitingPods:
    pods = WaitingPods(RULES)
    for uid, room in refused:
        pods.refused(uid, room)
    return pods


CASES: dict[str, tuple[Sequence[tuple[str, int]], int, Sequence[str], str | None]] = {
    "nobody waits": ([], 9, [], None),
    "no room was made since": ([("a", 5)], 5, ["a"], None),
    "room was made, and the pod fits there": ([("a", 5)], 6, ["a"], "a"),
    "room was made for others": ([("a", 5)], 6, [], None),
    "the longest refused of those who fit": ([("a", 1), ("b", 2), ("c", 3)], 6, ["b", "c"], "b"),
    "asked again in vain since: its turn is later": ([("a", 1), ("b", 2), ("a", 3)], 6, ["a", "b"], "b"),
    "refused knowing of all room": ([("a", 1), ("a", 6)], 6, ["a"], None),
}


@pytest.mark.parametrize(("refused", "room", "fitting", "expected"), CASES.values(), ids=CASES)
def test_who_is_next(
    refused: Sequence[tuple[str, int]], room: int, fitting: Sequence[str], expected: str | None
) -> None:
    assert waiting(*refused).next(100.0, room, fits(*fitting)) == Next(expected)


def test_who_does_not_fit_is_judged_once_for_the_same_room() -> None:
    pods, judged = waiting(("a", 5)), []

    def judge(uid: str, room: int) -> Judgement:
        judged.append((uid, room))
        return Judgement.NOT

    for room in (6, 6, 7):
        pods.next(100.0, room, judge)
    assert judged == [("a", 5), ("a", 6)]


def test_whom_there_was_no_time_to_judge_comes_first_in_the_next_look() -> None:
    pods, judged = waiting(("a", 1), ("b", 1), ("c", 1)), list[str]()

    def two(uid: str, room: int) -> Judgement:
        if len(judged) % 3 == 2:
            judged.append("")
            return Judgement.LATER
        judged.append(uid)
        return Judgement.NOT

    assert pods.next(100.0, 2, two) == Next(more=True)
    pods.next(100.0, 3, two)
    assert judged == ["a", "b", "", "c", "a", ""]


def test_one_freed_card_and_thousands_who_want_it() -> None:
    """The first is touched; until kube-scheduler has come for some of them, no more than the bound are."""
    pods = waiting(*((f"pod-{n}", 1) for n in range(5000)))
    touched = []
    for second in range(60):
        found = pods.next(second / 100, 2, everybody)
        if found.uid is not None:
            touched.append(found.uid)
            pods.touched(found.uid, second / 100, 2)
    assert touched == ["pod-0", "pod-1", "pod-2"]
    pods.forget("pod-0")  # placed: the card is gone
    pods.refused("pod-1", 2)
    assert pods.next(1.0, 2, fits()) == Next()


def test_touched_pods_that_kube_scheduler_never_comes_for_make_way_after_its_longest_back_off() -> None:
    pods = waiting(*((f"pod-{n}", 1) for n in range(4)))
    for n in range(3):
        pods.touched(f"pod-{n}", 0.0, 2)
    assert pods.next(9.9, 2, everybody) == Next()
    assert pods.next(10.0, 2, everybody) == Next("pod-3")


def test_one_pod_is_touched_again_only_for_new_room_and_not_at_once() -> None:
    pods = waiting(("a", 1))
    pods.touched("a", 100.0, 2)
    assert pods.next(200.0, 2, everybody) == Next()  # once for the same room
    assert pods.next(104.9, 3, everybody) == Next()
    assert pods.next(105.0, 3, everybody) == Next("a")


def test_a_pod_that_others_refuse_before_us_is_touched_ever_more_rarely_and_last() -> None:
    pods, now_s, gaps = waiting(("a", 1)), 0.0, []
    for room in range(2, 8):
        pods.touched("a", now_s, room)
        before_s = now_s
        while pods.next(now_s, room + 1, everybody).uid is None:
            now_s += 1.0
        gaps.append(now_s - before_s)
    assert gaps == [5.0, 10.0, 20.0, 40.0, 40.0, 40.0]
    pods.refused("b", 7)
    assert pods.next(now_s, 8, everybody) == Next("b")


def test_a_pod_that_kube_scheduler_asked_for_again_starts_anew_but_not_before_its_time() -> None:
    pods = waiting(("a", 1))
    pods.touched("a", 0.0, 2)
    pods.touched("a", 20.0, 3)
    pods.refused("a", 4)
    assert pods.next(24.9, 5, everybody) == Next()
    assert pods.next(25.0, 5, everybody) == Next("a")


def test_a_touch_that_failed_comes_again_for_the_same_room() -> None:
    pods = waiting(("a", 1))
    pods.failed("a", 100.0)
    assert pods.next(104.9, 2, everybody) == Next()
    assert pods.next(105.0, 2, everybody) == Next("a")


def test_what_happens_to_pods_that_were_forgotten_meanwhile() -> None:
    pods = waiting(("a", 1))
    pods.forget("a")
    pods.forget("a")
    pods.touched("a", 0.0, 2)
    pods.failed("a", 0.0)
    assert (len(pods), pods.uids(), "a" in pods) == (0, (), False)
    pods.refused("b", 1)
    pods.clear()
    assert len(pods) == 0
