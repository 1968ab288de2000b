"""Files that no command takes alone, given to the functions that read them as if those were commands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from moeparity import ptx
from moeparity.cli.failures import report_error
from moeparity.errors import MoeparityError
from moeparity.output.words import printable
from moeparity.plan.config import Config
from moeparity.plan.expand import expand

PROGRAMS = Path(__file__).parents[1] / "ptx" / "programs" / "reductions.ptx"
_KERNELS = ("row_sum_of_squares", "switched", "pairs")
"""Loops, barriers and shuffles; a table of branches; halves of registers."""
_STEPS = 2_000


def kernels() -> str:
    """A module of some kernels."""
    head, *kernels = PROGRAMS.read_text("utf-8").split(".visible .entry ")
    return ".visible .entry ".join([head, *(kernel for kernel in kernels if kernel.startswith(_KERNELS))])


def run_kernels() -> None:
    """What stands for the console script: all kernels of the file that `sys.argv` names, on zeros; exits with 2 for the
    error that `moeparity.ptx` promises.
    """
    raw = Path(sys.argv[-1]).read_bytes()
    failed = False
    module = None
    try:
        module = ptx.load(raw.decode("utf-8", "replace"))
    except ptx.PtxError as error:
        failed = _report(error)
    for kernel in module.kernels if module else ():
        try:
            sizes = [(parameter.size, parameter.type) for parameter in module.parameters(kernel)]
            module.contractible(kernel)
            args = [np.zeros(4096, np.uint8) if size == 8 else bytes(size) for size, _ in sizes]
            run = module.launch(kernel, 1, 64, args, shared=1024, limit=_STEPS)
            print(printable(f"{kernel}: {run.instructions} instructions"))
        except ptx.PtxError as error:
            failed = _report(error)
    sys.exit(2 if failed else 0)


def expand_graph() -> None:
    """What stands for the console script: the graph file that `sys.argv` names, laid out for the checkpoint beside it;
    exits with 2 for the error that `moeparity.plan.expand` promises.
    """
    try:
        nodes = expand(Config(Path("config.json")), Path(sys.argv[-1])).nodes
    except MoeparityError as error:
        report_error(str(error))
        sys.exit(2)
    print(printable("\n".join(map(str, nodes))))
    sys.exit(0)


def _report(error: ptx.PtxError) -> bool:
    report_error(str(error))
    return True
