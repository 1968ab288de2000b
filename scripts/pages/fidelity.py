"""docs/generated/fidelity.md: for each value of each attribute, how sure it is and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from moeparity.profiles import fidelity
from moeparity.profiles.fidelity import HOW, LEVELS, Finding, Line

HEAD = """# How sure each value is: all values

For each value of each attribute: its level of evidence, and what that rests on. [Fidelity](../fidelity.md) says what
the levels mean. `moeparity show ops NAME --fidelity` prints the same of one op. Written by `python -m scripts.pages
fidelity` from the tests' evidence (`moeparity/profiles/evidence.json`) and from the sources that profiles, ops,
collectives and launch rules name; a test keeps it in step.
"""


def page(_: str = "") -> str:
    """The whole page, from the data file as it is now."""
    fidelity.verified.cache_clear()
    return f"{HEAD}\n{tables_of(fidelity.findings())}"


def tables_of(values: list[Finding]) -> str:
    """The kernels that were run, how many values stand where, and a table for each op."""
    tests: dict[str, set[str]] = {}
    how: dict[str, str] = {}
    for proof in (proof for finding in values for proof in finding.proofs):
        tests.setdefault(proof.says, set()).update(test.partition("::")[0] for test in proof.tests)
        how[proof.says] = proof.how.replace("_", " ")
    number = {says: f"V{i}" for i, says in enumerate(sorted(tests), 1)}
    parts = ["## Kernels that were run\n\n" + "".join(f"- **{name.replace('_', ' ')}**: {HOW[name]}\n" for name in HOW)]
    parts[0] += "\n| | against, on | how | tests |\n|---|---|---|---|"
    parts[0] += "".join(
        f"\n| {short} | {says} | {how[says]} | {', '.join(sorted(tests[says]))} |" for says, short in number.items()
    )
    parts.append("## How many values\n\n" + _counts(values))
    for op, of in groupby(fidelity.lines(values), key=lambda line: line.op):
        rows = "".join(f"\n{_row(line, number)}" for line in of)
        parts.append(f"## {op}\n\n| attribute | value | level | rests on |\n|---|---|---|---|{rows}")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _counts(values: list[Finding]) -> str:
    rows = [f"| op | {' | '.join(LEVELS)} |", f"|---|{'---|' * len(LEVELS)}"]
    for op, of in groupby(values, key=lambda finding: finding.op):
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
