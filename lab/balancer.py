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
    pumps: set[asyncio.Task[None]] = set()
    writers: set[asyncio.StreamWriter] = set()

    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        writers.add(sink)
        try:
            with suppress(OSError):
                while chunk := await source.read(_CHUNK):
                    sink.write(chunk)
                    await sink.drain()
        finally:
            sink.close()
            with suppress(OSError):
                await sink.wait_closed()
            writers.discard(sink)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        turn += 1
        try:
            other_reader, other_writer = await asyncio.open_connection(*_next(targets(), turn))
        except OSError:
            writer.close()
            return
        both = {asyncio.create_task(pass_on(reader, other_writer)), asyncio.create_task(pass_on(other_reader, writer))}
        pumps.update(both)
        for pump in both:
            pump.add_done_callback(pumps.discard)

    server = await asyncio.start_server(serve, host, port)
    try:
        address = server.sockets[0].getsockname()
        yield address[0], address[1]
    finally:
        server.close()
        for pump in list(pumps):
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for writer in list(writers):
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        await server.wait_closed()


def _next(targets: Sequence[tuple[str, int]], turn: int) -> tuple[str, int]:
    if not targets:
        raise ConnectionRefusedError("there is no target")
    return targets[turn % len(targets)]
