"""The C allocator, told to keep what is freed: large temporaries come and go at every node."""

from __future__ import annotations

import ctypes
from functools import cache

# Parameter numbers of mallopt(3) in glibc.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 512 << 20
_LARGEST_BLOCK = 32 << 20
"""glibc accepts no more; larger blocks, such as a layer's experts, still go back to the system when freed."""


@cache
def keep_freed_memory() -> bool:
    """Let glibc keep up to 512 MB of freed blocks of up to 32 MB each; True where that could be set.

    Otherwise glibc returns such blocks to the system and every node faults its pages in again,
    more or less of them depending on what the process allocated before. Bits are not affected. Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    trimmed: int = mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mapped: int = mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
    return trimmed == mapped == 1
