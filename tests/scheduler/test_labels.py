"""The label of bound pods where the API server does not take it from the Binding."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from devices.kube.errors import Invalid, NotFound
from devices.objects import Pod
from scheduler.labels import Labels
from scheduler.lead import AlwaysLeads
from tests.builders import allocated, card, entry, node, pod
from tests.scheduler.builders import World, settle, unreachable

LABEL = "hami.io/vgpu-node"
ON_N1 = allocated(((entry("GPU-a"),),))


class Leading(AlwaysLeads):
    leads = True


class Labelling:
    def __init__(self) -> None:
        self.world = World(node("n1", card("GPU-a")))
        self.lead = Leading()
        self.labels = Labels(self.world.ledger, self.world.api, self.world.clock, self.lead)

    def seen(self, shown: Pod) -> None:
        self.world.put_pod(shown)
        self.labels.pod_changed(shown.uid)

    def label(self, name: str = "a") -> str | None:
        return self.world.stored(name).labels.get(LABEL)

    @property
    def writes(self) -> int:
        return self.world.api.calls.count("patch_pod")


@asynccontextmanager
async def running() -> AsyncIterator[Labelling]:
    labelling = Labelling()
    labelling.labels.start()
    try:
        yield labelling
    finally:
        await labelling.labels.stop()


LONG = "n" * 64

ROWS: dict[str, tuple[Pod, str | None]] = {
    "bound with an allocation": (pod(node="n1", annotations=ON_N1), "n1"),
    "not bound yet": (pod(annotations=ON_N1), None),
    "bound without an allocation": (pod(node="n1"), None),
    "bound elsewhere than its allocation says": (pod(node="n2", annotations=ON_N1), None),
    "finished": (pod(node="n1", annotations=ON_N1, phase="Succeeded"), None),
    "being deleted": (pod(node="n1", annotations=ON_N1, terminating=True), None),
    "a node whose name is no label value": (
        pod(node=LONG, annotations=allocated(((entry("GPU-a"),),), LONG)),
        None,
    ),
}


@pytest.mark.parametrize(("shown", "label"), ROWS.values(), ids=ROWS)
async def test_who_is_labelled(shown: Pod, label: str | None) -> None:
    async with running() as labelling:
        labelling.seen(shown)
        await settle()
        assert (labelling.label(), labelling.writes) == (label, int(label is not None))


async def test_events_from_before_the_label_do_not_write_it_again() -> None:
    async with running() as labelling:
        labelling.seen(pod(node="n1", annotations=ON_N1))
        await settle()
        for _ in range(3):
            labelling.labels.pod_changed("uid-a")
            await settle()
        assert labelling.writes == 1


async def test_a_follower_labels_nothing_and_makes_good_for_it_when_it_leads() -> None:
    async with running() as labelling:
        labelling.lead.leads = False
        labelling.seen(pod(node="n1", annotations=ON_N1))
        await settle()
        assert labelling.label() is None
        labelling.lead.leads = True
        labelling.labels.look_again()
        await settle()
        assert labelling.label() == "n1"


async def test_an_api_server_out_of_reach_is_asked_again_and_spoken_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as labelling:
        labelling.world.api.meets("patch_pod", unreachable(), unreachable())
        labelling.seen(pod(node="n1", annotations=ON_N1))
        await labelling.world.clock.advance(11)
        assert (labelling.label(), labelling.writes) == ("n1", 3)
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
            f"pod default/a lacks the label {LABEL}: GET: connection refused"
        ]


@pytest.mark.parametrize("error", [NotFound(404, "NotFound", "gone"), Invalid(422, "Invalid", "another UID")])
async def test_a_pod_that_is_not_there_any_more_holds_up_nobody(error: NotFound | Invalid) -> None:
    async with running() as labelling:
        labelling.world.api.meets("patch_pod", error)
        labelling.seen(pod(node="n1", annotations=ON_N1))
        labelling.seen(pod(name="b", node="n1", annotations=ON_N1))
        await settle()
        assert (labelling.label("a"), labelling.label("b"), labelling.writes) == (None, "n1", 2)
