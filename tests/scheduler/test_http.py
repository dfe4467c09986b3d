"""The extender protocol over HTTP: every answer and every wrong input, and that the books stand as before after it."""

import asyncio
import logging
from collections.abc import AsyncIterator

import msgspec
import orjson
import pytest

from devices.kube.errors import Forbidden
from scheduler.handlers import BODY_LIMIT_BYTES
from serving.quick import QUICK
from tests.builders import card, container_document, node, pod, quota
from tests.scheduler.builders import NO_LOCK
from tests.scheduler.served import (
    Feed,
    Served,
    bind_args,
    filter_args,
    served,
    with_nodes,
)

NOTHING: dict[str, object] = {
    "Nodes": None,
    "NodeNames": None,
    "FailedNodes": None,
    "FailedAndUnresolvableNodes": None,
    "Error": "",
}
N1 = node("n1", card("a"), annotations=NO_LOCK)
N2 = node("n2", card("b", memory_mib=10), annotations=NO_LOCK)
JSON_POD = msgspec.to_builtins(pod())


@pytest.fixture
async def service() -> AsyncIterator[Served]:
    async with served(N1, N2) as one:
        yield one


ANSWERS = {
    "fit": (filter_args(pod(), "n2", "n1", "n3"), {"NodeNames": ["n1"]}),
    "nothing fits": (
        filter_args(pod(), "n2", "n3"),
        {
            "FailedNodes": {"n2": "1/1 CardInsufficientMemory"},
            "FailedAndUnresolvableNodes": {"n3": "node unregistered"},
        },
    ),
    "only hopeless ones": (
        filter_args(pod(annotations={"nvidia.com/use-gputype": "A100"}), "n1", "n2"),
        {
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {"n1": "1/1 CardTypeMismatch", "n2": "1/1 CardTypeMismatch"},
        },
    ),
    "too few cards": (
        filter_args(pod(container_document(gpu=2)), "n1"),
        {"FailedNodes": {}, "FailedAndUnresolvableNodes": {"n1": "NodeInsufficientDevice"}},
    ),
    "no devices": (filter_args(pod(container_document()), "n9", "n1"), {"NodeNames": ["n9", "n1"]}),
    "no names": (filter_args(pod()), {"FailedNodes": {}}),
    "keys in any case": (
        {"pod": JSON_POD, "nodenames": ["n1"]},
        {"NodeNames": ["n1"]},
    ),
    "one key in another case": ({"Pod": JSON_POD, "NODENAMES": ["n1"]}, {"NodeNames": ["n1"]}),
    "nodes in another case": (
        {"pod": JSON_POD, "nodes": {"Items": [msgspec.to_builtins(N1)]}},
        {"Nodes": {"metadata": {}, "items": [msgspec.to_builtins(N1)]}},
    ),
    "bad weights": (
        filter_args(pod(annotations={"hami.io/device-scoring-weights": "x"}), "n1"),
        {
            "Error": 'calcScore failed invalid hami.io/device-scoring-weights annotation "x":'
            " expected slot, core, and memory weights for pod a"
        },
    ),
    "a malformed value": (
        filter_args(pod(container_document(gpu=1, gpumem="16Gi")), "n1"),
        {
            "Error": "invalid nvidia.com/gpumem value 16Gi in container main: must be an integer between 0 and 2147483647"
        },
    ),
}


@pytest.mark.parametrize(("asked", "answer"), ANSWERS.values(), ids=ANSWERS)
async def test_filter(service: Served, asked: object, answer: dict[str, object]) -> None:
    assert await service.post("/filter", asked) == (200, {**NOTHING, **answer})


async def test_fit_reserves_and_says_so(service: Served) -> None:
    await service.post("/filter", filter_args(pod(), "n1", "n2"))
    assert service.ledger.reservation("uid-a") is not None
    assert await service.said(1) == ["find fit node(n1), 1 nodes not fit, 1 nodes fit(n1:0.00)"]
    event = service.api.events[0]
    assert event["source"] == {"component": "hami-scheduler"}
    assert (event["type"], event["reason"]) == ("Normal", "FilteringSucceed")


