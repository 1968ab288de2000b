"""Prints how sure it is that a value computes what an engine does: `moeparity ops --fidelity`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from moeparity.cli.outputs import outputs
from moeparity.ops.declaration import Op
from moeparity.output.tables import word_table
from moeparity.profiles.fidelity import HOW, LEVELS, Finding, Line, findings, lines, to_json

MEANING = {
    "verified": "equal bits in a test beside the kernel named, together with the other values in effect there",
    "verified: ptx": "equal bits to a run of what a compiler made of the kernel's CUDA source; no GPU, no machine code",
    "verified: trace": "a recorded program's values, bit for bit; no other value listed gives them (moeparity explain)",
    "read": "not run; the source named says so",
    "inferred": "no engine's source is named for it, or what is named only suggests it (from:)",
    "opaque": "what the hardware does, or in which order rows arrive, is not known; what is run is a stand-in",
}


def show_fidelity(op: Op | None, json: Path | None) -> None:
    """Print one op's values or, in short, those of all ops; also write them to a file where one is given."""
    with outputs({"--json": json}) as files:
        evidence = findings(None if op is None else [op])
        files.text("--json", lambda: to_json(evidence))
    out = files.console()
    if op is None:
        print_overview(evidence, out)
    elif not evidence:
        out.print("no attributes: nothing about it can differ")
    else:
        print_findings(evidence, out)


def print_overview(evidence: list[Finding], out: Console) -> None:
    """Every attribute with its values by level."""
    rows = word_table("op", "attribute", "level", "values")
    for (op, attribute), group in groupby(evidence, key=lambda finding: (finding.op, finding.attribute)):
        values: dict[str, list[str]] = {level: [] for level in LEVELS}
        for finding in group:
            values[finding.level].append(finding.value)
        present = [level for level in LEVELS if values[level]]
        for i, level in enumerate(present):
            rows.add_row(*((op, attribute) if i == 0 else ("", "")), level, ", ".join(values[level]))
    out.print(rows)
    _print_meaning(out)
    out.print("`moeparity ops NAME --fidelity` says of each value what it rests on; docs/fidelity.md of all.")


def print_findings(evidence: list[Finding], out: Console) -> None:
    """Each value with what it rests on; kernels that were run by number, named below."""
    how = {proof.says: proof.how for finding in evidence for proof in finding.proofs}
    number = {says: f"V{i}" for i, says in enumerate(sorted(how), 1)}
    rows = word_table("attribute", "value", "level", "rests on")
    for line in lines(evidence):
        rows.add_row(line.attribute, ", ".join(line.values), line.level, _why(line, number))
    out.print(rows)
    _print_meaning(out)
    for says, short in number.items():
        out.print(f"{short}: {says}: {HOW[how[says]]}", markup=False)


def _why(line: Line, number: Mapping[str, str]) -> str:
    """The kernels that were run, or the first source and how many more there are."""
    if line.kernels:
        return ", ".join(number[says] for says in line.kernels)
    source, surplus = line.sources[:1], len(line.sources) - 1
    text = "; ".join((*source, *[f"{surplus} more in docs/fidelity.md"] * (surplus > 0)))
    return f"from: {text}" if text and line.level == "inferred" else text


def _print_meaning(out: Console) -> None:
    meaning = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for level, says in MEANING.items():
        meaning.add_row(Text(level, style="bold"), says)
    out.print()
    out.print(meaning)
