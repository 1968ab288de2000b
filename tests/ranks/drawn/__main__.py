"""`python -m tests.ranks.drawn --number 200 --record FILE`: jobs with faults that are drawn, and what is said of them.

What stands in the record is not run again, so that a campaign can be cut off; `--out FILE` puts its table there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.ranks.drawn.case import Case, draw
from tests.ranks.drawn.judge import judge
from tests.ranks.launch import Begun, begun

LIMIT_S = 90.0
"""Whoever is there after so long is a process that was left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One line of the record."""

    seed: int
    kind: str
    ranks: int
    noise: str
    seconds: float
    watchdog_s: float
    says: str
    breach: str
    load: float
    versions: str
    machine: str
    day: str


def main() -> int:
    """Run what is not in the record yet, and print or write the table. Exits with 1 where something should not be."""
    options = _options()
    runs = _read(options.record)
    done = {run.seed for run in runs}
    seeds = [seed for seed in range(options.seed, options.seed + options.number) if seed not in done]
    for run in tried(seeds, options.at_once):
        runs.append(run)
        if run.breach or options.verbose:
            says = f"BROKEN: {run.breach}" if run.breach else run.says
            print(f"seed {run.seed}, {run.ranks} ranks, {run.kind}: {says}", flush=True)
        if options.record:
            with options.record.open("a", encoding="utf-8") as record:
                record.write(json.dumps(asdict(run)) + "\n")
    table = page(runs)
    if options.out:
        options.out.write_text(table, "utf-8")
    else:
        print(table)
    return int(any(run.breach for run in runs))


def page(runs: list[Run]) -> str:
    """The page of the documentation: of each kind how many runs, what was missed, and the slowest end."""
    lines = ["| fault | jobs | named with rank and call | median | slowest |", "|---|---|---|---|---|"]
    single = [run for run in runs if run.kind != "none" and " and " not in run.kind]
    lines += [_row(kind, [run for run in single if run.kind == kind]) for kind in sorted({run.kind for run in single})]
    two = [run for run in runs if " and " in run.kind]
    if two:
        lines.append(_row("two of them", two))
    clean = [run for run in runs if run.kind == "none"]
    alarms = sum(bool(run.breach) for run in clean)
    loads = sorted(run.load for run in runs) or [0.0]
    on = ", ".join(", ".join(sorted({getattr(run, name) for run in runs})) for name in ("machine", "versions", "day"))
    faulty = [run for run in runs if run.kind != "none"]
    words = (
        f"{len(faulty)} jobs with faults and {len(clean)} without any, of 2 to 8 ranks over gloo: {on}, load average"
        f" {loads[0]:.1f} to {loads[-1]:.1f}. Seconds are those from the fault to the end of the last process."
    )
    ends = f"Jobs without a fault: {len(clean)}, false alarms and other ends than exit code 0: {alarms}."
    head = (
        "# Faults of live jobs, drawn\n\n"
        "Written by `python -m scripts.pages ranks-faults`; `docs/ranks.md` says what guards do."
    )
    return "\n".join([head, "", words, "", *lines, "", ends, ""])


def _row(kind: str, runs: list[Run]) -> str:
    seconds = sorted(run.seconds for run in runs)
    caught = sum(not run.breach for run in runs)
    return f"| {kind} | {len(runs)} | {caught} | {seconds[len(seconds) // 2]:.1f} s | {seconds[-1]:.1f} s |"


def tried(seeds: list[int], at_once: int) -> Iterator[Run]:
    """Jobs of seeds, so many at the same time."""
    waiting, running = deque(seeds), deque[tuple[Case, Begun, Path]]()
    while waiting or running:
        while waiting and len(running) < at_once:
            case, folder = draw(waiting.popleft()), Path(tempfile.mkdtemp(prefix="drawn-"))
            variables = {rank: {"TMPDIR": str(folder)} for rank in range(case.ranks)}
            arguments = (case.to_json(), str(folder / "journal"))
            job = begun(*arguments, ranks=case.ranks, module="tests.ranks.drawn.subject", variables=variables)
            running.append((case, job, folder))
        yield _ended(*running.popleft())


def _ended(case: Case, job: Begun, folder: Path) -> Run:
    outcome = judge(case, job.ended(LIMIT_S), job.start, folder)
    shutil.rmtree(folder)
    return Run(
        seed=case.seed,
        kind=case.names,
        ranks=case.ranks,
        noise=case.noise,
        seconds=round(outcome.seconds, 2),
        watchdog_s=case.settings["watchdog_s"],
        says=outcome.says,
        breach=outcome.breach,
        load=os.getloadavg()[0],
        **_surroundings(),
    )


def _surroundings() -> dict[str, str]:
    import torch

    from moeparity.inputs.machine import cpu_name

    return {
        "versions": f"torch {torch.__version__}",
        "machine": cpu_name(),
        "day": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _read(record: Path | None) -> list[Run]:
    if record is None or not record.exists():
        return []
    return [Run(**json.loads(line)) for line in record.read_text("utf-8").splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--number", type=int, default=200, help="seeds")
    parser.add_argument("--record", type=Path, help="a file that takes what was run; it is not run again")
    parser.add_argument("--out", type=Path, help="a file for the table, instead of standard output")
    parser.add_argument("--at-once", type=int, default=3, help="so many jobs run at the same time")
    parser.add_argument("--verbose", action="store_true", help="print what was said in each job")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