async def test_known_nodes_given_whole_are_a_live_call_answered_in_kind(service: Served) -> None:
    """A caller without node cache never reserved anything: whole nodes could not be read at all."""
    given = node("n1", card("x", memory_mib=1), labels={"zone": "z"})  # the books know better than the object
    answer = await service.post("/filter", with_nodes(pod(), [given, N2]))
    assert answer == (200, {**NOTHING, "Nodes": {"metadata": {}, "items": [msgspec.to_builtins(given)]}})
    reservation = service.ledger.reservation("uid-a")
    assert reservation is not None
    assert reservation.node == "n1"
    refused = await service.post("/filter", with_nodes(pod(name="b"), [N2]))
    assert refused == (200, {**NOTHING, "FailedNodes": {"n2": "1/1 CardInsufficientMemory"}})


async def test_an_unknown_node_among_them_makes_it_a_simulation(service: Served) -> None:
    """Refusals of a simulation that found a node were left out."""
    before = service.books()
    new, small = node("new", card("x")), node("small", card("y", memory_mib=1))
    for path, listener in (("/filter", 0), ("/simulate", 1)):
        answer = await service.post(path, with_nodes(pod(), [N1, N2, new, small, node("bare")]), listener=listener)
        assert answer == (
            200,
            {
                **NOTHING,
                "Nodes": {"metadata": {}, "items": [msgspec.to_builtins(N1), msgspec.to_builtins(new)]},
                "FailedNodes": {"n2": "1/1 CardInsufficientMemory", "small": "1/1 CardInsufficientMemory"},
                "FailedAndUnresolvableNodes": {"bare": "node unregistered"},
            },
        )
    assert service.books() == before
    await service.post("/filter", filter_args(pod(name="b"), "n1"))
    assert [event["involvedObject"]["name"] for event in service.api.events[: len(await service.said(1))]] == ["b"]  # type: ignore[index] # a JSON object, whose values have no type of their own


SIMULATED = {
    "names": (
        filter_args(pod(), "n1", "n2"),
        {"NodeNames": ["n1"], "FailedNodes": {"n2": "1/1 CardInsufficientMemory"}},
    ),
    "all fit": (filter_args(pod(), "n1"), {"NodeNames": ["n1"], "FailedNodes": {}}),
    "nothing fits": (filter_args(pod(), "n2"), {"FailedNodes": {"n2": "1/1 CardInsufficientMemory"}}),
    "whole nodes, none fits": (
        with_nodes(pod(), [node("new", card("x", memory_mib=1))]),
        {"FailedNodes": {"new": "1/1 CardInsufficientMemory"}},
    ),
    "no devices": (filter_args(pod(container_document()), "x"), {"NodeNames": ["x"], "FailedNodes": {}}),
    "a malformed value": (
        filter_args(pod(container_document(gpu="1.5")), "n1"),
        {"Error": "invalid nvidia.com/gpu value 1.5 in container main: must be an integer between 0 and 2147483647"},
    ),
    "no pod": ({"NodeNames": []}, {"Error": "extender args missing pod"}),
}


@pytest.mark.parametrize(("asked", "answer"), SIMULATED.values(), ids=SIMULATED)
async def test_simulate(service: Served, asked: object, answer: dict[str, object]) -> None:
    before = service.books()
    assert await service.post("/simulate", asked, listener=1) == (200, {**NOTHING, **answer})
    assert service.books() == before


