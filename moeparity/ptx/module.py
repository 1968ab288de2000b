"""`load(text).launch(kernel, grid, block, args)`: a PTX kernel run on arrays, as a device would run it, here."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import moeparity.ptx.instructions  # noqa: F401 (fills the table of instructions)
from moeparity.errors import did_you_mean, listed
from moeparity.ptx.approximate import APPROXIMATIONS
from moeparity.ptx.contraction import contractible
from moeparity.ptx.formats import REGISTERS, Array, dtype_of
from moeparity.ptx.layout import Globals, Layout, layout_of
from moeparity.ptx.machine import Machine, Segment
from moeparity.ptx.parser import kernel_of, read
from moeparity.ptx.program import program_of
from moeparity.ptx.spaces import Buffers, Memory, Sizes, zeros
from moeparity.ptx.special import Shape
from moeparity.ptx.syntax import PtxError, Variable

Argument = torch.Tensor | npt.NDArray[Any] | int | float | bytes
"""A buffer, which the kernel gets the address of and writes to; a number; or the bytes of a struct."""
Extent = int | Sequence[int]

_RESIDENT = 1 << 16
"""Threads in flight at once; more where one block has more."""
_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a launch was: instructions of all threads together, and the approximate ones, whose results are assumed."""

    instructions: int
    assumed: tuple[str, ...]


def load(text: str, *, approximations: Mapping[str, Callable[..., Array]] | None = None) -> Module:
    """A module from the text of a PTX file.

    approximations: what to take approximate instructions for, by name without `.ftz`, in place of
    `approximate.APPROXIMATIONS`: functions of arrays, fp32 as numbers, 16-bit floats as bits. Raises PtxError.
    """
    return Module(text, {**APPROXIMATIONS, **(approximations or {})})


