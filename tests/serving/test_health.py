"""`/readyz` tells what is true now."""

from aiohttp import ClientSession

from serving.drain import Drain
from serving.health import add_health
from tests.serving.running import Plain, running


async def test_readiness_is_asked_anew_each_time() -> None:
    plain, drain = Plain(), Drain()
    reasons = ["pod watch is stale\n(12 s)", "no Lease"]
    add_health(plain.app, lambda: reasons, drain)
    async with running([plain.listener()], drain=drain) as server, ClientSession() as client:

        async def asked(path: str) -> tuple[int, str]:
            async with client.get(server.url(path)) as answer:
                return answer.status, await answer.text()

        assert await asked("/readyz") == (503, "pod watch is stale (12 s)\nno Lease\n")
        del reasons[0]
        assert await asked("/readyz") == (503, "no Lease\n")
        reasons.clear()
        assert await asked("/readyz") == (200, "")
        reasons.append("no Lease")
        assert await asked("/healthz") == (200, "")
        drain.begin()
        assert await asked("/readyz") == (503, "shutting down\nno Lease\n")
        assert await asked("/healthz") == (200, "")


async def test_a_readiness_that_cannot_be_told_is_not_ready() -> None:
    plain = Plain()

    def broken() -> list[str]:
        raise RuntimeError("who knows")

    add_health(plain.app, broken, Drain())
    async with running([plain.listener()]) as server, ClientSession() as client:
        assert (await client.get(server.url("/readyz"))).status == 500