DEEP = b"[" * 200_000
WRONG: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"nonsense", "cannot decode the request: "),
    "cut": (orjson.dumps(filter_args(pod(), "n1"))[:-20], "cannot decode the request: "),
    "not UTF-8": (b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":["n1"]}', "cannot decode the request: "),
    "half a surrogate": (b'{"Pod":{"metadata":{"name":"\\ud800"}},"NodeNames":["n1"]}', "cannot decode the request: "),
    "nested without end": (DEEP, "cannot decode the request: "),
    "nested without end where it is skipped": (b'{"Pod":{"x":' + DEEP, "cannot decode the request: "),
    "a number out of range": (
        b'{"Pod":{},"Nodes":{"items":[{"metadata":{"name":"a"},"x":1e999}]}}',
        "cannot decode the request: ",
    ),
    "a list": (b"[]", "cannot decode the request: "),
    "a wrong type": (b'{"Pod":{"spec":5},"NodeNames":["n1"]}', "cannot decode the request: Expected `object`"),
    "a wrong type in another case": (b'{"pod":{"spec":5},"nodenames":["n1"]}', "cannot decode the request: Expected"),
    "names that are none": (b'{"Pod":{},"NodeNames":[1]}', "cannot decode the request: Expected `str`"),
    "no pod": (b'{"NodeNames":["n1"]}', "extender args missing pod"),
    "pod null": (b'{"Pod":null,"NodeNames":["n1"]}', "extender args missing pod"),
    "an empty object": (b"{}", "extender args missing pod"),
    "neither names nor nodes": (
        b'{"Pod":{},"NodeNames":null,"Nodes":null}',
        "extender args missing nodes: expected NodeNames or Nodes",
    ),
    "nodes that are no list": (b'{"Pod":{},"Nodes":[]}', "Nodes: expected a NodeList with items"),
    "items that are no list": (b'{"Pod":{},"Nodes":{"items":{}}}', "Nodes: expected a NodeList with items"),
    "an item without name": (b'{"Pod":{},"Nodes":{"items":[{}]}}', "Nodes: every item needs a metadata.name"),
    "an item of a wrong type": (b'{"Pod":{},"Nodes":{"items":[5]}}', "cannot decode the request: Expected `object`"),
    "too large": (
        b" " * (BODY_LIMIT_BYTES + 1),
        f"request body too large: {BODY_LIMIT_BYTES + 1} bytes, the limit is 16777216 bytes (16 MiB)",
    ),
    "no UID to reserve under": (
        orjson.dumps({"Pod": {"spec": JSON_POD["spec"]}, "NodeNames": ["n1"]}),
        "the pod has no metadata.uid: cards are reserved under it",
    ),
}


@pytest.mark.parametrize(("sent", "text"), WRONG.values(), ids=WRONG)
async def test_wrong_input_to_filter(service: Served, sent: bytes, text: str) -> None:
    before = service.books()
    status, answer = await service.post("/filter", sent)
    assert (status, {**answer, "Error": ""}) == (200, NOTHING)
    assert answer["Error"].startswith(text)
    assert service.books() == before
    if "metadata.uid" not in text:  # a simulation reserves nothing
        status, simulated = await service.post("/simulate", sent, listener=1)
        assert (status, simulated) == (200, answer)
        status, shown = await service.post("/prioritize", sent)
        assert (status, shown) == (400, answer["Error"])
    good = await service.post("/filter", filter_args(pod(), "n1"))
    assert good == (200, {**NOTHING, "NodeNames": ["n1"]})


@pytest.mark.parametrize("path", ["/filter", "/bind", "/prioritize"])
async def test_no_body_wrong_method_unknown_path(service: Served, path: str) -> None:
    before = service.books()
    assert await service.post(path, b"") == (400, "Please send a request body")
    status, shown = await service.get(path, listener=0)
    assert (status, shown) == (405, f"GET is not allowed on {path}: use POST\n")
    assert await service.post(f"{path}/x", b"{}") == (404, f"no such path: {path}/x\n")
    assert await service.post(path, b"{}", listener=1) == (404, f"no such path: {path}\n")
    assert service.books() == before


async def test_simulate_without_body(service: Served) -> None:
    assert await service.post("/simulate", b"", listener=1) == (400, "Please send a request body")
    assert (await service.post("/simulate", b"{}"))[0] == 404  # kube-scheduler's port does not offer it


async def test_a_body_of_the_limit_is_read(service: Served) -> None:
    body = orjson.dumps(filter_args(pod(), "n1")).ljust(BODY_LIMIT_BYTES)
    assert await service.post("/filter", body) == (200, {**NOTHING, "NodeNames": ["n1"]})


