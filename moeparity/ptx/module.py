"""`load(text).launch(kernel, grid, block, args)`: a PTX kernel run on arrays, as a device would run it, here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import moeparity.ptx.instructions  # noqa: F401 (fills the table of instructions)
from moeparity.errors import did_you_mean, listed
from moeparity.ptx.addresses import Globals, Layout, layout_of
from moeparity.ptx.approximate import APPROXIMATIONS, TAKEN_TO_ROUND
from moeparity.ptx.contraction import contracted, contractible
from moeparity.ptx.formats import REGISTERS, Array, dtype_of
from moeparity.ptx.launch_arguments import Argument, parameter_bytes
from moeparity.ptx.parser import kernel_of, read
from moeparity.ptx.program import program_of
from moeparity.ptx.spaces import Buffers, Memory, Sizes
from moeparity.ptx.special import Shape, by_cluster
from moeparity.ptx.syntax import Kernel, PtxError, Variable
from moeparity.ptx.threads import Machine, Segment

Extent = int | Sequence[int]

_RESIDENT = 1 << 16
"""Threads in flight at once; more where one block has more."""
_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a launch was: how many instructions all threads ran together, and the approximate ones that were taken to be
    correctly rounded, since it is not known what a GPU computes.

    contractible: how many products and sums the assembler may join to one fma, whatever was done here (`contraction`).
    """

    instructions: int
    assumed: tuple[str, ...]
    contractible: int


def load(
    text: str, *, approximations: Mapping[str, Callable[..., Array]] | None = None, contract: bool = True
) -> Module:
    """A module from the text of a PTX file.

    approximations: functions to use for approximate instructions in place of `approximate.APPROXIMATIONS`, by the
    instruction's name without `.ftz`. They take and give arrays: fp32 as numbers, 16-bit floats as bits. contract:
    products and sums without explicit rounding are one fma if ptxas makes them one (`contraction`); if False none is,
    as with ptxas's `--fmad=false`. Raises PtxError.
    """
    return Module(text, approximations or {}, contract=contract)


class Module:
    """A PTX file. A kernel is read, and its instructions looked up, when it is first launched."""

    def __init__(self, text: str, approximations: Mapping[str, Callable[..., Array]], *, contract: bool) -> None:
        self.text = text
        """The file as it was given."""
        self._source = read(text)
        self._contract = contract
        by_table = {name: f for name, f in APPROXIMATIONS.items() if name.replace(".ftz", "") not in approximations}
        self._approximations = {**by_table, **approximations}
        self._assumed = TAKEN_TO_ROUND - {*approximations}
        self._globals = Globals(self._source.variables)
        self._kernels: dict[str, Kernel] = {}
        self._layouts: dict[str, Layout] = {}
        self._contractible: dict[str, tuple[tuple[int, int], ...]] = {}
        self._programs: dict[tuple[str, bool], tuple[Segment, ...]] = {}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, as they are mangled."""
        return tuple(self._source.kernels)

    @property
    def target(self) -> str:
        """The architecture it was compiled for, such as `sm_90`."""
        return self._source.target

    @property
    def compiler(self) -> str:
        """Who made it, with the version, as the comments at its top say: `CUDA 13.5.37`."""
        return self._source.compiler

    def full_name(self, kernel: str) -> str:
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
        return self._layout(self.full_name(kernel)).kernel.parameters

    def contractible(self, kernel: str) -> tuple[tuple[int, int], ...]:
        """Lines of each product and sum that the assembler may make one fma (`contraction`)."""
        name = self.full_name(kernel)
        if name not in self._contractible:
            self._contractible[name] = contractible(self._kernel(name))
        return self._contractible[name]

    def fused(self, kernel: str) -> tuple[tuple[int, int], ...]:
        """Lines of each product and sum that are run as one fma."""
        return contracted(self._kernel(self.full_name(kernel))).pairs if self._contract else ()

    def launch(
        self,
        kernel: str,
        grid: Extent,
        block: Extent,
        args: Sequence[Argument],
        *,
        shared: int = 0,
        cluster: Extent = 1,
        seed: int | None = None,
        limit: int = _LIMIT,
    ) -> Run:
        """Run a kernel. When this returns, the arrays among `args` hold what the kernel wrote to them.

        grid: how many blocks; block: how many threads in each; either as one number (x), or as up to three (x, y, z).
        args: one for each parameter of the kernel; tensors and arrays of any dtype, contiguous, on the CPU. shared:
        bytes of dynamic shared memory. cluster: blocks of a cluster. seed: draws the order in which threads go on,
        among all legal orders; without a seed it is always the same one. limit: the number of steps after which a
        kernel is given up. Raises PtxError; an UnknownInstruction among these is raised before anything runs.
        """
        extents = _Extents.of(grid, block, cluster, ranks=1)
        return self._launched(kernel, extents, [args], shared, seed, limit, together=False)

    def launch_ranks(
        self,
        kernel: str,
        grid: Extent,
        block: Extent,
        args: Sequence[Sequence[Argument]],
        *,
        shared: int = 0,
        cluster: Extent = 1,
        seed: int | None = None,
        limit: int = _LIMIT,
    ) -> Run:
        """Runs a kernel on several devices at once, each with arguments of its own, as `launch` does.

        args: those of each rank. An array that is given to several ranks, also within a `Struct`, is one memory to all
        of them. All blocks of all ranks are resident, so that each may wait for what others do. Raises PtxError; also
        if the kernel uses a `.global` variable, of which each device would have its own.
        """
        extents = _Extents.of(grid, block, cluster, ranks=len(args))
        layout = self._layout(self.full_name(kernel))
        if layout.globals_used:
            raise PtxError(f"Ranks would share {listed(layout.globals_used)}, of which every device has its own.")
        return self._launched(kernel, extents, args, shared, seed, limit, together=True)

    def _launched(
        self,
        kernel: str,
        extents: _Extents,
        args: Sequence[Sequence[Argument]],
        shared: int,
        seed: int | None,
        limit: int,
        *,
        together: bool,
    ) -> Run:
        layout = self._layout(self.full_name(kernel))
        program = self._program(layout, interleaved=seed is not None)
        buffers = Buffers()
        self._globals.place(buffers)
        parameters = [parameter_bytes(layout, of_rank, buffers) for of_rank in args]
        sizes = Sizes(shared=layout.shared_bytes + shared, local=layout.local_bytes, param=layout.parameter_bytes)
        rng = None if seed is None else np.random.default_rng(seed)
        with np.errstate(all="ignore"):
            space = _Space(buffers, sizes, parameters)
            instructions, assumed = _run(layout, program, extents, space, rng, limit, together=together)
        assumed = tuple(name for name in assumed if name in self._assumed)
        return Run(instructions=instructions, assumed=assumed, contractible=len(self.contractible(kernel)))

    def _kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            self._kernels[name] = kernel_of(*self._source.kernels[name])
        return self._kernels[name]

    def _layout(self, name: str) -> Layout:
        if name not in self._layouts:
            kernel = self._kernel(name)
            kernel = contracted(kernel).kernel if self._contract else kernel
            self._layouts[name] = layout_of(kernel, self._source.variables, self._globals.addresses)
        return self._layouts[name]

    def _program(self, layout: Layout, *, interleaved: bool) -> tuple[Segment, ...]:
        key = layout.kernel.name, interleaved
        if key not in self._programs:
            self._programs[key] = program_of(layout, self._approximations, self.target, interleaved=interleaved)
        return self._programs[key]


@dataclass(frozen=True, slots=True)
class _Extents:
    """The shape of a launch: blocks, threads of a block, blocks of a cluster, ranks."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    ranks: int

    @classmethod
    def of(cls, grid: Extent, block: Extent, cluster: Extent, ranks: int) -> _Extents:
        """Raises PtxError where these are none, or a cluster does not divide the grid."""
        extents = cls(_extent(grid, "grid"), _extent(block, "block"), _extent(cluster, "cluster"), ranks)
        if any(whole % part for whole, part in zip(extents.grid, extents.cluster, strict=True)):
            raise PtxError(f"A grid of {grid} blocks does not divide into clusters of {cluster}.")
        return extents


