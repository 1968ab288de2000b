"""What tests have seen to be equal to a kernel that runs: moeparity/profiles/evidence.json, made anew.

Every test file that writes down evidence (tests/verified.py) is run, and replaces what these tests were seen to verify
on this machine's devices; what they verified on other machines stays. `python -m scripts.pages.evidence FILE...` runs
some test files only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from moeparity.profiles import fidelity
from scripts.pages.page import ROOT

_COMPACT = partial(json.dumps, separators=(",", ":"))
DATA = ROOT / "moeparity" / "profiles" / fidelity.FILE


def main() -> None:
    """Writes the data file anew, by the test files that are named."""
    DATA.write_text(data(DATA.read_text("utf-8"), sys.argv[1:]), "utf-8")


def data(text: str, tests: Sequence[str] = ()) -> str:
    """The data file with what the tests (none named: all) see on this machine in place of what they saw before."""
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), tests or targets())
        return as_text(merged(json.loads(text), written_lines(Path(folder)), today()))


def today() -> str:
    """The date that goes into the file."""
    return datetime.now(UTC).date().isoformat()


def targets() -> list[str]:
    """The test files that write down evidence; tests of all that is written down lie above these folders."""
    tests = sorted((ROOT / "tests").glob("*/**/test_*.py"))
    return [str(path.relative_to(ROOT)) for path in tests if "from tests.verified import" in path.read_text("utf-8")]


def run(folder: Path, tests: Sequence[str]) -> None:
    """Run test files; exits where one failed, or was skipped, so that its evidence would be lost."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "--all", *tests]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOEPARITY_EVIDENCE": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode or "SKIPPED" in done.stdout:
        outcome = "were skipped" if done.returncode == 0 else "failed"
        sys.exit(f"{done.stdout}\nNothing was written: tests {outcome}, and their evidence would be missing.")


def written_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines that the tests wrote."""
    texts = [file.read_text("utf-8") for file in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def merged(data: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], date: str) -> dict[str, Any]:
    """The data file with these lines in place of what it held of their test files on their devices. A line may state
    the date of its own, of what was recorded on another day.
    """
    lines = list(lines)
    ran = {(_file(line["test"]), line["source"]["device"]) for line in lines}
    rows = {
        (*key, _as_text(proof), test)
        for key, proofs in fidelity.proofs_of(data).items()
        for proof in proofs
        for test in proof.tests
        if (_file(test), proof.device) not in ran
    }
    rows |= {
        (line["op"], attribute, value, _as_text(fidelity.proof_of({"date": date, **line["source"]}, ())), line["test"])
        for line in lines
        for attribute, values in line["values"].items()
        for value in values
    }
    return _indexed(sorted(_one_of_each_file(rows), key=lambda row: (*row[:3], *_by_name(row[3]), row[4])))


def _file(test: str) -> str:
    return test.partition("::")[0]


def _as_text(proof: fidelity.Proof) -> str:
    """A source of the file as one line."""
    return json.dumps(proof.source)


def _by_name(source: str) -> tuple[str, ...]:
    """What sources are sorted by."""
    fields = json.loads(source)
    return *(fields[name] for name in ("against", "device", "torch", "date")), source


def _one_of_each_file(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Of the tests in one file that saw the same, the first by name."""
    for _, same in groupby(sorted(rows), key=lambda row: (*row[:-1], row[-1].partition("::")[0])):
        yield next(same)


def _indexed(rows: list[tuple[str, ...]]) -> dict[str, Any]:
    sources, tests = sorted({row[3] for row in rows}, key=_by_name), sorted({row[4] for row in rows})
    values: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
    for op, attribute, value, source, test in rows:
        pairs = values.setdefault(op, {}).setdefault(attribute, {}).setdefault(value, [])
        pairs.append([sources.index(source), tests.index(test)])
    return {"sources": [json.loads(source) for source in sources], "tests": tests, "values": values}


def as_text(data: Mapping[str, Any]) -> str:
    """JSON with a line for each attribute, so that a change is read in a diff."""
    out = ["{", '"sources": [', ",\n".join(map(json.dumps, data["sources"])), "],"]
    out += ['"tests": [', ",\n".join(map(json.dumps, data["tests"])), "],", '"values": {']
    ops = []
    for op, attributes in data["values"].items():
        of = ",\n".join(f" {json.dumps(name)}: {_COMPACT(values)}" for name, values in attributes.items())
        ops.append(f"{json.dumps(op)}: {{\n{of}\n}}")
    return "\n".join([*out, ",\n".join(ops), "}", "}", ""])


if __name__ == "__main__":
    main()
