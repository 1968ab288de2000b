"""Prints plans and op declarations; reports are rendered by `moeparity.report`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from moeparity.bisection.outline import Outline
from moeparity.errors import whole_number
from moeparity.numerics.orders import FORMS
from moeparity.ops.attribute import Attribute, Condition
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from moeparity.output.tables import Stacked, Words, plain_grid, word_table
from moeparity.output.words import printable

PIPED_WIDTH = 100
"""Columns when the output is no terminal and the environment names none (COLUMNS)."""
_EVIDENCE = (
    "evidence: how sure the profiles are of a value (docs/fidelity.md); "
    "unknown: none speaks of it, the op's default holds."
)
_AS_WRITTEN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""No word is read as a colour, and no `:leaves:` as a picture."""
_BLANKS = re.compile(r" +$", re.MULTILINE)


class _Printable(Console):
    """A console on which no text can command the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of what is printed; their styles become control sequences afterwards."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class _Piped(_Printable):
    """An output that is no terminal: what fills a table's lines up to its width is left out."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print the objects without blanks at the ends of lines."""
        with self.capture() as capture:
            super().print(*objects, **options)
        super().print(_BLANKS.sub("", capture.get()), end="", soft_wrap=True)


def console(stream: TextIO | None = None) -> Console:
    """A stream, standard output by default: the terminal's width, or a fixed one where there is no terminal."""
    stream = stream or sys.stdout
    if stream.isatty():
        return _Printable(file=stream, **_AS_WRITTEN)
    columns = whole_number(os.environ.get("COLUMNS", ""))
    return _Piped(file=stream, width=columns or PIPED_WIDTH, **_AS_WRITTEN)


def print_plan(outline: Outline, out: Console) -> None:
    """The bound plan, layers with equal settings on one line; attributes that take no effect are left out."""
    out.print(Text(outline.title, style="bold"))
    for side, schedule in zip(outline.sides, outline.schedules, strict=False):
        out.print(Words(f"schedule of the {side}: {schedule}"))
    columns = ", ".join(("attribute", *outline.sides, "evidence", "set by"))
    out.print(Words(f"below each node: {columns}", "dim"))
    for (nodes, op), rows in groupby(outline.rows, key=lambda row: (row.nodes, row.op)):
        out.print(Words(f"{nodes} ({op})", "bold"))
        table = plain_grid(len(outline.sides) + 3)
        for row in rows:
            # The heading says already what a rule for a whole op matches.
            origin = row.origin.replace(f" (op {row.op})", "")
            table.add_row(row.attribute, *row.values, row.evidence, origin, style="bold" if row.differs else "")
        out.print(Padding(table, (0, 0, 0, 2), expand=False))
    out.print(Text(_EVIDENCE, style="dim"))
    if outline.toggles is not None:
        out.print(Text(f"\n{len(outline.toggles)} toggles", style="bold"))
        toggles = Stacked("toggle", "class", "nodes")
        for t in outline.toggles:
            sides = (("reference", t.reference_changed_by), ("candidate", t.candidate_changed_by))
            change = [f"to change on the {side}: {by}" for side, by in sides if by]
            below = [f"{t.reference} -> {t.candidate}", *change]
            toggles.add_row(t.name, t.kind, str(len(t.nodes) or "all"), below=below)
        out.print(toggles)


def print_ops(out: Console) -> None:
    """All ops, a line each."""
    table = word_table("op", "attributes", "what it does")
    for op in OPS.values():
        table.add_row(op.name, ", ".join(a.name for a in op.attributes) or "-", op.says)
    out.print(table)


def print_op(op: Op, out: Console) -> None:
    """One op in full."""
    out.print(Text(op.name, style="bold"))
    out.print(f"{op.says}\nimitates: {op.source}\n")
    ports = word_table("", "name", "what")
    for port in op.inputs:
        ports.add_row("input", port, _read_when(op, port))
    for weight in op.weights:
        ports.add_row("weight", weight.name, weight.says + ("" if weight.required else " (optional)"))
    for parameter in op.parameters:
        note = "" if parameter.required else f" (default {parameter.default})"
        ports.add_row("parameter", parameter.name, parameter.says + note)
    out.print(ports)
    attributes = word_table("attribute", "class", "default", "allowed", "when", "what it decides")
    for a in op.attributes:
        attributes.add_row(a.name, a.kind, str(a.default), a.expected, _when(a), a.says)
    out.print()
    out.print(attributes if op.attributes else "no attributes: nothing about it can differ")
    if any(a.order for a in op.attributes):
        out.print()
        _print_orders(out)


def _print_orders(out: Console) -> None:
    """How a summation order is written."""
    out.print("An order is written in levels, `a | b`: what a leaves, b adds up. Every level also takes")
    out.print("accumulate=DTYPE (each addition is rounded to it) and round=DTYPE (so is what the level leaves).")
    levels = word_table("level", "words", "adds")
    for name, form in FORMS.items():
        numbers = [n.name if n.default is None else f"{n.name}={n.default or 'all'}" for n in form.numbers]
        arguments = ["(0+1)+2, ..."] if name == "tree" else numbers
        levels.add_row(f"{name}({', '.join(arguments)})" if arguments else name, ", ".join(form.words), form.says)
    out.print(levels)


def _read_when(op: Op, port: str) -> str:
    ways = [", ".join(_conditions(way)) for way in op.reads.get(port, ())]
    return "; or ".join((*["may be left out"] * (port in op.optional), *(f"read when {way}" for way in ways)))


def _conditions(condition: Condition) -> list[str]:
    words = ((name, [str(value) for value in values if value is not None]) for name, values in condition.items())
    return [f"{name} is {' or '.join(values)}" for name, values in words]


def _when(attribute: Attribute) -> str:
    conditions = _conditions(attribute.when)
    conditions += [f"parameter {attribute.parameter}"] if attribute.parameter else []
    conditions += [f"parameter {text}" for text in _conditions(attribute.when_parameters)]
    return ", ".join(conditions) or "always"
