"""Whatever happens between, in whatever order: once the API server is quiet, the consumer holds what it holds."""

import asyncio
import random
from collections.abc import Callable

import pytest
from aiohttp.test_utils import TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devices.kube.client import ClientSettings, KubeClient
from devices.kube.config import explicit_access
from devices.kube.reflector import Reflector, ReflectorSettings
from devices.kube.resources import PODS
from tests.devices.kube.fake_api import FakeApi, answer, hang_up
from tests.devices.kube.holders import Holder, decode

NAMES = "abcd"
SETTLE = "settle"


def _of(api: FakeApi, name: str) -> str | None:
    return next((uid for uid in api.pods if uid.startswith(f"{name}-")), None)


def _put(api: FakeApi, name: str) -> None:
    api.put(name, uid=_of(api, name) or f"{name}-{api.revision}")


def _delete(api: FakeApi, name: str) -> None:
    uid = _of(api, name)
    if uid is not None:
        api.delete(uid)


def _recreate(api: FakeApi, name: str) -> None:
    _delete(api, name)
    _put(api, name)


def _garble(api: FakeApi, name: str) -> None:
    api.put(name, uid=_of(api, name) or f"{name}-{api.revision}", silently=True)
    api.send_line(b'{"type":')


def _repeat(api: FakeApi) -> None:
    if api.history:
        api.send_line(random.Random(api.revision).choice(api.history)[1].rstrip())


STEPS: dict[str, Callable[[FakeApi, str], None]] = {
    "put": _put,
    "put another": _put,
    "delete": _delete,
    "delete and create": _recreate,
    "repeat an event": lambda api, name: _repeat(api),
    "cut": lambda api, name: api.cut(),
    "forget": lambda api, name: api.forget(),
    "410 in the stream": lambda api, name: setattr(api, "gone_in_stream", not api.gone_in_stream),
    "lost reply": lambda api, name: api.script.append(hang_up),
    "server fault": lambda api, name: api.script.append(answer(500, "InternalError")),
    "throttled": lambda api, name: api.script.append(answer(429, "TooManyRequests", headers={"Retry-After": "1"})),
    "gone": lambda api, name: api.script.append(answer(410, "Expired")),
    "garbled change": _garble,
    "bookmark": lambda api, name: api.bookmark(),
}


async def _yields(seconds: float) -> None:
    await asyncio.sleep(0)


async def _follow(steps: list[tuple[str, str, int]]) -> None:
    api, holder = FakeApi(), Holder()
    async with (
        TestServer(api.application(), host="127.0.0.1") as server,
        KubeClient(explicit_access(str(server.make_url("/"))), ClientSettings(user_agent="t"), sleep=_yields) as client,
        asyncio.TaskGroup() as tasks,
    ):
        reflector = Reflector(client, PODS, decode, holder, ReflectorSettings(page_size=2), sleep=_yields)
        running = tasks.create_task(reflector.run())
        for step, name, turns in [*steps, (SETTLE, "", 0)]:
            if step == SETTLE:
                api.script.clear()
                assert await reflector.wait_for_revision(api.put("last"), 10)
                assert holder.versions() == api.server_state()
                continue
            STEPS[step](api, name)
            for _ in range(turns):  # how far the reflector gets between two steps differs from example to example
                await asyncio.sleep(0)
        running.cancel()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from([*sorted(STEPS), SETTLE]), st.sampled_from(NAMES), st.sampled_from([0, 0, 1, 5, 40])),
        max_size=40,
    )
)
def test_consumer_ends_up_with_what_the_server_has(steps: list[tuple[str, str, int]]) -> None:
    asyncio.run(_follow(steps))


@pytest.mark.parametrize("seed", range(8))
def test_long_histories(seed: int) -> None:
    chance = random.Random(seed)
    names = [*sorted(STEPS), SETTLE]
    asyncio.run(
        _follow([(chance.choice(names), chance.choice(NAMES), chance.choice([0, 0, 1, 5, 40])) for _ in range(400)])
    )
