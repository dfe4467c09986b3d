"""Writing a metrics page piece by piece: no step is long, and nothing larger than a few pieces is held besides."""

import asyncio
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

__all__ = ["Block", "Blocks", "packed", "page"]

_PIECE_BYTES = 256 * 1024
_LEVEL = 1
"""Metrics pages repeat themselves: the fastest level packs them to a few percent already."""
_GZIP = 16
_END = b"# EOF\n"
"""Of an OpenMetrics page."""


@dataclass(frozen=True, slots=True)
class Block:
    """One gauge, its lines as text in either format."""

    name: str
    text: str
    pieces: Iterable[bytes]
    """Read once, while the page is written."""
    series: int


Blocks = Callable[[], Awaitable[Sequence[Block]]]
"""Gauges that are not in the registry because they are too many to be made anew for every page."""


@dataclass(frozen=True, slots=True)
class _One:
    """A registry of one metric."""

    metric: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.metric,)


async def page(
    registry: CollectorRegistry, accept: str, names: Collection[str], blocks: Blocks | None
) -> AsyncIterator[bytes]:
    """The page in pieces; `names` limits it to these metrics. The event loop turns between any two metrics and any two pieces."""
    encode, content_type = choose_encoder(accept)
    is_open = content_type.startswith("application/openmetrics-text")
    source = registry.restricted_registry(list(names)) if names else registry
    for metric in source.collect():
        yield encode(_One(metric)).removesuffix(_END if is_open else b"")
        await asyncio.sleep(0)
    for block in await blocks() if blocks is not None else ():
        if names and block.name not in names:
            continue
        yield f"# HELP {block.name} {block.text}\n# TYPE {block.name} gauge\n".encode()
        held: list[bytes] = []
        size = 0
        for piece in block.pieces:
            held.append(piece)
            size += len(piece)
            if size >= _PIECE_BYTES:
                yield b"".join(held)
                await asyncio.sleep(0)
                held, size = [], 0
        if held:
            yield b"".join(held)
            await asyncio.sleep(0)
    if is_open:
        yield _END


async def packed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces as one gzip file, packed on the event loop: what `page` gives in one turn takes about a millisecond."""
    # Not in a thread: on one core it takes turns with the event loop for as long as the kernel likes, 4 ms and more.
    packer = zlib.compressobj(_LEVEL, wbits=zlib.MAX_WBITS + _GZIP)
    async for piece in pieces:
        if found := packer.compress(piece):
            yield found
    yield packer.flush()
