"""One address in front of several replicas, as a Service would be: each new connection goes to the next one, bytes pass untouched."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

__all__ = ["balancer"]

_CHUNK: Final = 64 * 1024


@asynccontextmanager
async def balancer(
    targets: Callable[[], Sequence[tuple[str, int]]], host: str, port: int = 0
) -> AsyncIterator[tuple[str, int]]:
    """Listen on a port of `host`, any free one by default, while inside; yields the address.

    `targets` is asked for every connection. One that refuses ends it, and so does having none.
    """
    turn = 0
    closing = False
    serving: set[asyncio.Task[None] | None] = set()
    writers: set[asyncio.StreamWriter] = set()

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while chunk := await source.read(_CHUNK):
                    sink.write(chunk)
                    await sink.drain()
        finally:
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        turn += 1
        ours = [writer]
        writers.add(writer)
        task = asyncio.current_task()
        serving.add(task)
        try:
            if closing:
                return
            other_reader, other_writer = await asyncio.open_connection(*_next(targets(), turn))
            ours.append(other_writer)
            writers.add(other_writer)
            await asyncio.gather(pass_on(reader, other_writer), pass_on(other_reader, writer))
        except OSError:
            return
        finally:
            for each in ours:
                each.close()
            for each in ours:
                with suppress(OSError):
                    await each.wait_closed()
                writers.discard(each)
            serving.discard(task)

    server = await asyncio.start_server(serve, host, port)
    try:
        address = server.sockets[0].getsockname()
        yield address[0], address[1]
    finally:
        closing = True
        server.close()
        await asyncio.sleep(0)  # connections taken just now begin, and see that there is nothing for them any more
        tasks = [task for task in serving if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in list(writers):
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        await server.wait_closed()


def _next(targets: Sequence[tuple[str, int]], turn: int) -> tuple[str, int]:
    if not targets:
        raise ConnectionRefusedError("there is no target")
    return targets[turn % len(targets)]