@dataclass(frozen=True, slots=True)
class _Space:
    buffers: Buffers
    sizes: Sizes
    parameters: Sequence[bytes]


def _run(
    layout: Layout,
    program: Sequence[Segment],
    extents: _Extents,
    space: _Space,
    rng: np.random.Generator | None,
    limit: int,
    *,
    together: bool,
) -> tuple[int, tuple[str, ...]]:
    """Runs as many clusters at a time as may be resident, one lot after the other, or all together. Gives the number of
    instructions that ran, and the approximate ones.
    """
    clusters = by_cluster(extents.grid, extents.cluster, extents.ranks)
    if rng is not None:
        rng.shuffle(clusters)
    count, mates = clusters.shape

    def shape(resident: Array) -> Shape:
        return Shape(grid=extents.grid, block=extents.block, resident=resident, cluster=extents.cluster)

    threads = shape(clusters[0]).threads
    lot = count if together else min(max(1, _RESIDENT // (threads * mates)), count)
    memory = Memory(space.buffers, space.sizes, blocks=lot * mates, lanes=threads, parameters=space.parameters)
    assumed: set[str] = set()
    instructions = 0
    for first in range(0, count, lot):
        resident = clusters[first : first + lot].reshape(-1)
        machine = Machine(shape(resident), memory, _registers(layout, resident.size * threads), rng)
        if first:
            memory.forget_blocks()
        machine.run(program, limit)
        assumed |= machine.assumed
        instructions += machine.instructions
    space.buffers.copy_from(memory.octets)
    return instructions, tuple(sorted(assumed))


def _registers(layout: Layout, lanes: int) -> list[Array]:
    return [np.zeros(lanes, bool if type_ == "pred" else REGISTERS[dtype_of(type_).itemsize]) for type_ in layout.types]


def _extent(extent: Extent, name: str) -> tuple[int, int, int]:
    sizes = [extent] if isinstance(extent, int) else [int(size) for size in extent]
    sizes += [1] * (3 - len(sizes))
    most = {"block": 1024, "cluster": 16}.get(name, 2**31 - 1)
    if len(sizes) > 3 or min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] > most:
        raise PtxError(f"`{name}` is {extent}; one to three whole numbers with a product of 1 to {most} were expected.")
    return sizes[0], sizes[1], sizes[2]
