"""How kernels are run in a process: in Triton's interpreter, or as `RUN_KERNELS` says: `ptx`, or `device`, on a GPU.

With `ptx` and `RECORD_LAUNCHES`, a file, every launch is kept there (tests/engines/launches.py).

Imported ahead of an engine's kernels: both ways have to be set before these are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

if (HOW := os.environ.get("RUN_KERNELS", "interpreter")) == "ptx":
    from tests.engines.triton_kernels import compiled
elif HOW == "interpreter":
    from tests.engines.triton_kernels import interpreter

import torch
from torch import Tensor

from tests.engines import live
from tests.engines.launches import Record, recording
from tests.engines.triton_kernels.case import ASSUMED, CONTRACTIBLE

RECORDED = os.environ.get("RECORD_LAUNCHES")

Found = dict[str, Tensor]


def torchs() -> AbstractContextManager[None]:
    """exp, exp2 and log are torch's inside; of PTX they are the compiler's."""
    return interpreter.torchs() if HOW == "interpreter" else nullcontext()


def in_order() -> AbstractContextManager[None]:
    """Products of tiles are added from left to right inside; of PTX they are the tensor cores'."""
    return interpreter.in_order() if HOW == "interpreter" else nullcontext()


def logs_of(sums: Tensor | None) -> Found:
    """The kernels' own logarithm of sums that a case has made, under the name `logs`; of PTX only."""
    return {} if sums is None else {"logs": compiled.logarithm(sums)}


def scalar_ranges(module: Any) -> AbstractContextManager[Any]:
    """Loops of a module's kernels count in Triton's scalars, as they do when compiled."""
    return interpreter.scalar_ranges(module) if HOW == "interpreter" else nullcontext()


def answer(kinds: Mapping[str, Callable[..., Found]]) -> None:
    """The main program of such a process."""
    if HOW != "ptx":
        live.answer(kinds)
        return
    record = Record()
    with recording(record) if RECORDED else nullcontext():
        live.answer({name: _with_assumed(function) for name, function in kinds.items()})
    if RECORDED:
        record.assemble()
        record.write(Path(RECORDED))


def _with_assumed(function: Callable[..., Found]) -> Callable[..., Found]:
    def called(**case: Any) -> Found:
        compiled.ASSUMED.clear()
        compiled.CONTRACTIBLE.clear()
        outputs = function(**case)
        names = ", ".join(sorted(compiled.ASSUMED))
        return {
            **outputs,
            ASSUMED: torch.tensor(list(names.encode()), dtype=torch.uint8),
            CONTRACTIBLE: torch.tensor(sum(compiled.CONTRACTIBLE.values())),
        }

    return called
