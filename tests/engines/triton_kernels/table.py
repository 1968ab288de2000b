"""Prints the tables of docs/engines-run.md, section Triton: `python -m tests.engines.triton_kernels.table`."""

from __future__ import annotations

from itertools import groupby

import torch

from tests.engines.triton_kernels.case import SAYS, Case, Outputs, approximate, compared, run
from tests.engines.triton_kernels.every import CASES

HEADS = ("kernel", "engine", "shapes", "numbers", "differ", "in another form", "what was seen", "not seen, or assumed")


def by_kernel(case: Case) -> tuple[str, str]:
    """What a row of a table is about."""
    return case.engine, case.kernel


def row(cases: list[Case], outputs: dict[str, Outputs]) -> str:
    """One kernel at all its shapes."""
    comparisons = [compared(case, outputs[case.name]) for case in cases]
    counts = [(comparison.numbers, comparison.differ, comparison.control) for comparison in comparisons]
    numbers, differ, control = (sum(column) for column in zip(*counts, strict=True))
    kernels = ", ".join(f"`{name}`" for name in cases[0].kernel.split(", "))
    shapes = "; ".join(case.shapes for case in cases)
    texts_told = tuple(
        "; ".join(dict.fromkeys(filter(None, texts))) for texts in zip(*((c.says, c.blind) for c in cases), strict=True)
    )
    cells = (kernels, cases[0].engine, shapes, f"{numbers:,}", f"{differ:,}", f"{control:,}", *texts_told)
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def table(how: str) -> None:
    """All kernels run in one way, and which approximate instructions they met."""
    cases = sorted(CASES[how].values(), key=by_kernel)
    outputs = run(cases, how)
    print(f"{SAYS[how]}\n\n| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
    for _, group in groupby(cases, key=by_kernel):
        print(row(list(group), outputs))
    met = {name for case_outputs in outputs.values() for name in approximate(case_outputs)}
    kernels = len({by_kernel(case) for case in cases})
    print(f"\n{kernels} kernels, {len(cases)} cases; approximate instructions: {', '.join(sorted(met)) or 'none'}\n")


def main() -> None:
    """Runs every case."""
    torch.set_num_threads(1)
    for how in CASES:
        table(how)


if __name__ == "__main__":
    main()
