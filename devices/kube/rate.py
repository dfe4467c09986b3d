"""The client's own rate limit: a token bucket as behind `--kube-qps` and `--kube-burst`."""

from collections.abc import Awaitable, Callable

__all__ = ["TokenBucket"]


class TokenBucket:
    """At most `burst` requests at once and `per_second` in the long run, in order of arrival.

    `per_second` ≤ 0 switches the limit off. Tokens may be owed: every caller takes its token at once and sleeps until
    that token exists, so nobody overtakes and no queue is kept.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._per_second = per_second
        self._burst = max(1, burst)
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(self._burst)
        self._filled_at = clock()

    async def take(self, longest_s: float) -> bool:
        """Wait for a token; False, at once and without taking one, if that would last longer than `longest_s` seconds.

        A caller cancelled while it waits gives its token back.
        """
        if self._per_second <= 0:
            return True
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        # Example: 5 a second, 0.5 tokens left. The next token is whole after (1 - 0.5) / 5 = 0.1 s.
        wait_s = (1.0 - self._tokens) / self._per_second
        if wait_s <= 0:
            self._tokens -= 1.0
            return True
        if wait_s > longest_s:
            return False
        self._tokens -= 1.0
        try:
            await self._sleep(wait_s)
        except BaseException:
            self._tokens += 1.0
            raise
        return True
