"""Launches of engines' kernels that `moeparity.ptx` ran here, and the same launches on a GPU.

    python -m benchmarks.gpu.launches record FOLDER              # here: with the toolchain of tests/engines/cuda
    python -m benchmarks.gpu.launches replay FILE --out FOLDER   # with a GPU; nothing is compiled there

A record has, of every launch, the PTX, the machine code that ptxas makes of it, the arguments, and what the interpreter
wrote. A replay gives the machine code the same arguments and holds what it wrote to that.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checkout import find_mapped_folders
from benchmarks.gpu.driver import Driver, Memory, streams
from moeparity import ptx
from moeparity.numerics.bits import int_view
from moeparity.ptx.launch_arguments import Argument, parameter_bytes
from tests.engines.launches import Launch, Record, arrays, changed, read, recorded


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """A launch on the device: numbers that differ from the interpreter's, or what went wrong, and what it wrote."""

    comparison: tuple[str, str, str]
    kernel: str
    ranks: int
    assumed: tuple[str, ...]
    controls: int | None
    numbers: int = 0
    """Those that the interpreter or the device wrote other than they were."""
    differ: int = 0
    ulp: int = 0
    error: str = ""
    written: Mapping[int, torch.Tensor] = field(default_factory=dict)
    """Arrays that were changed, after the device's launch, by their place among `arrays`."""


def replayed(record: Record, driver: Driver, launch: Launch) -> Replayed:
    """Run a recorded launch; all ranks at once, each in a stream."""
    facts: dict[str, Any] = {"comparison": launch.comparison, "kernel": launch.kernel, "assumed": launch.assumed,
             "controls": launch.controls, "ranks": len(launch.before)}  # fmt: skip
    args = copy.deepcopy(launch.before)
    try:
        run_on_device(record, driver, launch, args)
    except (RuntimeError, ptx.PtxError) as error:
        return Replayed(**facts, error=str(error)[:300])
    of_interpreter, of_device = launch.after, changed(launch.before, args)
    starts = list(arrays(launch.before))
    numbers = differ = ulp = 0
    for place in of_interpreter.keys() | of_device.keys():
        start, ours, theirs = (_bits(x) for x in (starts[place], *(of.get(place, starts[place]) for of in
                                                                   (of_interpreter, of_device))))  # fmt: skip
        numbers += int(((ours != start) | (theirs != start)).sum())
        differ += int((ours != theirs).sum())
        ulp = max(ulp, int((ours - theirs).abs().max()))
    return Replayed(**facts, numbers=numbers, differ=differ, ulp=ulp, written=of_device)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int8) if x.element_size() == 1 else int_view(x)).long()


@cache
def _loaded(text: str) -> ptx.Module:
    return ptx.load(text)


def run_on_device(record: Record, driver: Driver, launch: Launch, args: Sequence[Sequence[Argument]]) -> None:
    """The launch's machine code on arguments of the CPU, which have what it wrote afterwards."""
    module = _loaded(record.texts[launch.text])
    layout = module._layout(launch.kernel)  # noqa: SLF001 - the parameters' places
    memory = Memory()
    # The driver takes exactly the kernel's bytes: with more it refuses the launch, as one of too many resources.
    last = layout.parameters[-1] + layout.kernel.parameters[-1].size
    parameters = [parameter_bytes(layout, of_rank, memory)[:last] for of_rank in args]
    code = driver.module(record.cubins[launch.text])
    function = driver.function(code, launch.kernel, launch.shared, launch.cluster)
    torch.cuda.synchronize()
    for octets, stream in zip(parameters, streams(len(args)), strict=True):
        driver.launch(
            function, octets, grid=launch.grid, block=launch.block, cluster=launch.cluster, shared=launch.shared,
            stream=stream,
        )  # fmt: skip
    memory.fetch()


def main() -> int:
    """Record or replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "replay"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, help="the folder of what was replayed, a file for each launch")
    parser.add_argument("--first", type=int, default=0, help="the launch to begin with")
    options = parser.parse_args()
    torch.set_num_threads(1)
    find_mapped_folders()
    if options.what == "record":
        from tests.engines.cuda import kernels  # noqa: PLC0415 - it asks for a compiler

        options.file.mkdir(parents=True, exist_ok=True)
        for idea, comparisons in kernels.small().items():
            file = options.file / f"{idea.replace(' ', '_')}.rec"
            if not file.exists():
                recorded(comparisons).write(file)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    record, driver = read(options.file), Driver()
    # Ranks wait for each other, and could wait for ever: they come last.
    launches = sorted(record.launches, key=lambda launch: len(launch.before))
    for number, launch in list(enumerate(launches))[options.first :]:
        row = replayed(record, driver, launch)
        torch.save(asdict(row), options.out / f"{number:04}.pt")
        name = " ".join(row.comparison).strip() or row.kernel
        print(f"{number} {name}: {row.error or f'{row.differ} of {row.numbers} differ, {row.ulp} ulp'}", flush=True)
        if row.error:
            # A device in disorder stays so for its process.
            command = [sys.executable, "-m", "benchmarks.gpu.launches", "replay", str(options.file)]
            os.execv(sys.executable, [*command, "--out", str(options.out), "--first", str(number + 1)])  # noqa: S606
    return 0


if __name__ == "__main__":
    sys.exit(main())
