"""The page that the run writes: the table, how to read it, and every command line. No figure is written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.cases import Case
from benchmarks.peers.result import Result, named, named_attributes

COLUMNS = (
    "tool",
    "verdict as the tool states it",
    "location it names",
    "first nonzero difference",
    "culprits: named, first, attribute",
    "attribute",
    "s",
    "MB",
)

READING = """\
How to read it

- Each case is one pair of programs, and every tool gets that pair: transformers on `checkpoints/quickstart`, one
  `model(input_ids, use_cache=False)` per side, patched where a case says so. Before moeparity is asked, its two profiles
  must give the logits of the two programs bit for bit; otherwise the row says "not applicable".
- *First nonzero difference* is not the tool's verdict. It is what a reader finds who takes the tool's own output and looks
  for the first thing, in execution order, that differs at all. In a case with one culprit and nothing else it is enough.
- *Culprits* counts planted culprits: those the tool names itself; those that the first difference names; those whose
  attribute is named. A peer is counted at the grain it works at (a transformers module), moeparity at its own (a node).
- *s* is wall time with both sides' dumps and the loading of Python, *MB* is everything the tool wrote for both sides.
- moeparity is told more than the peers. Its two profiles state what each program does, and the attributes that it
  weighs are those in which the two differ; the peers see tensors only. What no profile states, it cannot see: the last
  case is of that kind, and there a peer is the tool to take.
- moeparity's verdict is about the gate, not about equality: a difference below the gate is no failure.

What the peers cover and moeparity does not: dumps from real engines on their own devices (SGLang, Megatron, Ascend),
tensors that are sharded over ranks (SGLang's comparator unshards them), the backward pass (SGLang, msprobe, DebugMode), any
model that runs, with or without MoE, and faults that nobody has described. The line of source in DebugMode's and
msprobe's stacks is nearer to the user's code than the name of a node.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where and when the page was made."""

    date: str
    machine: str
    versions: dict[str, str]
    shape: str
    errors: dict[str, str]


def page(setup: Setup, results: list[tuple[Case, list[Result]]]) -> str:
    """The whole page as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in setup.versions.items())
    parts = [
        "# Beside the peers",
        f"Written by `python -m benchmarks.peers` on {setup.date}; {setup.machine}; {versions}; {setup.shape}.",
        *(f"Not installed: {name} ({error})." for name, error in setup.errors.items()),
        table(results),
        READING.strip(),
        "## Cases\n\n" + "\n".join(f"- **{case.name}**: {case.says}{_truth(case)}" for case, _ in results),
        "## Command lines\n\nAll of them with `OMP_NUM_THREADS=1`, in the repository's root.\n\n" + _commands(results),
    ]
    return "\n\n".join(parts) + "\n"


def table(results: list[tuple[Case, list[Result]]]) -> str:
    """One table of all cases."""
    lines = [_row(("case", *COLUMNS)), _row(["---"] * (len(COLUMNS) + 1))]
    for case, rows in results:
        lines += [_row((case.name, *_cells(case, row))) for row in rows]
    return "\n".join(lines)


def _cells(case: Case, row: Result) -> tuple[str, ...]:
    ran = row.code is not None or row.seconds > 0
    counts = (
        named(case, row.places),
        named(case, row.first_places),
        named_attributes(case, row.attributes),
    )
    return (
        row.tool,
        row.verdict,
        row.location,
        row.first,
        "; ".join(counts) if ran else "-",
        row.attribute,
        f"{row.seconds:.0f}" if ran else "-",
        megabytes(row.written) if ran else "-",
    )


def megabytes(count: int) -> str:
    """Bytes in MB: whole from ten on, else to two digits; `0` is none at all."""
    return f"{count / 1e6:.0f}" if count >= 10_000_000 else f"{count / 1e6:.2g}"


def _truth(case: Case) -> str:
    names = [plant.attribute or f"{plant.module} (no attribute)" for plant in case.plants]
    return f". Planted: `{'`, `'.join(names)}`." if names else "."


def _commands(results: list[tuple[Case, list[Result]]]) -> str:
    blocks = []
    for case, rows in results:
        lines = [line for row in rows for line in (f"# {row.tool}", *row.lines) if row.lines]
        blocks.append(f"<details><summary>{case.name}</summary>\n\n```\n" + "\n".join(lines) + "\n```\n\n</details>")
    return "\n\n".join(blocks)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
