"""Launches of kernels that `moeparity.ptx` ran, kept with their machine code: a GPU is given the same ones later."""

from __future__ import annotations

import copy
import hashlib
import io
import re
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from moeparity import ptx
from moeparity.ptx import parser
from moeparity.ptx.launch_arguments import Argument, Struct
from tests.engines.cuda import toolchain

Extent = tuple[int, int, int]


@dataclass(kw_only=True)
class Launch:
    """One launch: the digest of its PTX, its shape, the arguments of each rank, and what the interpreter wrote."""

    text: str
    kernel: str
    grid: Extent
    block: Extent
    cluster: Extent
    shared: int
    before: Sequence[Sequence[Argument]]
    after: Mapping[int, torch.Tensor]
    assumed: tuple[str, ...]
    comparison: tuple[str, str, str] = ("", "", "")
    """Version of the engine, kernel, shape: the row of docs/ptx.md it belongs to."""
    controls: int | None = None
    """How many numbers of the first output another value of the node would change."""


@dataclass(kw_only=True)
class Record:
    """Launches, with the PTX and the machine code of each text by its digest."""

    texts: dict[str, str] = field(default_factory=dict)
    cubins: dict[str, bytes] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)

    def assemble(self) -> None:
        """Leave out of the texts what was not launched, and make machine code of them."""
        for digest, text in self.texts.items():
            kernels = {launch.kernel for launch in self.launches if launch.text == digest}
            self.texts[digest] = only(text, kernels)
            self.cubins[digest] = assembled(self.texts[digest])

    def write(self, file: Path) -> None:
        """Compressed."""
        stream = io.BytesIO()
        torch.save(self, stream)
        file.write_bytes(zlib.compress(stream.getvalue(), 6))


def read(file: Path) -> Record:
    """A record that `write` wrote."""
    record: Record = torch.load(io.BytesIO(zlib.decompress(file.read_bytes())), weights_only=False)
    return record


def arrays(args: Sequence[Sequence[Argument]]) -> Iterator[torch.Tensor]:
    """Every tensor and array among the arguments of all ranks, in structs too, each once."""
    addresses: set[int] = set()

    def inside(argument: Any) -> Iterator[torch.Tensor]:
        if isinstance(argument, Struct):
            for value in argument.values:
                yield from inside(value)
        elif isinstance(argument, torch.Tensor | np.ndarray):
            tensor = argument if isinstance(argument, torch.Tensor) else torch.from_numpy(argument)
            if tensor.data_ptr() not in addresses:
                addresses.add(tensor.data_ptr())
                yield tensor

    for of_rank in args:
        for argument in of_rank:
            yield from inside(argument)


def changed(before: Sequence[Sequence[Argument]], after: Sequence[Sequence[Argument]]) -> dict[int, torch.Tensor]:
    """Copies of the arrays that have other bits, by their place among `arrays`."""
    pairs = enumerate(zip(arrays(before), arrays(after), strict=True))
    return {place: there.clone() for place, (start, there) in pairs if not torch.equal(octets(start), octets(there))}


def octets(x: torch.Tensor) -> torch.Tensor:
    """The bytes of an array."""
    return x.reshape(-1).view(torch.uint8)


@contextmanager
def recording(record: Record) -> Iterator[None]:
    """Keep every launch that the interpreter makes meanwhile."""
    module = ptx.Module
    launched = module._launched

    def launch(self: Any, kernel: str, extents: Any, args: Any, shared: int, *rest: Any, **options: Any) -> Any:
        before = copy.deepcopy(args)
        run = launched(self, kernel, extents, args, shared, *rest, **options)
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        record.texts[digest] = self.text
        after = changed(before, args)
        shape = {"grid": extents.grid, "block": extents.block, "cluster": extents.cluster, "shared": shared}
        name = self.full_name(kernel)
        record.launches.append(
            Launch(text=digest, kernel=name, before=before, after=after, assumed=run.assumed, **shape)
        )
        return run

    module._launched = launch  # type: ignore[method-assign]
    try:
        yield
    finally:
        module._launched = launched  # type: ignore[method-assign]


def recorded(comparisons: Sequence[Callable[[], Any]]) -> Record:
    """Run comparisons and keep every launch they make, with the machine code."""
    record = Record()
    with recording(record):
        for comparison in comparisons:
            first = len(record.launches)
            compared = comparison()
            for launch in record.launches[first:]:
                launch.comparison = compared.version, compared.kernel, compared.shape
                launch.controls = compared.control
    record.assemble()
    return record


def only(text: str, kernels: set[str]) -> str:
    """A PTX file without its other kernels."""
    # Without comments, as the parser cuts it.
    text = parser._COMMENT.sub(" ", text)
    pieces, end = [], 0
    for begin, stop, _ in parser._functions(text):
        pieces.append(text[end:begin])
        entry = re.search(r"\.entry\s+([\w$]+)", text[begin:stop])
        if entry is None or entry[1] in kernels:
            pieces.append(text[begin:stop])
        end = stop
    return "".join([*pieces, text[end:]])


def assembled(text: str) -> bytes:
    """The machine code that ptxas makes of a PTX file."""
    target = next(line.split()[1].rstrip(",") for line in text.splitlines() if line.startswith(".target"))
    with tempfile.TemporaryDirectory() as place:
        source, out = Path(place) / "in.ptx", Path(place) / "out.cubin"
        source.write_text(text)
        command = [str(toolchain.compiler().parent / "ptxas"), f"-arch={target}", str(source), "-o", str(out)]
        subprocess.run(command, check=True, timeout=600)
        return out.read_bytes()
