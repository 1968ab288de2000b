"""A recorded candidate, for the terminal."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.bisection.trace.report import Traced
from moeparity.output.tables import Words, bullets, plain_grid, plain_table, thinned
from moeparity.output.words import of_whole, quantity


def _section(report: Report) -> Shown:
    traced = report.trace
    if traced is None:
        return
    yield "Trace", Group(_head(traced), bullets(traced.reading))
    if traced.segments:
        yield "By grafts", _segments(traced)


def _head(traced: Traced) -> RenderableType:
    table = plain_grid(2)
    shown = f"{traced.tokens} of {quantity(traced.real_tokens, 'token')}"
    table.add_row("", "program", f"{traced.program}, {shown}, forwards: {traced.forwards}")
    table.add_row("", "nodes", f"{traced.shown} of {traced.nodes} shown")
    if traced.unknown:
        table.add_row("", "unknown", traced.unknown)
    return table


def _segments(traced: Traced) -> RenderableType:
    table = plain_table("made: KL", "95 % interval", "so far: KL", "own roots", names="segment", names_first=True)
    whole = traced.segments[-1].kl
    rows, note = thinned(traced.segments, {i for i, segment in enumerate(traced.segments) if segment.roots})
    for segment in rows:
        interval = f"[{segment.low:.2g}, {segment.high:.2g}]" if math.isfinite(segment.high - segment.low) else "none"
        roots = str(segment.roots) if segment.roots else ""
        table.add_row(segment.name, of_whole(segment.made, whole), interval, of_whole(segment.kl, whole), roots)
    routes = [
        Words(f"recorded {routes.forced.replace('+', ', ')} forced upon the reference: KL {of_whole(routes.kl, whole)}")
        for routes in traced.routes
    ]
    says = Words(
        "so far: KL(trial || reference), the trial being the reference that goes on from what was recorded behind this "
        "segment, nats per token; made: that less the same of the segment before. own roots: nodes with other bits "
        "than the reference gives on the recorded inputs.",
        style="dim",
    )
    return Group(table, *note, *routes, says)


SHOWN = {"trace": _section}
