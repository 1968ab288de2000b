"""Makes moeparity/profiles/evidence.json and docs/fidelity.md anew: `python scripts/fidelity.py`, about eight minutes.

It runs every test file that writes down evidence (tests/evidence.py) and replaces all that the file holds of this
machine's devices; what other machines have verified stays. `--page` writes the page only, from the file as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from moeparity.profiles import fidelity
from moeparity.profiles.fidelity import LEVELS, Finding, Line

ROOT = Path(__file__).parents[1]
DATA = ROOT / "moeparity" / "profiles" / fidelity.FILE
PAGE = ROOT / "docs" / "fidelity.md"

INTRO = """# Fidelity

For each value of each attribute: how sure it is that an engine computes what is computed here. Written by
`python scripts/fidelity.py` from the tests' evidence (`moeparity/profiles/evidence.json`) and from what profiles,
launch rules, collectives and ops name as their sources; `moeparity ops --fidelity` prints the same.

| level | what it says |
|---|---|
| `verified` | Our kernel gave the bits of the kernel named, run beside it on that device, in a test of this project. |
| `read` | Not run. The source of an engine, named, says so of this very value. |
| `inferred` | No engine's source is named for it, or what is named only suggests it (`from:`). See below. |
| `opaque` | What the hardware does, or in which order rows arrive, is not known. What is run is a stand-in. |

An `inferred` value is computed as its name says, and held against an independent scalar evaluation only.

Four things that `verified` does not say:

- **Values are verified together.** A test compares the result of a kernel, or the logits and routes of a whole model,
  with all attributes in effect there. A value is verified in that company, not in every combination; and where another
  value would have given the same bits on that data, the test does not tell them apart. Where a test knows that (sums
  exact in any order), the value is left out.
- **Of that kernel, on that device, in that version.** A value that transformers on a CPU verifies is no evidence for an
  engine's own kernel with the same value; profiles keep evidence for their own engine (`moeparity engines`). `native`
  is whatever torch does on the device named.
- **`model` is the dtype a variant runs in**: bf16 or fp32 in these tests, and fp16 where `fp16` is verified too.
- **Nothing of a GPU, as long as no GPU stands in the list below.**
"""


def main() -> None:
    """Run the tests, merge what they wrote down, write both files; with `--page` the page only."""
    if sys.argv[1:] not in ([], ["--page"]):
        sys.exit(f"fidelity.py takes no argument but --page, not {' '.join(sys.argv[1:])}.")
    if not sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder))
            DATA.write_text(as_text(merged(json.loads(DATA.read_text()), seen(Path(folder)), today())), "utf-8")
    fidelity.verified.cache_clear()
    PAGE.write_text(page(fidelity.findings()), "utf-8")


def today() -> str:
    """The date that goes into the file."""
    return datetime.now(UTC).date().isoformat()


def targets() -> list[str]:
    """The test files that write down evidence; tests of all that is written down lie above these folders."""
    tests = sorted((ROOT / "tests").glob("*/**/test_*.py"))
    return [str(path.relative_to(ROOT)) for path in tests if "from tests.evidence import" in path.read_text("utf-8")]


def run(folder: Path) -> None:
    """Run them; exits where one failed, or was skipped, so that its evidence would be lost."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", *targets()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MOEPARITY_EVIDENCE": str(folder)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode or "SKIPPED" in done.stdout:
        what = "were skipped" if done.returncode == 0 else "failed"
        sys.exit(f"{done.stdout}\nNothing was written: tests {what}, and their evidence would be missing.")


