"""How kernels are run in a process: in Triton's interpreter, or as PTX where `RUN_KERNELS` is `ptx`.

Imported ahead of an engine's kernels: both ways have to be set before these are made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

if PTX := os.environ.get("RUN_KERNELS") == "ptx":
    from tests.engines.triton_kernels import compiled
else:
    from tests.engines.triton_kernels import interpreter

import torch
from torch import Tensor

from tests.engines import live
from tests.engines.triton_kernels.case import ASSUMED, CONTRACTIBLE

Found = dict[str, Tensor]


def torchs() -> AbstractContextManager[None]:
    """exp, exp2 and log are torch's inside; of PTX they are the compiler's."""
    return nullcontext() if PTX else interpreter.torchs()


def logs_of(sums: Tensor | None) -> Found:
    """The kernels' own logarithm of sums that a case has made, under the name `logs`; of PTX only."""
    return {} if sums is None else {"logs": compiled.logarithm(sums)}


def scalar_ranges(module: Any) -> AbstractContextManager[Any]:
    """Loops of a module's kernels count in Triton's scalars, as they do when compiled."""
    return nullcontext() if PTX else interpreter.scalar_ranges(module)


def answer(kinds: Mapping[str, Callable[..., Found]]) -> None:
    """The main program of such a process."""
    live.answer({name: _with_assumed(function) for name, function in kinds.items()} if PTX else kinds)


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
