"""The test suites of two commits side by side, in CPU seconds: `python -m benchmarks.suite FOLDER BEFORE [AFTER]`.

Each runs in a worktree and an environment of its own below FOLDER, in one process (`pytest -n0`), both at the same
time: whatever else the machine does meets both alike. Seconds are user and system of all processes; wall time says
nothing where others work. A rerun measures what FOLDER does not hold yet. `git worktree prune` forgets the worktrees
once FOLDER is gone.

Packages come from the environment that runs this.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.suite.compare import Suite, table

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Read the command line, run what was not measured yet, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("before")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--tests", nargs="+", default=[], help="paths that both commits have; without it, all tests")
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    revisions = (options.before, options.after)
    commits = [_printed("git", "rev-parse", "--short=8", f"{name}^{{commit}}") for name in revisions]
    files = [folder / f"{commit}.json" for commit in commits]
    missing = {commit: file for commit, file in zip(commits, files, strict=True) if not file.exists()}
    runs = [Run.started(folder / commit, commit, options.tests) for commit in missing]
    try:
        for run in runs:
            missing[run.commit].write_text(json.dumps(asdict(run.ended())), "utf-8")
    finally:
        for run in runs:
            run.process.kill()
    print(table(*(Suite(**json.loads(file.read_text("utf-8"))) for file in files)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """pytest at work on a commit; `folder` holds its worktree, its environment, its times and what it prints."""

    commit: str
    folder: Path
    process: subprocess.Popen[bytes]
    begun: str

    @classmethod
    def started(cls, folder: Path, commit: str, tests: Sequence[str]) -> Run:
        """Make worktree and environment where they are not there, and start pytest."""
        tree, times = folder / "tree", folder / "times.jsonl"
        if not tree.exists():
            _printed("git", "worktree", "add", "--detach", str(tree), commit)
        python = _environment(folder / "environment", tree)
        times.unlink(missing_ok=True)
        variables = {
            **os.environ,
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parent),
            "SUITE_TIMES": str(times),
            "OMP_NUM_THREADS": "1",
        }
        command = [str(python), "-m", "pytest", "-q", "-n0", "-p", "per_test", *tests]
        begun = f"{datetime.now(UTC):%Y-%m-%d %H:%M}, load average {os.getloadavg()[0]:.1f} at start"
        with (folder / "printed.txt").open("wb") as printed:
            process = subprocess.Popen(command, cwd=tree, env=variables, stdout=printed, stderr=subprocess.STDOUT)  # noqa: S603
        return cls(commit=commit, folder=folder, process=process, begun=begun)

    def ended(self) -> Suite:
        """Wait for it. Exits where pytest found no tests, or ended before all had run."""
        _, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        printed = (self.folder / "printed.txt").read_text("utf-8", errors="replace").splitlines()
        if self.process.returncode not in {0, 1}:
            sys.exit("\n".join([f"pytest on {self.commit} ended with {self.process.returncode}:", *printed[-20:]]))
        times = (self.folder / "times.jsonl").read_text("utf-8").splitlines()
        return Suite(
            commit=self.commit,
            begun=self.begun,
            outcome=printed[-1].strip("= "),
            seconds=used.ru_utime + used.ru_stime,
            tests=dict(map(json.loads, times)),
        )


def _environment(folder: Path, tree: Path) -> Path:
    """The Python of an environment with this one's packages and a worktree's moeparity."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    _printed(sys.executable, "-m", "venv", "--without-pip", str(folder))
    into = Path(sysconfig.get_path("purelib").replace(sys.prefix, str(folder), 1))
    # Links, not a path to search: pytest would load the plugins of this environment's own moeparity, too.
    for packages in (Path(line) for line in sys.path if line.endswith("site-packages")):
        for entry in packages.iterdir():
            left_out = "moeparity" in entry.name or entry.suffix == ".pth"
            if not left_out and not (into / entry.name).exists():
                (into / entry.name).symlink_to(entry)
    install = (str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation")
    _printed(*install, "-e", str(tree))
    live = Path(sys.prefix) / "live"
    if live.exists():
        (folder / "live").symlink_to(live)
    return python


def _printed(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


if __name__ == "__main__":
    main()