def seen(folder: Path) -> list[dict[str, Any]]:
    """The lines that the tests wrote."""
    texts = [file.read_text("utf-8") for file in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def merged(data: Mapping[str, Any], lines: Iterable[Mapping[str, Any]], date: str) -> dict[str, Any]:
    """The data file with these lines in place of all that it held of their devices."""
    lines = list(lines)
    devices = {line["device"] for line in lines}
    rows = {
        (*key, proof.against, proof.device, proof.torch, proof.date, test)
        for key, proofs in fidelity.proofs_of(data).items()
        for proof in proofs
        for test in proof.tests
        if proof.device not in devices
    }
    rows |= {
        (line["op"], attribute, value, line["against"], line["device"], line["torch"], date, line["test"])
        for line in lines
        for attribute, values in line["values"].items()
        for value in values
    }
    return _indexed(list(_one_of_each_file(rows)))


def _one_of_each_file(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Of the tests in one file that saw the same, the first by name."""
    for _, same in groupby(sorted(rows), key=lambda row: (*row[:-1], row[-1].partition("::")[0])):
        yield next(same)


def _indexed(rows: list[tuple[str, ...]]) -> dict[str, Any]:
    sources, tests = sorted({row[3:7] for row in rows}), sorted({row[7] for row in rows})
    values: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
    for op, attribute, value, *source, test in rows:
        pairs = values.setdefault(op, {}).setdefault(attribute, {}).setdefault(value, [])
        pairs.append([sources.index(tuple(source)), tests.index(test)])
    names = ("against", "device", "torch", "date")
    return {"sources": [dict(zip(names, source, strict=True)) for source in sources], "tests": tests, "values": values}


def as_text(data: Mapping[str, Any]) -> str:
    """JSON with a line for each attribute, so that a change is read in a diff."""
    out = ["{", '"sources": [', ",\n".join(map(json.dumps, data["sources"])), "],"]
    out += ['"tests": [', ",\n".join(map(json.dumps, data["tests"])), "],", '"values": {']
    ops = []
    for op, attributes in data["values"].items():
        of = ",\n".join(f" {json.dumps(name)}: {json.dumps(values)}" for name, values in attributes.items())
        ops.append(f"{json.dumps(op)}: {{\n{of}\n}}")
    return "\n".join([*out, ",\n".join(ops), "}", "}", ""])


def page(found: list[Finding]) -> str:
    """docs/fidelity.md: the kernels that were run, how many values stand where, and a table for each op."""
    tests: dict[str, set[str]] = {}
    for proof in (proof for finding in found for proof in finding.proofs):
        tests.setdefault(proof.says, set()).update(test.partition("::")[0] for test in proof.tests)
    number = {says: f"V{i}" for i, says in enumerate(sorted(tests), 1)}
    parts = [INTRO, "## Kernels that were run\n\n| | against, on | tests |\n|---|---|---|"]
    parts[-1] += "".join(f"\n| {short} | {says} | {', '.join(sorted(tests[says]))} |" for says, short in number.items())
    parts.append("## How many values\n\n" + _counts(found))
    for op, of in groupby(fidelity.lines(found), key=lambda line: line.op):
        rows = "".join(f"\n{_row(line, number)}" for line in of)
        parts.append(f"## {op}\n\n| attribute | value | level | rests on |\n|---|---|---|---|{rows}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _counts(found: list[Finding]) -> str:
    rows = [f"| op | {' | '.join(LEVELS)} |", f"|---|{'---|' * len(LEVELS)}"]
    for op, of in groupby(found, key=lambda finding: finding.op):
        levels = [finding.level for finding in of]
        rows.append(f"| {op} | {' | '.join(str(levels.count(level)) for level in LEVELS)} |")
    return "\n".join(rows)


def _row(line: Line, number: Mapping[str, str]) -> str:
    values = ", ".join(f"`{value}`" for value in line.values)
    cells = (line.attribute, values, line.level, _why(line, number))
    escaped = (cell.replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def _why(line: Line, number: Mapping[str, str]) -> str:
    if line.kernels:
        return ", ".join(number[says] for says in line.kernels)
    return ("from: " if line.level == "inferred" and line.sources else "") + "; ".join(line.sources)


if __name__ == "__main__":
    main()
