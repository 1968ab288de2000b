"""`moeparity show ops --fidelity`: prints how sure it is that engines compute what each value says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from moeparity.cli.outputs import outputs
from moeparity.ops.declaration import Op
from moeparity.output.blocks import Block, Column, lines, names, table
from moeparity.profiles.fidelity import HOW, LEVELS, Finding, Line, findings, to_json
from moeparity.profiles.fidelity import lines as rows_of

MEANING = {
    "verified": "equal bits in a test beside the kernel named, together with the other values in effect there",
    "verified: vectors": "equal bits to what the kernel named computed on a GPU, recorded there",
    "verified: ptx": "equal bits to a run of what a compiler made of the kernel's CUDA source; no GPU, no machine code",
    "verified: trace": "a recorded program's values, bit for bit; no other value listed gives them (moeparity explain)",
    "read": "not run; the source named says so",
    "inferred": "no engine's source is named for it, or what is named only suggests it (from:)",
    "opaque": "what the hardware does, or in which order rows arrive, is not known; what is run is a stand-in",
}


def show_fidelity(op: Op | None, json: Path | None) -> None:
    """Print one op's values, or in short those of all ops; also write them to `json` if given."""
    with outputs({"--json": json}) as files:
        evidence = findings(None if op is None else [op])
        files.text("--json", lambda: to_json(evidence))
        files.show(_overview(evidence) if op is None else _in_full(evidence))


def _overview(evidence: list[Finding]) -> Iterator[Block]:
    """Every attribute with its values, by level of evidence."""
    rows = []
    for (op, attribute), members in groupby(evidence, key=lambda finding: (finding.op, finding.attribute)):
        values: dict[str, list[str]] = {level: [] for level in LEVELS}
        for finding in members:
            values[finding.level].append(finding.value)
        present = [level for level in LEVELS if values[level]]
        for i, level in enumerate(present):
            rows.append((*((op, attribute) if i == 0 else ("", "")), level, ", ".join(values[level])))
    yield table([Column(title, "name") for title in ("op", "attribute", "level", "values")], rows)
    yield _meaning()
    yield lines(
        "`moeparity show ops NAME --fidelity` says of each value what it rests on; docs/fidelity.md what that means."
    )


def _in_full(evidence: list[Finding]) -> Iterator[Block]:
    """Each value with what it rests on; kernels that were run are numbered, and named below."""
    if not evidence:
        yield lines("no attributes: nothing about it can differ")
        return
    how = {proof.says: proof.how for finding in evidence for proof in finding.proofs}
    number = {says: f"V{i}" for i, says in enumerate(sorted(how), 1)}
    rows = [(row.attribute, ", ".join(row.values), row.level, _why(row, number)) for row in rows_of(evidence)]
    yield table([Column(title, "name") for title in ("attribute", "value", "level", "rests on")], rows)
    yield _meaning()
    yield lines(*(f"{short}: {says}: {HOW[how[says]]}" for says, short in number.items()))


def _meaning() -> Block:
    """The meaning of the levels."""
    return names(MEANING.items())


def _why(line: Line, number: Mapping[str, str]) -> str:
    """The kernels that were run, or the first source and how many more there are."""
    if line.kernels:
        return ", ".join(number[says] for says in line.kernels)
    source, surplus = line.sources[:1], len(line.sources) - 1
    text = "; ".join((*source, *[f"{surplus} more in docs/generated/fidelity.md"] * (surplus > 0)))
    return f"from: {text}" if text and line.level == "inferred" else text
