"""Prints the table of docs/engines-run.md, section Triton: `python -m tests.engines.triton_kernels`."""

from __future__ import annotations

from itertools import groupby

import torch

from tests.engines.triton_kernels.case import Case, Outputs, compared, run
from tests.engines.triton_kernels.every import CASES


def row(cases: list[Case], found: dict[str, Outputs]) -> str:
    """One kernel at all its shapes."""
    seen = [compared(case, found[case.name]) for case in cases]
    numbers, differ, control = (
        sum(column) for column in zip(*((s.numbers, s.differ, s.control) for s in seen), strict=True)
    )
    first = cases[0]
    kernels = ", ".join(f"`{name}`" for name in first.kernel.split(", "))
    cells = (kernels, first.engine, "; ".join(case.shapes for case in cases), f"{numbers:,}", differ, f"{control:,}")
    return f"| {' | '.join(map(str, cells))} | {first.says} | {first.blind} |"


def main() -> None:
    """Runs every case."""
    torch.set_num_threads(1)
    cases = sorted(CASES.values(), key=lambda case: (case.engine, case.kernel))
    found = run(cases)
    print("| kernel | engine | shapes | numbers | differ | in another form | verified | blind |")
    print("|---" * 8 + "|")
    for _, group in groupby(cases, key=lambda case: (case.engine, case.kernel)):
        print(row(list(group), found))


if __name__ == "__main__":
    main()
