"""The console on which commands print, and blocks for plans and op declarations."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from moeparity.bisection.outline import Outline
from moeparity.errors import whole_number
from moeparity.inputs.weights.formats import FORMATS, RANGES, Format
from moeparity.numerics.orders import FORMS
from moeparity.ops.attribute import Attribute, Condition
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from moeparity.output.blocks import (
    Block,
    Column,
    Row,
    Styled,
    Table,
    columns,
    group,
    lines,
    notes,
    stacked,
    table,
)
from moeparity.output.terminal import print_blocks
from moeparity.output.words import printable
from moeparity.plan.toggles import Toggle

PIPED_WIDTH = 100
"""The width in characters if the output is not a terminal and COLUMNS is not set."""
_EVIDENCE = (
    "evidence: how sure the profiles are of a value (docs/fidelity.md); "
    "unknown: none speaks of it, the op's default holds."
)
_AS_WRITTEN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
"""Options of rich that print words as they are: no markup for colours, no `:name:` as a picture."""
_BLANKS = re.compile(r" +$", re.MULTILINE)


class _Printable(Console):
    """A console that no printed text can control."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments to print; their styles become control sequences after this check."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


class _Piped(_Printable):
    """A console for an output that is not a terminal: blanks that pad a table's lines are left out."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print the objects without blanks at the ends of lines."""
        with self.capture() as capture:
            super().print(*objects, **options)
        super().print(_BLANKS.sub("", capture.get()), end="", soft_wrap=True)


def console(stream: TextIO | None = None) -> Console:
    """A console for a stream (default: standard output), as wide as the terminal, or of a fixed width without one."""
    stream = stream or sys.stdout
    if stream.isatty():
        return _Printable(file=stream, **_AS_WRITTEN)
    columns = whole_number(os.environ.get("COLUMNS", ""))
    return _Piped(file=stream, width=columns or PIPED_WIDTH, **_AS_WRITTEN)


def show(blocks: Iterable[Block]) -> None:
    """Print blocks on standard output."""
    print_blocks(blocks, console())


def plan_blocks(outline: Outline) -> Iterator[Block]:
    """The bound plan, with layers of equal settings on one line; attributes without effect are left out."""
    yield lines(Styled(outline.title, "bold"))
    schedules = zip(outline.sides, outline.schedules, strict=False)
    yield lines(*(f"schedule of the {side}: {schedule}" for side, schedule in schedules))
    titles = ", ".join(("attribute", *outline.sides, "evidence", "set by"))
    yield notes(f"below each node: {titles}")
    for (nodes, op), rows in groupby(outline.rows, key=lambda row: (row.nodes, row.op)):
        settings = []
        for row in rows:
            # The heading already names the op that a rule for a whole op matches.
            origin = row.origin.replace(f" (op {row.op})", "")
            cells = (f"  {row.attribute}", *row.values, row.evidence, origin)
            settings.append(Row(cells, style="bold" if row.differs else ""))
        yield lines(Styled(f"{nodes} ({op})", "bold"))
        yield table([Column("", "name")] * (len(outline.sides) + 3), settings)
    yield notes(_EVIDENCE)
    if outline.toggles is not None:
        yield group(f"{len(outline.toggles)} toggles", _toggles(outline.toggles))


def _toggles(toggles: Sequence[Toggle]) -> Table:
    rows = []
    for t in toggles:
        sides = (("reference", t.reference_changed_by), ("candidate", t.candidate_changed_by))
        change = [f"to have the other's on the {side}: {by}" for side, by in sides if by]
        below = (f"{t.reference} -> {t.candidate}", *change)
        rows.append(Row((t.name, t.kind, str(len(t.nodes) or "all")), below))
    return stacked(columns("class", "nodes", first="toggle", words=("class",)), rows)


def format_list() -> Block:
    """All formats of quantised weights, one per line."""
    rows = [
        (form.name, ", ".join(filter(None, form.methods)), form.code, form.rule, form.evidence)
        for form in FORMATS.values()
    ]
    return table([Column(title, "name") for title in ("format", "quant_method", "codes", "number", "evidence")], rows)


def format_blocks(form: Format) -> Iterator[Block]:
    """One format in full."""
    relation = "held to" if form.evidence == "verified" else "read from"
    yield lines(Styled(form.name, "bold"), f"number: {form.rule}", f"{form.evidence}: {relation} {form.held_to}", "")
    dtypes = {"values": form.stored, "scales": ", ".join(form.scale_dtypes), "zeros": f"as {form.zero_packing}"}
    rows = [(role, f"NAME{ending}", dtypes.get(role, "")) for role, ending in form.names.items()]
    yield table([Column(title, "name") for title in ("holds", "tensor", "stored as")], rows)
    packed = f"{form.code}, {form.packing}; {RANGES[form.code]}"
    shared = f"{form.group} inputs share a scale" if form.group else "config.json says what shares a scale"
    order = "[inputs, outputs]" if form.input_major else "[outputs, inputs]"
    yield lines("", f"codes: {packed}", f"{shared}; stored as {order}")


def op_list() -> Block:
    """All ops, one per line."""
    rows = [(op.name, ", ".join(a.name for a in op.attributes) or "-", op.says) for op in OPS.values()]
    return table([Column(title, "name") for title in ("op", "attributes", "what it does")], rows)


def op_blocks(op: Op) -> Iterator[Block]:
    """One op in full."""
    yield lines(Styled(op.name, "bold"), op.says, f"imitates: {op.source}", "")
    ports = [("input", port, _read_when(op, port)) for port in op.inputs]
    ports += [("weight", w.name, w.says + ("" if w.required else " (optional)")) for w in op.weights]
    ports += [] if op.tokens.state is None else [("state", "", op.tokens.state.says)]
    ports += [("parameter", p.name, p.says + ("" if p.required else f" (default {p.default})")) for p in op.parameters]
    yield table([Column(title, "name") for title in ("", "name", "what")], ports)
    if not op.attributes:
        yield lines("", "no attributes: nothing about it can differ")
        return
    titles = ("attribute", "class", "default", "allowed", "when", "what it decides")
    attributes = [(a.name, a.kind, str(a.default), a.expected, _when(a), a.says) for a in op.attributes]
    yield lines("")
    yield table([Column(title, "name") for title in titles], attributes)
    if any(a.order for a in op.attributes):
        yield from _orders()


def _orders() -> Iterator[Block]:
    """How a summation order is written."""
    yield lines(
        "",
        "An order is written in levels, `a | b`: what a leaves, b adds up. Every level also takes accumulate=DTYPE "
        "(each addition is rounded to it) and round=DTYPE (so is what the level leaves).",
    )
    levels = []
    for name, form in FORMS.items():
        numbers = [n.name if n.default is None else f"{n.name}={n.default or 'all'}" for n in form.numbers]
        arguments = ["(0+1)+2, ..."] if name == "tree" else numbers
        levels.append((f"{name}({', '.join(arguments)})" if arguments else name, ", ".join(form.words), form.says))
    yield table([Column(title, "name") for title in ("level", "words", "adds")], levels)


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
