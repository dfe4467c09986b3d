"""Binding: one write that carries everything, and nothing lost or held too long on any way through."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec import structs

from devices.kube.errors import Conflict, Forbidden
from devices.ledger import Phase
from devices.objects import Pod, SchedulingGroup
from lab.replay.cluster import StillClock
from scheduler.bind import BindRequest
from scheduler.errors import BindError, PodNotFoundError
from tests.builders import (
    A100_PROFILES,
    allocated,
    card,
    container_document,
    entry,
    mig_card,
    node,
    pod,
)
from tests.scheduler.builders import (
    LOCK,
    NO_LOCK,
    NOW,
    NOW_S,
    Hitch,
    World,
    lost,
    settle,
    unreachable,
)

SECONDS = str(int(NOW_S))


def free_world(**fields: object) -> World:
    """A node with one card whose plugin needs no lock."""
    return World(node("n1", card("a"), annotations=NO_LOCK), **fields)  # type: ignore[arg-type] # fields of several types in one mapping


async def start(world: World, pod: Pod, node: str = "n1", deadline_s: float | None = None) -> "asyncio.Task[str]":
    async def bind() -> str:
        try:
            await world.binder.bind(world.request(pod, node, deadline_s))
        except BindError as error:
            return str(error)
        return ""

    task = asyncio.create_task(bind())
    await settle()
    return task


async def test_one_write_carries_everything() -> None:
    world = free_world()
    asked = world.filtered(pod(container_document("p"), container_document(gpu=1, gpumem=1000, gpucores=30)))
    assert await world.bind(asked) == ""
    assert world.api.calls == ["bind"]
    assert world.api.bodies == [
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": "a",
                "namespace": "default",
                "uid": "uid-a",
                "annotations": {
                    "hami.io/vgpu-node": "n1",
                    "hami.io/vgpu-time": SECONDS,
                    "hami.io/bind-phase": "allocating",
                    "hami.io/bind-time": SECONDS,
                    "hami.io/vgpu-devices-to-allocate": ";a,NVIDIA,1000,30:;",
                    "hami.io/vgpu-devices-allocated": ";a,NVIDIA,1000,30:;",
                },
                "labels": {"hami.io/vgpu-node": "n1"},
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        }
    ]
    assert world.said.events == [("Normal", "BindingSucceed", "Successfully binding node [n1] to default/a")]
    assert (world.held(), world.ledger.reservation("uid-a")) == ({"a": (1, 1000, 30)}, None)


async def test_instances_travel_too_and_stale_keys_of_an_earlier_attempt_are_emptied() -> None:
    world = World(node("n1", mig_card("m"), annotations=NO_LOCK), node("n2", card("c"), annotations=NO_LOCK))
    first = world.filtered(pod(container_document(gpu=1, gpumem=4000), name="p1"))
    assert await world.bind(first) == ""
    bound = world.stored("p1").annotations
    assert bound["hami.io/vgpu-mig-allocations"] == (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"m","profile":"1g.5gb","placement":{"start":6,"size":1}}]'
    )
    assert A100_PROFILES[0].memory_mib == 4864
    assert bound["hami.io/vgpu-devices-allocated"] == "m,NVIDIA,4864,15:;"
    stale = {"hami.io/vgpu-mig-allocations": "[old]", "hami.io/vgpu-devices-allocated": "x,NVIDIA,1,1:;"}
    second = world.put_pod(pod(name="p2", annotations=stale))
    world.filter(second, "n2")
    assert await world.bind(second, "n2") == ""
    after = world.stored("p2").annotations
    assert after["hami.io/vgpu-mig-allocations"] == ""
    assert after["hami.io/vgpu-devices-allocated"] == "c,NVIDIA,1000,0:;"


async def test_a_pod_without_devices_is_just_bound() -> None:
    world = World(node("n1", card("a")))
    plain = world.put_pod(pod(container_document()))
    assert await world.bind(plain) == ""
    assert world.api.bodies[0]["metadata"] == {"name": "a", "namespace": "default", "uid": "uid-a"}
    assert world.api.lock() is None
    assert await world.bind(plain) == ""
    assert world.api.calls.count("bind") == 1


async def test_a_node_name_of_70_characters_gives_no_label() -> None:
    name = "n" * 70
    world = World(node(name, card("a"), annotations=NO_LOCK))
    asked = world.filtered(pod())
    assert await world.bind(asked, name) == ""
    assert world.api.bodies[0]["metadata"]["labels"] == {}  # type: ignore[index] # a JSON object, whose values have no type of their own
    assert world.stored().annotations["hami.io/vgpu-node"] == name


async def test_metadata_that_the_api_server_would_never_take_again_is_refused() -> None:
    world = free_world()
    asked = world.filtered(pod())
    reservation = world.ledger.reservation(asked.uid)
    assert reservation is not None
    world.ledger.reserve(asked, "n1", ((entry("a" * 300_000),),), NOW_S)
    world.put_node(node("n1", card("a"), card("a" * 300_000, index=1), annotations=NO_LOCK))
    answer = await world.bind(asked)
    assert answer.startswith("BindError: ")  # what the handler answers; any other error is a fault of ours
    assert "more than the 262144 a pod may carry" in answer
    assert (world.held(), world.api.bodies) == ({}, [])


UNKNOWN = {
    "no such pod": (BindRequest("default", "nobody", "u", "n1"), 'pod "nobody" not found', []),
    "another UID": (BindRequest("default", "a", "uid-other", "n1"), 'pod "a" not found', []),
    "a UID of another pod": (BindRequest("default", "b", "uid-a", "n1"), 'pod "b" not found', []),
    "another namespace": (BindRequest("team", "a", "uid-a", "n1"), 'pod "a" not found', []),
    "a text that is no name": (BindRequest("default", "a/b", "u", "n1"), 'pod "a/b" not found', []),
    "no such node": (
        BindRequest("default", "a", "uid-a", "n9"),
        'node "n9" not found',
        [("Warning", "BindingFailed", "failed to get node n9")],
    ),
    "a text that is no node's name": (
        BindRequest("default", "a", "uid-a", "../n1"),
        'node "../n1" not found',
        [("Warning", "BindingFailed", "failed to get node ../n1")],
    ),
}


@pytest.mark.parametrize(("request_", "text", "events"), UNKNOWN.values(), ids=UNKNOWN)
async def test_unknown_pods_and_nodes(request_: BindRequest, text: str, events: list[tuple[str, str, str]]) -> None:
    world = free_world()
    world.filtered(pod())
    with pytest.raises(BindError, match=r".*") as refused:
        await world.binder.bind(request_)
    assert (str(refused.value), world.said.events) == (text, events)
    assert world.held() == ({} if request_.uid == "uid-a" else {"a": (1, 1000, 0)})
    assert world.api.bodies == []


@pytest.mark.parametrize("phase", [Phase.BINDING, Phase.UNSETTLED])
@pytest.mark.parametrize("wrong", [{"node": "n9"}, {"name": "b"}], ids=str)
async def test_a_wrong_request_gives_nothing_back_while_the_pods_binding_is_open(
    phase: Phase, wrong: dict[str, str]
) -> None:
    """The reservation was released in the middle of its Binding."""
    world = free_world()
    asked = world.filtered(pod())
    world.ledger.set_phase(asked.uid, phase)
    with pytest.raises(BindError):
        await world.binder.bind(structs_replace(world.request(asked), **wrong))
    assert world.held() == {"a": (1, 1000, 0)}


def structs_replace(request: BindRequest, **changes: str) -> BindRequest:
    fields = {"namespace": request.namespace, "name": request.name, "uid": request.uid, "node": request.node}
    return BindRequest(**{**fields, **changes})  # type: ignore[arg-type] # fields of several types in one mapping


async def test_a_pod_that_the_watch_has_not_shown_yet_is_read() -> None:
    world = free_world()
    world.api.silent = True
    asked = world.put_pod(pod())
    assert await world.bind(asked) == ""
    assert world.api.calls == ["get_pod", "bind"]
    assert world.held() == {"a": (1, 1000, 0)}


async def test_a_pod_that_cannot_be_read_is_an_error_of_the_bind() -> None:
    world = free_world()
    world.api.meets("get_pod", unreachable())
    assert await world.bind(pod()) == "BindError: GET: connection refused"


async def test_a_pod_deleted_while_it_is_read_stays_gone() -> None:
    """The late answer brought it back into the books for ever."""
    world = free_world()
    world.api.silent = True
    asked, hold = world.put_pod(pod()), asyncio.Event()
    world.api.meets("get_pod", Hitch(hold_after=hold))
    task = await start(world, asked)
    world.ledger.delete_pod(asked.uid)
    hold.set()
    assert await task == 'pod "a" not found'
    assert (world.ledger.pod(asked.uid), world.held()) == (None, {})


class TestRepeated:
    async def test_bound_with_our_cards_is_a_success_without_a_write(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        assert [await world.bind(asked), await world.bind(asked)] == ["", ""]
        assert world.api.calls == ["bind"]

    async def test_bound_to_another_node(self) -> None:
        world = free_world()
        world.put_pod(pod(node="n2", annotations=allocated(((entry("z"),),), "n2")))
        assert await world.bind(world.stored()) == "BindError: pod default/a is already bound to node n2"

    async def test_before_the_watch_has_shown_the_first_ones_success(self) -> None:
        """It was refused as "not settled yet" although the pod stands bound with its cards."""
        world = free_world()
        asked = world.filtered(pod())
        world.api.silent = True
        assert await world.bind(asked) == ""
        assert world.ledger.reservation(asked.uid) is not None
        assert await world.bind(asked) == ""
        assert world.api.calls == ["bind", "get_pod"]
        assert world.held() == {"a": (1, 1000, 0)}

    async def test_bound_behind_our_back_with_other_cards(self) -> None:
        world = World(node("n1", card("a"), card("b", index=1), annotations=NO_LOCK))
        asked = world.filtered(pod())
        world.ledger.set_phase(asked.uid, Phase.UNSETTLED)
        world.api.silent = True
        world.put_pod(pod(node="n1", annotations=allocated(((entry("a"),),))))
        assert await world.bind(asked) == "BindError: pod default/a is already bound to node n1 with other cards"
        assert world.held() == {"a": (1, 1000, 0)}  # what it carries counts at once

    @pytest.mark.parametrize("node_name", ["n1", "n2"])
    async def test_while_the_first_is_under_way(self, node_name: str) -> None:
        world = World(node("n1", card("a"), annotations=NO_LOCK), node("n2", card("b"), annotations=NO_LOCK))
        asked, hold = world.filtered(pod()), asyncio.Event()
        world.api.meets("bind", Hitch(hold=hold))
        first = await start(world, asked)
        text = await world.bind(asked, node_name)
        assert text.endswith(
            "an earlier binding of pod default/a is not settled yet"
            if node_name == "n1"
            else "node n2: the pod's earlier binding to node n1 is not settled yet"
        )
        assert world.held() == {"a": (1, 1000, 0)}
        hold.set()
        assert await first == ""

    async def test_of_a_pod_that_is_open_and_cannot_be_read(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        world.ledger.set_phase(asked.uid, Phase.UNSETTLED)
        world.api.meets("get_pod", unreachable())
        assert (await world.bind(asked)).endswith("an earlier binding of pod default/a is not settled yet")
        assert world.held() == {"a": (1, 1000, 0)}


class TestReplacing:
    async def test_a_reservation_on_another_node_moves_to_the_named_one(self) -> None:
        world = World(node("n1", card("a"), annotations=NO_LOCK), node("n2", card("b"), annotations=NO_LOCK))
        asked = world.filtered(pod())
        assert world.held("n1") == {"a": (1, 1000, 0)}
        assert await world.bind(asked, "n2") == ""
        assert (world.held("n1"), world.held("n2")) == ({}, {"b": (1, 1000, 0)})
        assert world.stored().annotations["hami.io/vgpu-devices-allocated"] == "b,NVIDIA,1000,0:;"

    async def test_a_released_one_is_placed_again(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        world.ledger.release(asked.uid)
        assert await world.bind(asked) == ""
        assert world.held() == {"a": (1, 1000, 0)}

    async def test_or_refused_with_the_reason(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        world.ledger.release(asked.uid)
        world.filtered(pod(container_document(gpu=1, gpumem=15_000), name="other"))
        text = "node n1: 1/1 CardInsufficientMemory"
        assert await world.bind(asked) == f"BindError: {text}"
        assert world.said.events == [("Warning", "BindingFailed", text)]

    async def test_a_pod_that_admission_did_not_see(self) -> None:
        world = free_world()
        bad = world.put_pod(pod(container_document(gpu=1, gpumem="1.5")))
        assert (await world.bind(bad)).startswith("BindError: invalid nvidia.com/gpumem value 1.5")

    async def test_cards_that_have_gone_since(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        world.put_node(node("n1", card("a", healthy=False), annotations=NO_LOCK))
        text = "the cards reserved for pod default/a on node n1 are no longer available"
        assert await world.bind(asked) == f"BindError: {text}"
        assert (world.ledger.reservation(asked.uid), world.api.bodies) == (None, [])


class TestFailures:
    async def test_a_definite_refusal_gives_back_cards_and_lock(self) -> None:
        world = World(node("n1", card("a")))
        asked = world.filtered(pod())
        world.api.meets("bind", Forbidden(403, "Forbidden", "no"))
        assert await world.bind(asked) == "BindError: no (403 Forbidden)"
        assert (world.held(), world.api.lock()) == ({}, None)
        assert world.said.events == [("Warning", "BindingFailed", "no (403 Forbidden)")]

    async def test_cards_lost_while_the_client_waited_for_its_turn(self) -> None:
        world = free_world()
        asked, hold = world.filtered(pod()), asyncio.Event()
        world.api.meets("bind", Hitch(hold=hold))
        task = await start(world, asked)
        world.put_node(node("n1", card("a"), annotations=NO_LOCK, cordon="a"))
        hold.set()
        assert (await task).endswith("are no longer available")
        assert (world.held(), world.api.bodies) == ({}, [])

    async def test_a_conflict_whose_pod_carries_our_cards_is_a_success(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        world.api.silent = True
        world.put_pod(pod(node="n1", annotations=allocated(((entry("a"),),))))
        assert await world.bind(asked) == ""
        assert world.held() == {"a": (1, 1000, 0)}

    async def test_a_conflict_whose_pod_stands_elsewhere(self) -> None:
        """The cards it carries there count before those of the reservation are given back."""
        world = World(node("n1", card("a"), annotations=NO_LOCK), node("n2", card("b")))
        asked = world.filtered(pod())
        world.api.silent = True
        world.put_pod(pod(node="n2", annotations=allocated(((entry("b", 700),),), "n2")))
        assert "is already assigned" in await world.bind(asked)
        assert (world.held("n1"), world.held("n2")) == ({}, {"b": (1, 700, 0)})

    async def test_a_conflict_of_a_pod_made_again(self) -> None:
        world = free_world()
        asked = world.filtered(pod())
        world.api.silent = True
        world.put_pod(pod(uid="uid-next"))
        assert "is already assigned" in await world.bind(asked)
        assert world.held() == {}

    async def test_a_conflict_that_cannot_be_looked_into_holds_the_cards(self) -> None:
        """They were given back, although an earlier Binding may have put the pod on them."""
        world = free_world()
        asked = world.filtered(pod())
        world.api.meets("bind", Conflict(409, "Conflict", "no"))
        world.api.meets("get_pod", unreachable(), unreachable())
        assert (await world.bind(asked)).endswith("the outcome of binding pod default/a to node n1 is not known yet")
        await settle()
        assert world.held() == {"a": (1, 1000, 0)}
        await world.clock.advance(1)
        assert world.held() == {}


class TestLostReply:
    async def begin(self, *, after: bool, deadline_s: float | None = None) -> tuple[World, Pod, "asyncio.Task[str]"]:
        world = World(node("n1", card("a"), card("b", index=1)))
        asked = world.filtered(pod())
        world.api.silent = after
        world.api.meets("bind", Hitch(lost(), after=after))
        return world, asked, await start(world, asked, deadline_s=deadline_s)

    async def test_the_server_had_done_it(self) -> None:
        world, asked, task = await self.begin(after=True)
        assert not task.done()
        assert world.filter(asked).nodes == ("n1",)
        assert world.filter(asked, "elsewhere").outcome == "held"
        await world.clock.advance(4.9)
        assert not task.done()  # the write may land until its own time-out has run out
        await world.clock.advance(0.1)
        assert await task == ""
        assert world.held() == {"b": (1, 1000, 0)}
        assert world.api.lock() == f"{NOW},default,a"
        assert world.said.events[-1][1] == "BindingSucceed"

    async def test_the_server_had_not_done_it(self) -> None:
        world, asked, task = await self.begin(after=False)
        await world.clock.advance(4.9)
        assert world.held() == {"b": (1, 1000, 0)}
        await world.clock.advance(0.1)
        assert await task == "binding pod default/a to node n1 failed: POST: the reply was lost"
        assert (world.held(), world.api.lock()) == ({}, None)
        assert uuid_of(world, asked) == "b"

    async def test_the_pod_has_been_deleted_since(self) -> None:
        world, asked, task = await self.begin(after=True)
        world.delete_pod()
        await world.clock.advance(5)
        assert "failed: POST" in await task
        assert (world.held(), world.ledger.pod(asked.uid), world.api.lock()) == ({}, None, None)

    async def test_the_api_server_stays_away_and_comes_back(self) -> None:
        world, asked, task = await self.begin(after=True)
        world.api.meets("get_pod", *[unreachable()] * 4)
        await world.clock.advance(5)
        assert await task == "the outcome of binding pod default/a to node n1 is not known yet"
        await world.clock.advance(2)
        assert world.held() == {"b": (1, 1000, 0)}
        assert world.filter(asked, "n1").outcome == "held"
        await world.clock.advance(1)
        assert world.stored().bound_node == "n1"
        reservation = world.ledger.reservation(asked.uid)
        assert reservation is None  # the read showed it bound
        assert world.held() == {"b": (1, 1000, 0)}

    async def test_and_comes_back_without_the_pod_bound(self) -> None:
        world, _, task = await self.begin(after=False)
        world.api.meets("get_pod", *[unreachable()] * 2)
        await world.clock.advance(5)
        assert "is not known yet" in await task
        await world.clock.advance(1)
        assert (world.held(), world.api.lock()) == ({}, None)

    async def test_where_the_caller_cannot_wait_so_long(self) -> None:
        world, asked, task = await self.begin(after=True, deadline_s=NOW_S + 5)
        assert task.done()
        assert await task == "the outcome of binding pod default/a to node n1 is not known yet"
        assert world.api.calls.count("get_pod") == 0
        await world.clock.advance(4.9)
        assert world.ledger.reservation(asked.uid) is not None
        await world.clock.advance(0.1)
        assert world.stored().bound_node == "n1"
        assert world.held() == {"b": (1, 1000, 0)}

    async def test_waiting_ends_with_the_process(self) -> None:
        world, _, task = await self.begin(after=True)
        await world.binder.stop()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.binder.stop()


def uuid_of(world: World, pod: Pod) -> str:
    found = world.filter(pod)
    assert found.allocation is not None
    return found.allocation[0][0].uuid


class TestCallerGone:
    async def cancelled(self, task: "asyncio.Task[str]") -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle()

    async def test_while_waiting_for_the_lock(self) -> None:
        world = World(node("n1", card("a"), annotations={LOCK: f"{NOW},default,other"}))
        world.put_pod(pod(name="other"))
        asked = world.filtered(pod())
        task = await start(world, asked)
        assert not task.done()
        await self.cancelled(task)
        assert (world.held(), world.api.bodies) == ({}, [])
        assert world.api.lock() == f"{NOW},default,other"

    @pytest.mark.parametrize("hold_after", [True, False])
    async def test_while_the_lock_is_being_written(self, hold_after: bool) -> None:
        """The lock stayed on the node until its expiry: nobody knew that it had been taken."""
        world = World(node("n1", card("a")))
        asked, hold = world.filtered(pod()), asyncio.Event()
        world.api.meets("patch_node", Hitch(hold_after=hold) if hold_after else Hitch(hold=hold))
        task = await start(world, asked)
        assert world.api.calls[-1] == "patch_node"
        task.cancel()
        await settle()
        assert not task.done()
        hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settle()
        assert (world.held(), world.api.lock(), world.api.bodies) == ({}, None, [])

    async def test_before_the_binding_goes_out_it_does_not(self) -> None:
        """A Binding that still waited for its turn in the client went out although nobody asked for it any more."""
        world = World(node("n1", card("a")))
        asked, hold = world.filtered(pod()), asyncio.Event()
        world.api.meets("bind", Hitch(hold=hold))
        task = await start(world, asked)
        await self.cancelled(task)
        hold.set()
        await settle()
        assert (world.held(), world.api.lock(), world.api.bodies) == ({}, None, [])

    async def test_after_it_is_sent_the_outcome_counts(self) -> None:
        world = World(node("n1", card("a")))
        asked, hold = world.filtered(pod()), asyncio.Event()
        world.api.meets("bind", Hitch(hold_after=hold))
        task = await start(world, asked)
        await self.cancelled(task)
        assert world.held() == {"a": (1, 1000, 0)}
        hold.set()
        await settle()
        assert world.stored().bound_node == "n1"
        assert (world.held(), world.api.lock()) == ({"a": (1, 1000, 0)}, f"{NOW},default,a")

    async def test_and_its_failure_is_given_back_and_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        world = World(node("n1", card("a")))
        asked, hold = world.filtered(pod()), asyncio.Event()
        world.api.meets("bind", Hitch(Forbidden(403, "Forbidden", "no"), hold=hold))
        task = await start(world, asked)
        await self.cancelled(task)
        hold.set()
        await settle()
        assert (world.held(), world.api.lock()) == ({}, None)
        assert "after its caller had gone: no (403 Forbidden)" in caplog.text


class TestLocks:
    MODES: dict[str, tuple[str, dict[str, str], bool]] = {
        "auto": ("auto", {}, True),
        "auto, a node that needs none": ("auto", NO_LOCK, False),
        "auto, another word": ("auto", {"slotwise.io/node-lock": "yes"}, True),
        "always": ("always", NO_LOCK, True),
        "never": ("never", {}, False),
    }

    @pytest.mark.parametrize(("mode", "annotations", "locked"), MODES.values(), ids=MODES)
    async def test_modes(self, mode: str, annotations: dict[str, str], locked: bool) -> None:
        world = World(node("n1", card("a"), annotations=annotations), node_lock=mode)
        asked = world.filtered(pod())
        assert await world.bind(asked) == ""
        assert world.api.lock() == (f"{NOW},default,a" if locked else None)
        assert world.api.calls == (["get_node", "patch_node", "bind"] if locked else ["bind"])

    async def test_init_containers_alone_take_it_too(self) -> None:
        world = World(node("n1", card("a")))
        asked = world.filtered(pod(container_document("p"), init=[container_document("i", gpu=1, gpumem=9)]))
        assert await world.bind(asked) == ""
        assert world.api.lock() == f"{NOW},default,a"

    async def test_a_failure_gives_back(self) -> None:
        world = World(node("n1", card("a")))
        asked = world.filtered(pod())
        world.api.meets("get_node", unreachable(), unreachable())
        text = "failed to set node lock (node=n1): GET: connection refused"
        assert await world.bind(asked) == f"LockFailedError: {text}"
        assert (world.held(), world.said.events) == ({}, [("Warning", "BindingFailed", text)])

    async def test_replies_lost_to_the_end_give_the_lock_back(self) -> None:
        """The last write had set the lock, and its loss left it on the node until its expiry."""
        world = World(node("n1", card("a")), clock=StillClock())
        asked = world.filtered(pod())
        world.api.meets("patch_node", *[lost()] * 4, Hitch(lost(), after=True))
        assert (await world.bind(asked)).startswith(
            "LockFailedError: failed to set node lock (node=n1, retry strategy="
        )
        assert (world.held(), world.api.lock()) == ({}, None)

    async def test_contention(self) -> None:
        theirs = f"{NOW},team,other"
        world = World(node("n1", card("a"), annotations={LOCK: theirs}), clock=StillClock())
        world.put_pod(pod(name="other", namespace="team"))
        asked = world.filtered(pod())
        text = "node n1 has been locked within 5m0s: node lock contention"
        assert await world.bind(asked) == f"LockContentionError: {text}"
        assert (world.held(), world.api.lock()) == ({}, theirs)

    GANGS: dict[str, Callable[[Pod], Pod]] = {
        "by label": lambda p: structs.replace(
            p, metadata=structs.replace(p.metadata, labels={"scheduling.x-k8s.io/pod-group": "g"})
        ),
        "by its spec": lambda p: structs.replace(p, spec=structs.replace(p.spec, scheduling_group=group("g"))),
    }

    @pytest.mark.parametrize("gang", GANGS.values(), ids=GANGS)
    async def test_gang_members_wait_longer(self, gang: Callable[[Pod], Pod]) -> None:
        world = World(node("n1", card("a"), annotations={LOCK: f"{NOW},team,other"}))
        world.put_pod(pod(name="other", namespace="team"))
        asked = world.filtered(gang(pod()))
        task = await start(world, asked)
        await world.clock.advance(27.9)
        assert not task.done()
        world.api.annotate_node("n1", LOCK, None)
        assert await task == ""

    @pytest.mark.parametrize(
        "plain",
        [
            lambda p: structs.replace(
                p, metadata=structs.replace(p.metadata, labels={"scheduling.x-k8s.io/pod-group": ""})
            ),
            lambda p: structs.replace(p, spec=structs.replace(p.spec, scheduling_group=group(None))),
        ],
    )
    async def test_an_empty_group_is_none(self, plain: Callable[[Pod], Pod]) -> None:
        world = World(node("n1", card("a"), annotations={LOCK: f"{NOW},team,other"}))
        world.put_pod(pod(name="other", namespace="team"))
        task = await start(world, world.filtered(plain(pod())))
        await world.clock.advance(2)
        assert await task == "node n1 has been locked within 5m0s: node lock contention"


def group(name: str | None) -> SchedulingGroup:
    return SchedulingGroup(pod_group_name=name)


def test_the_tree_of_errors_keeps_not_found_a_bind_error() -> None:
    assert issubclass(PodNotFoundError, BindError)