BINDS = {
    "no JSON": (b"{", "cannot decode the request: "),
    "too large": (b" " * (BODY_LIMIT_BYTES + 1), "request body too large: "),
    "a list": (b"[]", "cannot decode the request: expected a JSON object, got list"),
    "no name": (
        b'{"PodNamespace":"ns"}',
        "binding args: PodName must be a text that is not empty, got None",
    ),
    "an empty node": (
        orjson.dumps(bind_args(pod(), "")),
        "binding args: Node must be a text that is not empty, got ''",
    ),
    "a number": (
        b'{"PodNamespace":5}',
        "binding args: PodNamespace must be a text that is not empty, got 5",
    ),
    "no such pod": (orjson.dumps(bind_args(pod(name="nobody"), "n1")), 'pod "nobody" not found'),
    "a name that leads elsewhere": (orjson.dumps(bind_args(pod(name="a/../b"), "n1")), 'pod "a/../b" not found'),
}


@pytest.mark.parametrize(("sent", "text"), BINDS.values(), ids=BINDS)
async def test_wrong_input_to_bind(service: Served, sent: bytes, text: str) -> None:
    before = service.books()
    status, answer = await service.post("/bind", sent)
    assert (status, list(answer)) == (200, ["Error"])
    assert answer["Error"].startswith(text)
    assert service.books() == before


async def test_bind(service: Served) -> None:
    service.put_pod(pod())
    await service.post("/filter", filter_args(pod(), "n1"))
    asked = {key.lower(): value for key, value in bind_args(pod(), "n1").items()}
    assert await service.post("/bind", asked) == (200, {"Error": ""})
    assert service.api.pods["default", "a"]["spec"]["nodeName"] == "n1"
    assert await service.post("/bind", asked) == (200, {"Error": ""})
    assert "Successfully binding node [n1] to default/a" in await service.said(2)


async def test_bind_to_a_node_that_is_gone(service: Served) -> None:
    service.put_pod(pod())
    await service.post("/filter", filter_args(pod(), "n1"))
    assert await service.post("/bind", bind_args(pod(), "n7")) == (200, {"Error": 'node "n7" not found'})
    assert service.ledger.reservation("uid-a") is None
    assert (await service.said(2))[1] == "failed to get node n7"


async def test_bind_that_the_api_server_refuses(service: Served) -> None:
    service.put_pod(pod())
    await service.post("/filter", filter_args(pod(), "n1"))
    service.api.meets("bind", Forbidden(403, "Forbidden", "no"))
    assert await service.post("/bind", bind_args(pod(), "n1")) == (200, {"Error": "no (403 Forbidden)"})
    assert service.ledger.reservation("uid-a") is None


async def test_prioritize(service: Served) -> None:
    await service.post("/filter", filter_args(pod(), "n1"))
    assert await service.post("/prioritize", filter_args(pod(name="b"), "n2", "n1", "n3")) == (
        200,
        [{"Host": "n2", "Score": 0}, {"Host": "n1", "Score": 10}, {"Host": "n3", "Score": 0}],
    )
    assert await service.post("/prioritize", with_nodes(pod(name="b"), [N1])) == (200, [{"Host": "n1", "Score": 0}])
    bad = pod(annotations={"hami.io/device-scoring-weights": "x"})
    status, text = await service.post("/prioritize", filter_args(bad, "n1"))
    assert (status, text.startswith("invalid hami.io/device-scoring-weights")) == (400, True)


async def test_node_choice_scheduler_answers_every_node_that_fits() -> None:
    async with served(N1, N2, node("n4", card("d"), annotations=NO_LOCK), node_choice="scheduler") as service:
        service.put_pod(pod())
        assert await service.post("/filter", filter_args(pod(), "n4", "n3", "n2", "n1")) == (
            200,
            {
                **NOTHING,
                "NodeNames": ["n4", "n1"],
                "FailedNodes": {"n2": "1/1 CardInsufficientMemory"},
                "FailedAndUnresolvableNodes": {"n3": "node unregistered"},
            },
        )
        assert service.ledger.reservation("uid-a") is None
        assert await service.post("/bind", bind_args(pod(), "n4")) == (200, {"Error": ""})
        carried = service.api.pods["default", "a"]["metadata"]["annotations"]
        assert carried["hami.io/vgpu-devices-allocated"] == "d,NVIDIA,1000,0:;"


