"""One array of bytes that holds all memory: global, parameters, each block's shared memory, each thread's own.

An address outside the memory that a kernel was given is an error, as on a device; so is one that is no multiple of the
access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from moeparity.ptx.formats import Array
from moeparity.ptx.syntax import PtxError

WINDOWS = {"global": 0, "const": 0, "shared": 1 << 44, "local": 1 << 45, "param": 1 << 46}
"""Space -> what a generic address of it lies above an address in it."""
FIRST = 1 << 32
"""The lowest global address, so that no small number is one."""
_GAP = 256
"""Bytes between buffers, at least: an index that runs over meets nothing."""
_SPACES = ("shared", "local", "param")
MATE = 24
"""Bits of a shared address below the block it is of: 0 for a thread's own, n + 1 for block n of its cluster."""


def zeros(size: int) -> npt.NDArray[np.uint8]:
    """So many bytes. Raises PtxError where this machine has not so many."""
    try:
        return np.zeros(size, np.uint8)
    except (MemoryError, ValueError):
        raise PtxError(f"{size:,} bytes of memory are declared, which is more than there is here.") from None


def inside(addresses: Array, space: str) -> Array:
    """Whether generic addresses lie in a space."""
    if space in {"global", "const"}:
        return addresses < np.uint64(WINDOWS["shared"])
    low = WINDOWS[space]
    return (addresses >= np.uint64(low)) & (addresses < np.uint64(2 * low))


class Lanes(Protocol):
    """The threads that access memory, as `machine.Lanes` has them."""

    @property
    def index(self) -> Array:
        """Their numbers."""

    @property
    def block(self) -> Array:
        """Which of the resident blocks each is of."""

    @property
    def rank(self) -> Array:
        """Which of the ranks each is of."""

    def mate(self, number: Array) -> Array:
        """Of the resident blocks each one's own where `number` is 0, or block `number` - 1 of its cluster; -1: none."""

    def some(self, chosen: Array) -> Lanes:
        """Those at some positions."""

    def name_of(self, at: int) -> str:
        """One of them as an error names it."""