class Module:
    """A PTX file. A kernel is read, and its instructions looked up, when it is first launched."""

    def __init__(self, text: str, approximations: Mapping[str, Callable[..., Array]]) -> None:
        self._source = read(text)
        self._approximations = approximations
        self._globals = Globals(self._source.variables)
        self._layouts: dict[str, Layout] = {}
        self._programs: dict[tuple[str, bool], tuple[Segment, ...]] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, as they are mangled."""
        return tuple(self._source.kernels)

    @property
    def target(self) -> str:
        """The architecture it was compiled for, such as `sm_90`."""
        return self._source.target

    def named(self, kernel: str) -> str:
        """The full name of the one kernel that is called so, or that has these words in its mangled name."""
        words = kernel.split()
        names = [name for name in self.kernels if name == kernel]
        names = names or [name for name in self.kernels if all(word in name for word in words)]
        if len(names) == 1:
            return names[0]
        if names:
            raise PtxError(f"{len(names)} kernels have {kernel!r} in their names, such as {listed(names[:3])}.")
        raise PtxError(f"No kernel has {kernel!r} in its name.{did_you_mean(kernel, self.kernels)}")

    def parameters(self, kernel: str) -> tuple[Variable, ...]:
        """What a kernel takes, in order."""
        return self._layout(self.named(kernel)).kernel.parameters

    def contractible(self, kernel: str) -> tuple[tuple[int, int], ...]:
        """Lines of each product and sum that the assembler may still make one fma (`contraction`)."""
        return contractible(self._layout(self.named(kernel)).kernel)

    def launch(
        self,
        kernel: str,
        grid: Extent,
        block: Extent,
        args: Sequence[Argument],
        *,
        shared: int = 0,
        seed: int | None = None,
        limit: int = _LIMIT,
    ) -> Run:
        """Runs a kernel; what it writes is in the arrays of `args` when this returns.

        grid, block: blocks, and threads of a block, in x, or in x, y and z. args: one for each parameter; tensors and
        arrays of any dtype, contiguous, on the CPU. shared: bytes of dynamic shared memory. seed: draws the order in
        which threads go on, among all that are legal; without one it is always the same. limit: steps after which a
        kernel is given up. Raises PtxError, of which UnknownInstruction comes before anything is run.
        """
        layout = self._layout(self.named(kernel))
        program = self._program(layout, interleaved=seed is not None)
        buffers = Buffers()
        self._globals.place(buffers)
        parameters = _parameters(layout, args, buffers)
        extents = _extent(grid, "grid"), _extent(block, "block")
        sizes = Sizes(shared=layout.shared_bytes + shared, local=layout.local_bytes, param=layout.parameter_bytes)
        rng = None if seed is None else np.random.default_rng(seed)
        with np.errstate(all="ignore"):
            return _run(layout, program, extents, _Space(buffers, sizes, parameters), rng, limit)

    def _layout(self, name: str) -> Layout:
        if name not in self._layouts:
            kernel = kernel_of(*self._source.kernels[name])
            self._layouts[name] = layout_of(kernel, self._source.variables, self._globals.addresses)
        return self._layouts[name]

    def _program(self, layout: Layout, *, interleaved: bool) -> tuple[Segment, ...]:
        key = layout.kernel.name, interleaved
        if key not in self._programs:
            self._programs[key] = program_of(layout, self._approximations, interleaved=interleaved)
        return self._programs[key]


@dataclass(frozen=True, slots=True)
class _Space:
    buffers: Buffers
    sizes: Sizes
    parameters: bytes


def _run(
    layout: Layout,
    program: Sequence[Segment],
    extents: tuple[tuple[int, int, int], tuple[int, int, int]],
    space: _Space,
    rng: np.random.Generator | None,
    limit: int,
) -> Run:
    """As many blocks at a time as may be resident, one lot after the other."""
    grid, block = extents
    blocks = np.arange(grid[0] * grid[1] * grid[2])
    if rng is not None:
        rng.shuffle(blocks)
    threads = Shape(grid=grid, block=block, resident=blocks).threads
    resident = min(max(1, _RESIDENT // threads), blocks.size)
    memory = Memory(space.buffers, space.sizes, blocks=resident, lanes=threads, parameters=space.parameters)
    assumed: set[str] = set()
    instructions = 0
    for first in range(0, blocks.size, resident):
        shape = Shape(grid=grid, block=block, resident=blocks[first : first + resident])
        machine = Machine(shape, memory, _registers(layout, shape.resident.size * threads), rng)
        if first:
            memory.forget_blocks()
        machine.run(program, limit)
        assumed |= machine.assumed
        instructions += machine.instructions
    space.buffers.copy_from(memory.octets)
    return Run(instructions=instructions, assumed=tuple(sorted(assumed)))


def _registers(layout: Layout, lanes: int) -> list[Array]:
    return [np.zeros(lanes, bool if type_ == "pred" else REGISTERS[dtype_of(type_).itemsize]) for type_ in layout.types]


def _extent(extent: Extent, name: str) -> tuple[int, int, int]:
    sizes = [extent] if isinstance(extent, int) else [int(size) for size in extent]
    sizes += [1] * (3 - len(sizes))
    most = 1024 if name == "block" else 2**31 - 1
    if len(sizes) > 3 or min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] > most:
        raise PtxError(f"`{name}` is {extent}; one to three whole numbers with a product of 1 to {most} were expected.")
    return sizes[0], sizes[1], sizes[2]


def _parameters(layout: Layout, args: Sequence[Argument], buffers: Buffers) -> bytes:
    """The bytes of all parameters."""
    wanted = layout.kernel.parameters
    if len(args) != len(wanted):
        kinds = listed(f".{parameter.type}" for parameter in wanted)
        raise PtxError(f"{len(args)} arguments were given; the kernel takes {len(wanted)}: {kinds}.")
    octets = bytearray(zeros(layout.parameter_bytes))
    for number, (argument, parameter, at) in enumerate(zip(args, wanted, layout.parameters, strict=True)):
        value = _encoded(argument, parameter, number, buffers)
        octets[at : at + len(value)] = value
    return bytes(octets)


def _encoded(argument: Argument, parameter: Variable, number: int, buffers: Buffers) -> bytes:
    kind, size = np.dtype(dtype_of(parameter.type)).kind, parameter.size
    whole = f"Argument {number}: .{parameter.type}"
    if isinstance(argument, bytes):
        if len(argument) != size:
            raise PtxError(f"Argument {number}: {len(argument)} bytes were given for {size}.")
        return argument
    if isinstance(argument, torch.Tensor | np.ndarray):
        if size != 8 or kind == "f":
            raise PtxError(f"{whole} is no address, and an array was given.")
        return struct.pack("<Q", buffers.place(_octets(argument, number)))
    if isinstance(argument, float) and kind == "f":
        return struct.pack("<f" if size == 4 else "<d", argument)
    if isinstance(argument, float):
        raise PtxError(f"{whole} is no float, and {argument} was given.")
    if kind == "f":
        return struct.pack("<f" if size == 4 else "<d", float(argument))
    if not -(1 << 8 * size - 1) <= argument < 1 << 8 * size:
        raise PtxError(f"{whole} does not hold {argument}.")
    return (argument & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _octets(array: torch.Tensor | npt.NDArray[Any], number: int) -> npt.NDArray[np.uint8]:
    """The array's own bytes."""
    if isinstance(array, torch.Tensor):
        if array.device.type != "cpu" or not array.is_contiguous():
            raise PtxError(f"Argument {number}: a contiguous tensor on the CPU was expected.")
        octets: npt.NDArray[np.uint8] = array.detach().reshape(-1).view(torch.uint8).numpy()
        return octets
    if not array.flags.c_contiguous or not array.flags.writeable:
        raise PtxError(f"Argument {number}: a contiguous array that can be written to was expected.")
    return array.reshape(-1).view(np.uint8)
