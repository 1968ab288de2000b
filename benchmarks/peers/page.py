"""The page that the run writes: the table, how to read it, and every command line. No figure is written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.cases import Case
from benchmarks.peers.result import Result, culprits_named, named_attributes

COLUMNS = (
    "tool",
    "verdict as the tool states it",
    "location it names",
    "first nonzero difference",
    "attribute it names",
    "culprits named",
    "by first difference",
    "by attribute",
    "s",
    "MB",
)

READING = """\
## How to read it

- Each case is one pair of programs, and every tool gets that pair: transformers on `checkpoints/quickstart`, one
  `model(input_ids, use_cache=False)` per side, patched where a case says so. Before moeparity is asked, its two
  profiles must give the logits of the two programs bit for bit; otherwise the row says "not applicable".
- *First nonzero difference* is not the tool's verdict (for moeparity: the first root). It is what a reader finds who
  takes the tool's own output and looks for the first thing, in execution order, that differs at all. Where a case has
  one culprit and nothing else, that is enough to find it, with any of these tools (msprobe's finest level at times
  shows its race instead, see below).
- *Culprits named*, *by first difference* and *by attribute* count the planted ones: in the tool's own location, in the
  first difference, and among the attributes. A peer is counted at the grain it works at (the module of transformers
  that holds the culprit, or anything inside it), moeparity at its own (a node). In the clean pair, whatever is named is
  a false alarm.
- *s* is wall time from the start of Python, both sides and the comparison; *MB* is everything written for both sides.
- **moeparity is told more than the peers.** Its two profiles state what each program does, and the attributes that it
  weighs are those in which the two differ: with one difference stated, naming it is no feat. The peers see tensors
  only. What no profile states `bisect` of two profiles can't see: the last case is of that kind.
- **From traces alone**, told no more than the peers, moeparity has a row of its own: captures of both passes with
  whole tensors, and `moeparity diff` of the two. Its location is where differences begin, and what
  stands under *attribute* is in what way: by another weight, by an op that gives other bits of equal inputs. It names
  no attribute of moeparity's, so the count by attribute is none. `moeparity explain` of such a trace, which is told the
  checkpoint and `hf-eager` too, is not in the table.
- moeparity's verdict is about its gate, not about equality: a difference below the gate is no failure, and near it the
  verdict is inconclusive. Its culprits are the choices that lower the divergence when they alone are restored; where a
  culprit drowns in rounding noise there is none, and it says so.
- The comparator's limit of `max_abs <= 0` and msprobe's CRC-32 ask for equal bits, which suits a pair that should have
  them; their defaults tolerate rounding. `-da` looks for folders named `rank0`, so the dumps of one CPU process are
  renamed. msprobe 26.2.0 takes the CRC-32 of a CPU tensor later, in another thread and from live memory
  (`pytorch_processor.py`, `_crc_executor.submit`): an op in place, as in transformers' router, can change it, so its
  finest level may differ from run to run on the same program.
- DebugMode pairs calls by position and refuses logs of another length; where a side adds one cast, that is the case.

What the peers were made for and moeparity was not run on here: dumps from real engines on their own devices (SGLang,
Megatron, Ascend), tensors sharded over ranks, the backward pass, and models without experts. The lines of source in the
stacks of DebugMode and msprobe are nearer to the user's code than the name of a node.
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
    where = "; ".join([setup.machine, ", ".join(f"{name} {version}" for name, version in setup.versions.items())])
    parts = [
        "# Beside the peers",
        f"Written by `python -m scripts.pages peers` (`--check` compares) on {setup.date}; {where}; {setup.shape}.",
        *(f"Not installed: {name} ({error})." for name, error in setup.errors.items()),
        table(results),
        READING.strip(),
        "## Cases\n\n" + "\n".join(f"- **{case.name}**: {case.says}{_truth(case)}" for case, _ in results),
        "## Command lines\n\nAll of them with `OMP_NUM_THREADS=1`, in the repository's root; `$VENV` is "
        "the peers' environment, `$T` the folder of a case. The programs under `benchmarks/peers/` hold the calls of "
        "each tool's Python interface.\n\n" + _commands(results),
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
        culprits_named(case, row.places),
        culprits_named(case, row.first_places),
        named_attributes(case, row.attributes),
    )
    return (
        row.tool,
        row.verdict,
        row.location,
        row.first,
        row.attribute,
        *(counts if ran else ("-", "-", "-")),
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