class Buffers:
    """Arrays placed in global memory; an array placed twice has one place."""

    def __init__(self) -> None:
        self._arrays: list[npt.NDArray[np.uint8]] = []
        self._bases: list[int] = []
        self._by_pointer: dict[tuple[int, int], int] = {}
        self._end = FIRST

    def place(self, octets: npt.NDArray[np.uint8]) -> int:
        """The address of an array of bytes, which a launch reads and writes back. Raises PtxError where two overlap."""
        key = (octets.ctypes.data, octets.size)
        if key not in self._by_pointer:
            begin, end = key[0], key[0] + key[1]
            if any(begin < first + size and first < end for first, size in self._by_pointer):
                raise PtxError("Two arguments share a part of their memory: give both as the same array, or as copies.")
            self._by_pointer[key] = self._end
            self._arrays.append(octets)
            self._bases.append(self._end)
            self._end += -(-octets.size // _GAP) * _GAP + _GAP
        return self._by_pointer[key]

    @property
    def size(self) -> int:
        """Bytes of global memory."""
        return self._end - FIRST

    def limits(self) -> tuple[Array, Array]:
        """First and last-but-one address of each buffer, ascending."""
        bases = np.array(self._bases, dtype=np.int64)
        return bases, bases + np.array([array.size for array in self._arrays], dtype=np.int64)

    def copy_to(self, memory: npt.NDArray[np.uint8]) -> None:
        """What the arrays hold, into memory."""
        for base, array in zip(self._bases, self._arrays, strict=True):
            memory[base - FIRST : base - FIRST + array.size] = array

    def copy_from(self, memory: npt.NDArray[np.uint8]) -> None:
        """What memory holds, into the arrays."""
        for base, array in zip(self._bases, self._arrays, strict=True):
            array[:] = memory[base - FIRST : base - FIRST + array.size]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of shared memory a block has, of local memory a thread, of parameters."""

    shared: int
    local: int
    param: int


class Memory:
    """All bytes of a launch; `blocks` blocks of `lanes` threads are resident at once. Each rank has its parameters."""

    def __init__(self, buffers: Buffers, sizes: Sizes, *, blocks: int, lanes: int, parameters: Sequence[bytes]) -> None:
        self._bases, self._ends = buffers.limits()
        self._sizes = {"shared": sizes.shared, "local": sizes.local, "param": sizes.param}
        self._stride = {space: -(-size // 16) * 16 for space, size in self._sizes.items()}
        self._start = {"shared": buffers.size}
        self._start["local"] = self._start["shared"] + blocks * self._stride["shared"]
        self._start["param"] = self._start["local"] + blocks * lanes * self._stride["local"]
        self.octets = zeros(self._start["param"] + len(parameters) * self._stride["param"])
        for rank, parameter in enumerate(parameters):
            start = self._start["param"] + rank * self._stride["param"]
            self.octets[start : start + len(parameter)] = np.frombuffer(parameter, np.uint8)
        buffers.copy_to(self.octets)

    def forget_blocks(self) -> None:
        """Zeros shared and local memory, for the next blocks."""
        self.octets[self._start["shared"] : self._start["param"]] = 0

    def positions(self, space: str, addresses: Array, lanes: Lanes, size: int) -> Array:
        """Where in `octets` accesses of `size` bytes go. Raises PtxError."""
        signed = addresses.view(np.int64)
        if (signed & (size - 1)).any():
            raise self._error(f"is not a multiple of {size}", space, addresses, signed & (size - 1) != 0, lanes)
        if space:
            return self._within(space, signed, addresses, lanes, size)
        for each in _SPACES:
            if inside(addresses, each).all():
                return self._within(each, signed - WINDOWS[each], addresses, lanes, size)
        if inside(addresses, "global").all():
            return self._within("global", signed, addresses, lanes, size)
        return self._mixed(np.broadcast_to(addresses, lanes.index.shape), lanes, size)

    def _mixed(self, addresses: Array, lanes: Lanes, size: int) -> Array:
        positions = np.zeros(addresses.shape, np.int64)
        for space in ("global", *_SPACES):
            chosen = np.flatnonzero(inside(addresses, space))
            if chosen.size:
                part = addresses[chosen].view(np.int64) - WINDOWS[space]
                positions[chosen] = self._within(space, part, addresses[chosen], lanes.some(chosen), size)
        return positions

    def _within(self, space: str, offsets: Array, addresses: Array, lanes: Lanes, size: int) -> Array:
        if space in {"global", "const"}:
            buffer = np.searchsorted(self._bases, offsets, side="right") - 1
            end = self._ends[buffer] if self._ends.size else np.zeros(1, np.int64)
            outside = (buffer < 0) | (offsets + size > end)
            self._refuse(outside, space, addresses, lanes, size)
            return offsets - FIRST
        owner, offsets = self._owner(space, offsets, lanes)
        self._refuse((owner < 0) | (offsets < 0) | (offsets + size > self._sizes[space]), space, addresses, lanes, size)
        return self._start[space] + owner * self._stride[space] + offsets

    @staticmethod
    def _owner(space: str, offsets: Array, lanes: Lanes) -> tuple[Array, Array]:
        """Whose part of a space is meant: a block's, a thread's, a rank's; and where in that part."""
        if space == "local":
            return lanes.index, offsets
        if space == "param":
            return lanes.rank, offsets
        number = offsets >> MATE
        return (lanes.mate(number), offsets & ((1 << MATE) - 1)) if number.any() else (lanes.block, offsets)

    def _refuse(self, outside: Array, space: str, addresses: Array, lanes: Lanes, size: int) -> None:
        if outside.any():
            raise self._error(
                f"with the {size - 1} bytes behind it is outside of what there is", space, addresses, outside, lanes
            )

    @staticmethod
    def _error(problem: str, space: str, addresses: Array, wrong: Array, lanes: Lanes) -> PtxError:
        at = int(np.flatnonzero(np.broadcast_to(wrong, lanes.index.shape))[0])
        address = int(np.broadcast_to(addresses, lanes.index.shape)[at])
        return PtxError(f"{lanes.name_of(at)}: the {space or 'generic'} address {address:#x} {problem}.")


def view(memory: npt.NDArray[np.uint8], dtype: np.dtype[Any]) -> Array:
    """All of memory as numbers of one dtype, for positions that are multiples of it."""
    return memory[: memory.size // dtype.itemsize * dtype.itemsize].view(dtype)
