"""Watches: where they begin, what they show and how they end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .client import Http
from .webhook import pod


async def revision(http: Http, path: str) -> str:
    version: str = (await http.get(path)).body["metadata"]["resourceVersion"]
    return version


async def test_a_watch_shows_every_change_in_order(http: Http, pods: str) -> None:
    async with http.watch(pods, resourceVersion=await revision(http, pods)) as watch:
        await http.created(pods, pod("a"))
        await http.merge(f"{pods}/a", {"metadata": {"labels": {"x": "y"}}})
        await http.delete(f"{pods}/a")
        # The mark comes before the removal, also of a pod that no node knows.
        assert [kind for kind, _ in await watch.take(4)] == ["ADDED", "MODIFIED", "MODIFIED", "DELETED"]


async def test_a_watch_picks_up_changes_made_before_it_began(http: Http, pods: str) -> None:
    start = await revision(http, pods)
    await http.created(pods, pod("a"))
    await http.created(pods, pod("b"))
    async with http.watch(pods, resourceVersion=start) as watch:
        assert await watch.take(2) == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_watch_does_not_repeat_what_its_version_covers(http: Http, pods: str) -> None:
    first = await http.created(pods, pod("a"))
    await http.created(pods, pod("b"))
    async with http.watch(pods, resourceVersion=first["metadata"]["resourceVersion"]) as watch:
        assert await watch.take(1) == [("ADDED", "b")]


async def test_a_watch_without_version_begins_with_what_exists(http: Http, pods: str) -> None:
    await http.created(pods, pod("b"))
    await http.created(pods, pod("a"))
    for query in ({}, {"resourceVersion": "0"}):
        async with http.watch(pods, **query) as watch:
            assert sorted(await watch.take(2)) == [("ADDED", "a"), ("ADDED", "b")]
            await http.merge(f"{pods}/a", {"metadata": {"labels": {"round": f"r{len(query)}"}}})
            assert await watch.take(1) == [("MODIFIED", "a")]


async def test_events_carry_the_whole_object_with_its_version(http: Http, pods: str) -> None:
    async with http.watch(pods, resourceVersion=await revision(http, pods)) as watch:
        stored = await http.created(pods, pod("a"))
        event = await watch.next()
    assert event["object"] == stored


async def test_a_deletion_carries_a_newer_version(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    async with http.watch(pods, resourceVersion=stored["metadata"]["resourceVersion"]) as watch:
        await http.delete(f"{pods}/a")
        mark, gone = await watch.next(), await watch.next()
    assert (mark["type"], gone["type"]) == ("MODIFIED", "DELETED")
    assert mark["object"]["metadata"]["deletionGracePeriodSeconds"] == 0
    versions = [int(found["metadata"]["resourceVersion"]) for found in (stored, mark["object"], gone["object"])]
    assert versions == sorted(set(versions))


async def test_a_label_selector_turns_changes_into_comings_and_goings(http: Http, pods: str) -> None:
    start = await revision(http, pods)
    await http.created(pods, pod("a"))
    async with http.watch(pods, resourceVersion=start, labelSelector="role=gpu") as watch:
        await http.merge(f"{pods}/a", {"metadata": {"labels": {"role": "gpu"}}})
        await http.merge(f"{pods}/a", {"metadata": {"annotations": {"n": "1"}}})
        await http.merge(f"{pods}/a", {"metadata": {"labels": {"role": "cpu"}}})
        await http.merge(f"{pods}/a", {"metadata": {"labels": {"role": "gpu"}}})
        await http.delete(f"{pods}/a")
        seen = [await watch.next() for _ in range(6)]
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "MODIFIED", "DELETED"]
    assert seen[2]["object"]["metadata"]["labels"] == {"role": "gpu"}


async def test_a_field_selector_on_the_node_sees_a_pod_once_bound(http: Http, pods: str) -> None:
    start = await revision(http, pods)
    await http.created(pods, pod("a"))
    async with (
        http.watch(pods, resourceVersion=start, fieldSelector="spec.nodeName=n1") as on_node,
        http.watch(pods, resourceVersion=start, fieldSelector="spec.nodeName=") as unbound,
    ):
        await http.created(f"{pods}/a/binding", {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}})
        assert await on_node.take(1) == [("ADDED", "a")]
        assert await unbound.take(2) == [("ADDED", "a"), ("DELETED", "a")]


async def test_a_watch_of_one_namespace_leaves_out_the_others(http: Http, pods: str) -> None:
    start = await revision(http, pods)
    other = "/api/v1/namespaces/default/pods"
    name = pods.split("/")[4]
    await http.created(other, pod(name))
    await http.created(pods, pod("mine"))
    await http.delete(f"{other}/{name}")
    async with http.watch(pods, resourceVersion=start) as watch:
        assert await watch.take(1) == [("ADDED", "mine")]


async def test_bookmarks_come_to_those_who_ask(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    start = stored["metadata"]["resourceVersion"]
    query = {"allowWatchBookmarks": "true", "timeoutSeconds": 5, "fieldSelector": "metadata.name=a"}
    async with http.watch(pods, resourceVersion=start, **query) as watch:
        await http.created(pods, pod("b"))  # a real server says nothing while nothing has happened
        event = await watch.next()
    assert event["type"] == "BOOKMARK"
    assert event["object"]["kind"] == "Pod"
    assert int(event["object"]["metadata"]["resourceVersion"]) >= int(start)


async def test_bookmarks_do_not_come_unasked_and_the_timeout_ends_the_watch(http: Http, pods: str) -> None:
    async with http.watch(pods, resourceVersion=await revision(http, pods), timeoutSeconds=1) as watch:
        await http.created(pods, pod("a"))
        assert [event["type"] for event in await watch.rest()] == ["ADDED"]


async def test_initial_events_end_with_a_marked_bookmark(http: Http, pods: str) -> None:
    await http.created(pods, pod("a"))
    async with http.watch(
        pods, sendInitialEvents="true", resourceVersionMatch="NotOlderThan", allowWatchBookmarks="true"
    ) as watch:
        assert await watch.take(1) == [("ADDED", "a")]
        event = await watch.next()
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true"


async def test_a_watch_from_before_the_history_gets_an_error_event(
    http: Http, pods: str, compact: Callable[[str], Awaitable[None]]
) -> None:
    await http.created(pods, pod("a"))
    await compact("pods")
    async with http.watch(pods, resourceVersion="1") as watch:
        event = await watch.next()  # whether the server ends the watch after it is not promised
    assert event["type"] == "ERROR"
    status = event["object"]
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 410, "Expired")
    assert status["message"].startswith("too old resource version: 1 (")


async def test_a_write_that_changes_nothing_is_no_event(http: Http, pods: str) -> None:
    stored = await http.created(pods, pod("a"))
    async with http.watch(pods, resourceVersion=stored["metadata"]["resourceVersion"]) as watch:
        await http.merge(f"{pods}/a", {"metadata": {"name": "a"}})
        await http.created(pods, pod("b"))
        assert await watch.take(1) == [("ADDED", "b")]
