"""Large blocks and the heap, in a process of its own since the bounds hold for all of it."""

import subprocess
import sys

PROBE = """
import ctypes
from serving.heap import LARGE_BYTES, steady_heap
steady = steady_heap() if {steady} else None
size = 2 * LARGE_BYTES
for _ in range(3):
    block = bytearray(size)
    del block
blocks = [bytearray(size) for _ in range(4)]
heap = next(line for line in open("/proc/self/maps") if "[heap]" in line)
low, high = (int(end, 16) for end in heap.split()[0].split("-"))
print(steady, sum(low <= ctypes.addressof(ctypes.c_char.from_buffer(block)) < high for block in blocks))
"""


def _blocks_in_the_heap(steady: bool) -> str:
    code = PROBE.format(steady=steady)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_large_blocks_never_come_into_the_heap() -> None:
    assert _blocks_in_the_heap(steady=True) == "True 0"
    # Without it they do, once one of them was freed: else this test would show nothing.
    assert _blocks_in_the_heap(steady=False) == "None 4"
