"""How the C library gets memory from the kernel: a long-running service should not grow by how large its tables once were."""

import ctypes
from typing import Final

__all__ = ["LARGE_BYTES", "steady_heap"]

LARGE_BYTES: Final = 2**21
"""A block of this size has pages of its own, which go back to the kernel with it. The largest arrays of a decision take half of that at
5,000 nodes."""
_KEPT_BYTES: Final = 4 * 2**20
"""Free memory at the end of the heap that is kept for the next request."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Numbers of glibc's `malloc.h`."""


def steady_heap() -> bool:
    """Set both bounds for good; whether the C library has them, as glibc does.

    By itself glibc takes every size of a freed large block as one to keep in the heap from then on, up to 32 MiB: when a dict of many
    entries is next made anew, the old table leaves a hole there that nothing else fills.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False  # musl gives large blocks back without being told
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