class TestNotSynced:
    async def test_calls_wait_until_the_books_are_complete(self) -> None:
        feed = Feed("the pods are not listed yet")
        async with served(N1, feed=feed) as service:
            task = asyncio.create_task(service.post("/filter", filter_args(pod(), "n1")))
            await feed.waiting.wait()
            assert not task.done()
            assert await service.get("/readyz") == (503, "the pods are not listed yet\n")
            feed.complete()
            assert await task == (200, {**NOTHING, "NodeNames": ["n1"]})
            assert await service.get("/readyz") == (200, "")

    async def test_and_say_why_when_that_takes_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scheduler.handlers.SYNC_WAIT_S", 0.01)
        async with served(N1, feed=Feed("the pod watch is behind")) as service:
            before = service.books()
            text = "the books are not complete yet: the pod watch is behind"
            assert await service.post("/filter", filter_args(pod(), "n1")) == (200, {**NOTHING, "Error": text})
            assert await service.post("/bind", bind_args(pod(), "n1")) == (200, {"Error": text})
            assert service.books() == before

    async def test_listed_but_stale_again_by_the_time(self) -> None:
        class Stale(Feed):
            async def wait_synced(self) -> None:
                return

        async with served(N1, feed=Stale("the watch is stale")) as service:
            _, answer = await service.post("/filter", filter_args(pod(), "n1"))
            assert answer["Error"] == "the books are not complete yet: the watch is stale"


class TestDecisions:
    async def test_of_a_placement(self, service: Served) -> None:
        await service.post("/filter", filter_args(pod(name="p"), "n1"))
        await service.post("/filter", filter_args(pod(annotations={"hami.io/gpu-scheduler-policy": "x"}), "n1", "n2"))
        await service.said(3)  # the rest has been evaluated for the Event
        status, shown = await service.get("/decisions/default/a")
        assert status == 200
        when = shown.pop("time")
        assert when > 1_700_000_000
        assert shown == {
            "namespace": "default",
            "pod": "a",
            "uid": "uid-a",
            "node": "n1",
            "offered": 2,
            "evaluated": 2,
            "cardPolicy": "x",
            "nodePolicy": "binpack",
            "containers": [
                {
                    "name": "main",
                    "role": "app",
                    "requests": [{"vendor": "NVIDIA", "count": 1, "memoryMiB": 1000, "percentage": None, "cores": 0}],
                    "cards": [{"uuid": "a", "vendor": "NVIDIA", "memoryMiB": 1000, "cores": 0}],
                }
            ],
            "cards": [
                {
                    "node": "n1",
                    "uuid": "a",
                    "score": 1.651042,
                    "place": 0,
                    "usedSlots": 1,
                    "usedMemoryMiB": 1000,
                    "usedCores": 0,
                    "memoryMiB": 15360,
                    "healthy": True,
                    "cordoned": False,
                }
            ],
            "fitting": {"n1": pytest.approx(1.651042)},
            "failed": [
                {
                    "node": "n2",
                    "reasons": "1/1 CardInsufficientMemory",
                    "unresolvable": False,
                    "container": "main",
                    "cards": [{"uuid": "b", "refused": "CardInsufficientMemory"}],
                }
            ],
            "failedNotShown": 0,
            "warnings": ['unknown card policy word "x" acts as spread'],
        }

    async def test_of_a_refusal(self, service: Served) -> None:
        await service.post("/filter", filter_args(pod(), "n2", "n3"))
        status, shown = await service.get("/decisions/default/a")
        assert (status, shown["node"], shown["cards"], shown["containers"][0]["cards"]) == (200, None, [], [])
        assert shown["failed"][1] == {"node": "n3", "reasons": "node unregistered", "unresolvable": True}

    async def test_of_nobody(self, service: Served) -> None:
        status, shown = await service.get("/decisions/default/nobody")
        assert (status, shown["error"].split(":")[0]) == (404, "no decision is kept for pod default/nobody")

    async def test_only_the_newest_are_kept(self) -> None:
        async with served(N1, decisions_kept=1) as service:
            for name in ("p1", "p2"):
                await service.post("/filter", filter_args(pod(name=name), "n1"))
            assert (await service.get("/decisions/default/p1"))[0] == 404
            assert (await service.get("/decisions/default/p2"))[0] == 200


