"""Launches of engines' kernels that `moeparity.ptx` ran here, and the same launches on a GPU.

    python -m benchmarks.gpu.launches record FOLDER              # here: with the toolchain of tests/engines/cuda
    python -m benchmarks.gpu.launches replay FILE --out FOLDER   # with a GPU; nothing is compiled there
    python -m benchmarks.gpu.launches keep RECORDS --out FILE    # of RECORDS/NAME.rec and RECORDS/NAME, replayed

A record has, of every launch, the PTX, the machine code that ptxas makes of it, the arguments, and what the interpreter
wrote. A replay gives the machine code the same arguments and holds what it wrote to that.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from tests.recorded.launches import Kept, write

MOST_BYTES = 320_000
"""Of a launch's arrays, if it is kept for tests."""


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
        start, ours, theirs = (int_view(x).long() for x in (starts[place], *(of.get(place, starts[place]) for of in
                                                                   (of_interpreter, of_device))))  # fmt: skip
        numbers += int(((ours != start) | (theirs != start)).sum())
        differ += int((ours != theirs).sum())
        ulp = max(ulp, int((ours - theirs).abs().max()))
    return Replayed(**facts, numbers=numbers, differ=differ, ulp=ulp, written=of_device)


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


def by_ranks(record: Record) -> list[Launch]:
    """The launches as they are replayed: ranks wait for each other, and could wait for ever, so these come last."""
    return sorted(record.launches, key=lambda launch: len(launch.before))


def launches_to_keep(folder: Path) -> Iterator[Kept]:
    """Of every record and its replays: launches of one rank that the device ran, on small arrays and numbers alone."""
    for file in sorted(folder.glob("*.rec")):
        record = read(file)
        for number, launch in enumerate(by_ranks(record)):
            replay = folder / file.stem / f"{number:04}.pt"
            args = [x for x in launch.before[0] if isinstance(x, torch.Tensor | int | float)]
            places = [place for place, argument in enumerate(args) if isinstance(argument, torch.Tensor)]
            size = sum(x.nbytes for x in args if isinstance(x, torch.Tensor))
            if len(launch.before) > 1 or len(args) < len(launch.before[0]) or size > MOST_BYTES or not replay.exists():
                continue
            replayed_launch: dict[str, Any] = torch.load(replay, weights_only=False)
            if replayed_launch["error"]:
                continue
            yield Kept(
                name=" ".join(launch.comparison).strip() or f"{file.stem} {launch.kernel} {number}",
                text=record.texts[launch.text],
                kernel=launch.kernel,
                shape={name: getattr(launch, name) for name in ("grid", "block", "cluster", "shared")},
                args=args,
                written={places[place]: x for place, x in replayed_launch["written"].items()},
            )


def main() -> int:
    """Record, replay, or keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "replay", "keep"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, help="where replays go, a file for each launch; or what tests read")
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
    if options.what == "keep":
        write(options.out, launches_to_keep(options.file))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    record, driver = read(options.file), Driver()
    launches = by_ranks(record)
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
