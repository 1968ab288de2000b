"""Which tests run by default: `python -m tests.tiers record DIR`, `time DIR`, `choose DIR`, then `mutate DIR`.

`record` runs every test with coverage, about an hour on two cores. `time` runs them without, since coverage slows some
tests more than others. `choose` writes tests/tiers/held_back.json: what
only `pytest --all` runs. `mutate` changes one line of product code after the other and counts whose tests notice.

With `--default`, `record` and `time` run only what runs by default now, and `choose` takes tests from that: what is
held back stays so. It takes a third of the time, for when the default run has grown.

With `--tests`, `record` runs only some tests, which takes minutes; `mutate --rooms` then keeps to the folders that they
are about. Default tests that lie elsewhere are not tried, so the number that it gives is a lower bound. `add DIR` takes
tests of such a record off the list, those that look closest at a line, for up to `--seconds` more of the default run.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.tiers.choosing import choose, promoted
from tests.tiers.holding import HeldBack
from tests.tiers.mutations import ROOMS, drawn, tried
from tests.tiers.recorder import PLACE, TIMED
from tests.tiers.records import ROOT, read


def main() -> None:
    """One of the five."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "time", "choose", "add", "mutate"])
    parser.add_argument("folder", type=Path, help="where the record lies")
    parser.add_argument("--tests", nargs="*", default=[], help="only these files and folders of tests; default: all")
    parser.add_argument("--default", action="store_true", help="only what runs by default now")
    parser.add_argument("--rooms", nargs="*", default=ROOMS, help="only lines in these folders; default: all")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the default tests, or of those added")
    parser.add_argument("--killed", type=int, default=100, help="mutations that some test kills, to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the mutations to this Markdown file")
    arguments = parser.parse_args()
    {"record": _record, "time": _time, "choose": _choose, "add": _add, "mutate": _mutate}[arguments.what](arguments)


def _record(arguments: argparse.Namespace) -> None:
    shutil.rmtree(arguments.folder, ignore_errors=True)
    _run(arguments, PLACE)


def _time(arguments: argparse.Namespace) -> None:
    for file in arguments.folder.glob("*.times"):
        file.unlink()
    _run(arguments, TIMED)


def _run(arguments: argparse.Namespace, variable: str) -> None:
    """Run the tests; the variable tells the plugin what to write."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, variable: str(arguments.folder.resolve()), "OMP_NUM_THREADS": "1"}
    which = () if arguments.default else ("--all",)
    command = [sys.executable, "-m", "pytest", *which, "-q", "-p", "tests.tiers.recorder", *arguments.tests]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def _choose(arguments: argparse.Namespace) -> None:
    older = HeldBack.read() if arguments.default else HeldBack({})
    records = read(arguments.folder)
    records.tests = [test for test in records.tests if test.test not in older]
    choice = choose(records, arguments.seconds)
    older.chosen(choice.default, choice.held_back).write()
    print(
        f"default {len(choice.default)} tests, {choice.seconds:.0f} s on one core, of which {choice.covering} cover "
        f"what has to be; held back {len(choice.held_back)}; all {choice.all_seconds:.0f} s; "
        f"{choice.uncovered} of {choice.lines} lines are run by none of the default tests"
    )


def _add(arguments: argparse.Namespace) -> None:
    held_back = HeldBack.read()
    added = promoted(read(arguments.folder), held_back, arguments.seconds)
    held_back.without(added).write()
    print(f"{len(added)} tests run by default that were held back")


def _mutate(arguments: argparse.Namespace) -> None:
    records = read(arguments.folder)
    held_back = HeldBack.read()
    outcomes, killed = [], []
    for mutation in drawn(records, arguments.seed, arguments.rooms):
        outcome = tried(mutation, records, held_back)
        outcomes.append(outcome)
        killed = [each for each in outcomes if each.killed_by]
        print(f"{len(killed):4} {outcome.killed_by or 'alive':8} {mutation.file}:{mutation.line}", flush=True)
        if len(killed) == arguments.killed:
            break
    by_default = sum(outcome.killed_by == "default" for outcome in outcomes)
    today, cpu = datetime.now(UTC).date().isoformat(), platform.processor() or platform.machine()
    where = f" Lines of {', '.join(arguments.rooms)}; tests of these alone." * (arguments.rooms != ROOMS)
    head = f"{by_default} of {len(killed)} killed by the default tests; {len(outcomes)} tried.{where} {today}, {cpu}."
    print(head)
    if arguments.out is not None:
        rows = [
            f"| `{o.mutation.file}:{o.mutation.line}` | `{o.mutation.before}` | `{o.mutation.after}` | "
            f"{o.killed_by or 'no test'} |".replace("||", "\\|\\|")
            for o in outcomes
        ]
        arguments.out.write_text(
            "\n".join([head, "", "| line | was | became | killed by |", "|---|---|---|---|", *rows, ""])
        )


if __name__ == "__main__":
    main()