async def test_metrics_and_one_log_line_a_request(service: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scheduler.access")
    service.put_pod(pod())
    for args in (
        filter_args(pod(), "n1"),
        filter_args(pod(name="b"), "n2", "n3"),
        filter_args(pod(container_document()), "n1", "n2"),
        filter_args(pod(container_document(gpu=1, gpumem="x")), "n1"),
        b"{",
    ):
        await service.post("/filter", args)
    await service.post("/filter", filter_args(pod(), "n1"))
    await service.post("/bind", bind_args(pod(), "n1"))
    await service.post("/bind", bind_args(pod(name="nobody"), "n1"))
    await service.post("/prioritize", filter_args(pod(), "n1"))
    lines = [r.getMessage().split("ms ")[1] for r in caplog.records if r.name == "scheduler.access"]
    assert lines[:4] == [
        "default/a fit n1",
        "default/b nofit 1 nodes 1/1 CardInsufficientMemory; 1 nodes node unregistered",
        "default/a plain 2 nodes",
        "default/a malformed: invalid nvidia.com/gpumem value x in container main: must be an integer between 0 and 2147483647",
    ]
    assert lines[4].startswith("cannot decode the request: ")
    assert lines[5:] == [
        "default/a fit n1",
        "default/a n1 bound",
        'default/nobody n1 podnotfound pod "nobody" not found',
        "default/a 1 nodes",
    ]
    status, page = await service.get("/metrics")
    assert status == 200
    for line in (
        'slotwise_filter_seconds_count{outcome="fit"} 2.0',
        'slotwise_filter_seconds_count{outcome="nofit"} 1.0',
        'slotwise_filter_seconds_count{outcome="plain"} 1.0',
        'slotwise_filter_seconds_count{outcome="malformed"} 2.0',
        'slotwise_bind_seconds_count{outcome="bound"} 1.0',
        'slotwise_bind_seconds_count{outcome="podnotfound"} 1.0',
        'slotwise_card_refusals_total{reason="CardInsufficientMemory"} 1.0',
        'hami_gpu_shared_count{device_index="0",device_type="NVIDIA-Tesla T4",device_uuid="a",node="n1",zone="vGPU"} 1.0',
        'slotwise_http_requests_total{code="200",route="/filter"} 6.0',
    ):
        assert line in page
    assert "GPUDeviceMemoryLimit" not in page


async def test_legacy_metrics_are_shown_when_asked_for() -> None:
    async with served(N1, legacy_metrics=True) as service:
        _, page = await service.get("/metrics")
        assert 'GPUDeviceMemoryLimit{deviceidx="0",devicetype="NVIDIA-Tesla T4",deviceuuid="a",nodeid="n1"' in page


async def test_health_and_readiness(service: Served) -> None:
    assert await service.get("/healthz") == (200, "")
    assert await service.get("/readyz") == (200, "")
    service.service.drain.begin()
    assert await service.get("/readyz") == (503, "shutting down\n")
    assert await service.get("/healthz") == (200, "")


async def test_quota_refusals_give_the_numbers(service: Served) -> None:
    service.ledger.put_quota(quota(gpumem=1500))
    await service.post("/filter", filter_args(pod(), "n1"))
    await service.post("/filter", filter_args(pod(name="b"), "n1"))
    assert (await service.said(4))[1:] == [
        "1 nodes ResourceQuotaNotFit(n1)",
        "no available node, 1 nodes do not meet",
        "exceeding resource quota: default/q limits.nvidia.com/gpumem: asked 1000, used 1000, limit 1500 (500 too many)",
    ]


async def test_filter_and_prioritize_are_answered_where_they_arrive_once_the_books_are_complete() -> None:
    feed, at_once = Feed("the pods are not listed yet"), list[int]()
    async with served(N1, feed=feed) as extender:
        extender.service.listeners()[0].app[QUICK].followers.append(lambda: at_once.append(1))
        args = filter_args(pod(), "n1")
        assert await extender.post("/prioritize", args) == (200, [{"Host": "n1", "Score": 0}])
        feed.waiting.clear()  # the service itself has waited, too
        waiting = asyncio.create_task(extender.post("/filter", args))
        await feed.waiting.wait()
        assert len(at_once) == 1
        feed.complete()
        first = await waiting
        assert len(at_once) == 1
        assert await extender.post("/filter", args) == first
        assert len(at_once) == 2
