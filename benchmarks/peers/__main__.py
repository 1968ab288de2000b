"""Make the peers' environment, run every tool on every case, print the table and write the page."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.peers import debug_mode, moeparity_bisect, moeparity_traces, msprobe_compare, sglang_comparator
from benchmarks.peers.cases import CASES, SEQUENCES, TOKENS, Case, case
from benchmarks.peers.environment import ROOT, Environment, Session, ToolFailedError, prepare
from benchmarks.peers.page import Setup, page, table
from benchmarks.peers.result import Result

Tool = Callable[[Case, Environment, Path, Path, Path], list[Result]]
TOOLS: dict[str, Tool] = {
    "moeparity": moeparity_bisect.run,
    "moeparity traces": moeparity_traces.run,
    "SGLang comparator": sglang_comparator.run,
    "msprobe": msprobe_compare.run,
    "torch DebugMode": debug_mode.run,
}
CHECKPOINT = Path("checkpoints/quickstart")


def main() -> None:
    """Read the command line, run, print, write."""
    options = _options()
    environment = prepare(options.venv.resolve())
    setup = Setup(
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        machine=f"{_processor()}, {os.cpu_count()} cores, one thread, load average {os.getloadavg()[0]:.1f} at start",
        versions={**environment.versions(), "Python": platform.python_version()},
        shape=f"{SEQUENCES} x {TOKENS} tokens sampled from each case's candidate",
        errors=environment.errors,
    )
    results: list[tuple[Case, list[Result]]] = []
    for which in [case(name) for name in options.case] or list(CASES):
        print(f"\n== {which.name}: {which.says}", flush=True)
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            results.append((which, measure(which, environment, Path(folder), options.tool or list(TOOLS))))
        if options.out is not None:  # after every case, since all of them take long
            options.out.write_text(page(setup, results), "utf-8")
    print("\n" + table(results))


def measure(which: Case, environment: Environment, folder: Path, tools: list[str]) -> list[Result]:
    """These tools on one case. What a tool writes is gone when it has been read."""
    pair = folder / "pair"
    pair.mkdir()
    program = [environment.python, "-m", "benchmarks.peers.programs", which.name, str(CHECKPOINT), str(pair)]
    Session({"PYTHONPATH": "."}).must(program)
    rows: list[Result] = []
    for number, name in enumerate(tools):
        run_folder = folder / str(number)
        run_folder.mkdir()
        try:
            results = TOOLS[name](which, environment, ROOT / CHECKPOINT, pair, run_folder)
        except ToolFailedError as error:
            results = [Result(tool=name, verdict=f"failed to run: {error}")]
        shutil.rmtree(run_folder)
        for row in results:
            print(f"{row.tool}: {row.verdict}; {row.location}; {row.attribute}", flush=True)
        rows += [replace(row, lines=tuple(_short(line, environment, folder) for line in row.lines)) for row in results]
    return rows


def _short(line: str, environment: Environment, folder: Path) -> str:
    """A command line without this machine's folders."""
    names = {str(folder): "$T", str(environment.folder): "$VENV", sys.executable: "python", f"{ROOT}/": ""}
    for path, name in names.items():
        line = line.replace(path, name)
    return line


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text("utf-8").splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    folder = Path(tempfile.gettempdir()) / "moeparity-peers"
    parser.add_argument("--venv", type=Path, default=folder, help="made when it is not there (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the page, as Markdown, to this file")
    parser.add_argument("--tool", action="append", default=[], choices=list(TOOLS), help="default: all of them")
    parser.add_argument("--case", action="append", default=[], choices=[each.name for each in CASES])
    return parser.parse_args()


if __name__ == "__main__":
    main()
