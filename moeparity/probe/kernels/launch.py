"""A compiled kernel with the file that describes it: launched on tensors by name, as PTX; and what its results rest
on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from moeparity import ptx
from moeparity.documents.checked import read
from moeparity.errors import MoeparityError, SpecError, Where, did_you_mean, display_path, listed
from moeparity.numerics.bits import int_view
from moeparity.numerics.dtypes import torch_dtype
from moeparity.plan.spec.kernel import Argument, KernelFile
from moeparity.probe.kernels.compile import compiled, text_of
from moeparity.probe.kernels.expressions import value, whole
from moeparity.probe.kernels.layouts import LAYOUTS, Layout
from moeparity.ptx.launch_arguments import Argument as Buffer

ENDINGS = (".yaml", ".yml")
SEEDS = (1, 2, 3)
"""Interleavings of threads that are tried besides the usual one."""
_SHOWN = 4
Tensors = Mapping[str, torch.Tensor]


@dataclass(slots=True)
class Kernel:
    """A kernel of a PTX module, with the file that says how it is launched.

    assumed: approximate instructions that launches have used. shapes: grids and blocks of the launches so far.
    """

    path: Path
    file: KernelFile
    module: ptx.Module
    assumed: set[str] = field(default_factory=set)
    shapes: dict[str, None] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        """The tensors that it takes and gives."""
        return LAYOUTS[self.file.computes]

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors it reads."""
        return tuple(a.input for a in self.file.arguments if a.input is not None)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors it writes."""
        return tuple(a.output for a in self.file.arguments if a.output is not None)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its tensors, unless an argument states another."""
        return torch_dtype(self.file.dtype)

    @property
    def contractible(self) -> int:
        """How many products the assembler may still fuse into additions."""
        return len(self.module.contractible(self.file.kernel))

    @property
    def input_dtypes(self) -> dict[str, torch.dtype]:
        """The dtypes of the tensors it reads."""
        return {a.input: self.dtype_of(a, a.input) for a in self.file.arguments if a.input is not None}

    @property
    def evidence(self) -> str:
        """Which compiler made it, for what and how, and on what its runs so far rest."""
        compiled_by = " ".join((self.module.compiler, f"for {self.module.target}", *self.file.flags))
        assumed = f"assumed {', '.join(sorted(self.assumed))}" if self.assumed else "nothing assumed"
        fused = f"; ptxas may fuse {self.contractible} products into sums" if self.contractible else ""
        return f"PTX by {compiled_by}; {assumed}{fused}"

    @property
    def rests_on(self) -> tuple[str, ...]:
        """On what its runs so far rest, in lines."""
        shapes, more = list(self.shapes)[:_SHOWN], len(self.shapes) - _SHOWN
        launched = "; ".join([*shapes, *[f"{more} more"] * (more > 0)])
        return self.evidence, f"{self.module.full_name(self.file.kernel)}, launched with {launched}"

    def dtype_of(self, argument: Argument, name: str) -> torch.dtype:
        """The dtype of one of its tensors."""
        dtype_name = argument.dtype or self.layout.dtypes.get(name, self.file.dtype)
        return getattr(torch, dtype_name) if dtype_name.startswith("int") else torch_dtype(dtype_name)

    def __call__(
        self, tensors: Tensors, sizes: Mapping[str, float], seed: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Launch it on copies of `tensors`; returns what it wrote, by name. seed: takes another interleaving of its
        threads.

        sizes: numbers that expressions may name, including scalars such as eps. Raises SpecError for a file that does
        not fit the kernel, and MoeparityError for a kernel that can't be run, or that does what no kernel may do.
        """
        names = self._all_sizes(sizes)
        written: dict[str, torch.Tensor] = {}
        args = [self._argument(a, tensors, names, written) for a in self.file.arguments]
        grid, block = self._extents("grid", names), self._extents("block", names)
        shared = whole(self.file.shared, names, self._where("shared"))
        try:
            run = self.module.launch(self.file.kernel, grid, block, args, shared=shared, seed=seed)
        except ptx.PtxError as error:
            launched = f"{self.file.kernel}, grid {_listed(grid)}, block {_listed(block)}"
            raise MoeparityError(f"{Where(self.path)}: {launched}: {error}") from None
        self.assumed |= {*run.assumed}
        self.shapes[f"grid {_listed(grid)}, block {_listed(block)}"] = None
        return written

    def reads(self, scalar: str) -> bool:
        """Whether a number of that name is used in one of its arguments."""
        return any(scalar in re.findall(r"[a-z_]\w*", str(a.scalar)) for a in self.file.arguments)

    def threads(self, sizes: Mapping[str, float]) -> int:
        """The number of threads of a block in a launch."""
        return math.prod(self._extents("block", self._all_sizes(sizes)))

    def race(self, tensors: Tensors, sizes: Mapping[str, float]) -> str:
        """The outputs whose bits depend on which threads go first, in words; "" if none do in the interleavings
        tried.
        """
        usual = self(tensors, sizes)
        for seed in SEEDS:
            for name, out in self(tensors, sizes, seed).items():
                differ = (int_view(usual[name]) != int_view(out)).reshape(-1)
                if differ.any():
                    place = int(differ.int().argmax())
                    return (
                        f"{name} depends on which threads go first (seed {seed}: {int(differ.sum())} of "
                        f"{differ.numel()} numbers, the first at {place}): a race, or additions by atomics"
                    )
        return ""

    def _all_sizes(self, sizes: Mapping[str, float]) -> dict[str, float]:
        """The given sizes and, computed from them, the file's own."""
        names = dict(sizes)
        for name, text in self.file.sizes.items():
            names[name] = value(text, names, self._where("sizes"))
        return names

    def _extents(self, key: str, names: Mapping[str, float]) -> list[int]:
        extent = self.file.grid if key == "grid" else self.file.block
        return [
            whole(size, names, self._where(key), least=1) for size in (extent if isinstance(extent, list) else [extent])
        ]

    def _argument(
        self, argument: Argument, tensors: Tensors, names: Mapping[str, float], written: dict[str, torch.Tensor]
    ) -> Buffer:
        where = Where(self.path, argument.line or None)
        if argument.scalar is not None:
            return value(argument.scalar, names, where)
        if argument.scratch is not None:
            shape = [whole(extent, names, where, least=1) for extent in argument.scratch]
            return torch.zeros(shape, dtype=self.dtype_of(argument, ""))
        name = argument.input or argument.output or ""
        dtype = self.dtype_of(argument, name)
        if argument.input is not None:
            buffer = tensors[argument.input].to(dtype).contiguous().clone()
        else:
            shape = [whole(extent, names, where, least=1) for extent in self.layout.outputs[name]]
            buffer = torch.zeros(shape, dtype=dtype)
        if argument.output is not None:
            written[argument.output] = buffer
        return buffer

    def _where(self, key: str) -> Where:
        return Where(self.path, self.file.line_of(key))


def is_kernel_file(target: str) -> bool:
    """Whether a target names a kernel file rather than a function."""
    return target.endswith(ENDINGS)


def open_kernel(path: Path) -> Kernel:
    """The kernel that a file describes, compiled if the file names a source. Raises MoeparityError."""
    file = read(path, KernelFile)
    name = file.cuda or file.ptx or ""
    where = Where(path, file.line_of("cuda" if file.cuda else "ptx"))
    source = path.parent / name
    if file.cuda is not None and not source.is_file():
        raise SpecError(f"{where}: {display_path(source)} is no file. A relative path starts at this file's folder.")
    text = compiled(source, file.flags, file.architecture, where) if file.cuda else text_of(source, where)
    try:
        module = ptx.load(text)
        kernel = Kernel(path=path, file=file, module=module)
        parameters = module.parameters(file.kernel)
    except ptx.PtxError as error:
        raise SpecError(f"{Where(path, file.line_of('kernel'))}: {display_path(source)}: {error}") from None
    _check(kernel, len(parameters))
    return kernel


def _check(kernel: Kernel, parameters: int) -> None:
    """Check its arguments against the kernel's parameters and against what such a kernel takes. Raises SpecError."""
    file, layout = kernel.file, kernel.layout
    for argument in file.arguments:
        where = Where(kernel.path, argument.line or None)
        for name, tensor_names in ((argument.input, layout.inputs), (argument.output, layout.outputs)):
            if name is not None and name not in tensor_names:
                raise SpecError(
                    f"{where}: {name!r} is no tensor of {file.computes}; expected one of {listed(tensor_names)}."
                    + did_you_mean(name, tensor_names)
                )
    where = Where(kernel.path, file.line_of("arguments"))
    absent = [name for name in layout.inputs if name not in (*layout.optional, *kernel.inputs)]
    if file.computes == "swiglu" and "gate_up" not in kernel.inputs:
        absent += [name for name in ("gate", "up") if name not in kernel.inputs]
    absent += [name for name in layout.outputs if name not in kernel.outputs]
    if absent:
        raise SpecError(f"{where}: {file.computes} has {listed(absent)} too; no argument is that tensor.")
    if len(file.arguments) != parameters:
        raise SpecError(
            f"{where}: {len(file.arguments)} arguments; the kernel {file.kernel} takes {parameters}. List them in its "
            "order."
        )


def _listed(extents: Sequence[int]) -> str:
    return " x ".join(map(str, extents))
