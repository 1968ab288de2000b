"""What a baseline costs: `python -m benchmarks.baseline [RECIPE ...]`, by default of the shipped quickstart.

Each recipe is checked without a lock, with a lock that is written (`--update`), and held to it, in one process, in
turn; medians of RUNS rounds behind one that warms up. Seconds are a processor's, so that other work on the machine
counts less. The lock's bytes are those of the file, and as git packs them (zlib).
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import torch

from moeparity.bisection.report import Report
from moeparity.check.baseline.baseline import Baseline
from moeparity.check.recipes import Checked, check
from moeparity.inputs.machine import cpu_name
from moeparity.output.writing import write_text

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "recipes" / "rounding.yaml",)
RUNS = 3


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one recipe: a processor's seconds of a check without a lock, of one that writes it, of one that is held to it;
    the nodes of the graph, the bytes of the lock and of what git keeps of it.
    """

    recipe: str
    plain: float
    written: float
    held_to_lock: float
    nodes: int
    lock: int
    packed: int


def cost(recipe: Path, lock: Path, runs: int = RUNS) -> Cost:
    """The cost of one recipe's entry, in a lock of its own. Raises ValueError where it cannot be checked."""
    seconds: dict[str, list[float]] = {}
    report: Report | None = None
    for turn in range(runs + 1):
        for name, baseline in _turns(lock):
            begun = time.process_time()
            checked = check(recipe, device="cpu", baseline=baseline())
            spent = time.process_time() - begun
            if checked.error is not None:
                raise ValueError(f"{recipe}: {checked.error}")
            if name == "written":
                _write(recipe, lock, checked)
            report = checked.report if isinstance(checked.report, Report) else report
            seconds.setdefault(name, []).extend([spent] if turn else [])
    data = lock.read_bytes()
    assert report is not None
    of = {name: median(values) for name, values in seconds.items()}
    return Cost(
        recipe.stem, of["plain"], of["written"], of["held"], len(report.nodes), len(data), len(zlib.compress(data))
    )


def _turns(lock: Path) -> Iterator[tuple[str, Callable[[], Baseline | None]]]:
    yield "plain", lambda: None
    lock.unlink(missing_ok=True)
    yield "written", lambda: Baseline.opened(lock, update=True)
    yield "held", lambda: Baseline.opened(lock)


def _write(recipe: Path, lock: Path, checked: Checked) -> None:
    baseline = Baseline.opened(lock, update=True)
    assert checked.entry is not None
    write_text(lock, baseline.written({baseline.key(recipe): checked.entry}))


def main() -> None:
    """Print the table of the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, default=RECIPES)
    print("| recipe | nodes | check | and writes the lock | held to the lock | lock | packed |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number, recipe in enumerate(parser.parse_args().recipes):
            row = cost(recipe, Path(folder) / f"{number}.lock.json")
            times = " | ".join(f"{seconds:.2f} s" for seconds in (row.plain, row.written, row.held_to_lock))
            print(
                f"| {row.recipe} | {row.nodes} | {times} | {row.lock / 1e3:.1f} kB | {row.packed / 1e3:.1f} kB |",
                flush=True,
            )
    threads = torch.get_num_threads()
    on = f"{cpu_name()}, torch {torch.__version__}, {threads} thread{'s' * (threads != 1)}, {date.today()}"
    print(f"\n{on}; medians of {RUNS}.")


if __name__ == "__main__":
    main()
