"""The legal-order envelope for the terminal: a row for all layers' nodes with one verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.envelope.report import Envelope, EnvelopedNode, OrderBand
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets, plain_table
from moeparity.output.words import percent

_WORDS = {"inside": "inside", "one_sided": "inside one way", "outside": "outside", "not_drawn": "not drawn"}


def _section(report: Report) -> Shown:
    if report.envelope is not None:
        yield "Legal orders", envelope_tables(report.envelope)


def envelope_tables(envelope: Envelope) -> RenderableType:
    """Rows, and what they mean."""
    if not envelope.nodes:
        return Group(bullets(envelope.reading))
    table = plain_table(
        "nodes",
        "differ",
        "of these inside",
        "furthest out",
        "a draw's own out",
        "verdict",
        names="op",
        names_first=True,
    )
    groups: dict[tuple[str, str], list[EnvelopedNode]] = {}
    for node in envelope.nodes:
        groups.setdefault((re.sub(r"\[\d+\]", "[*]", node.node), node.verdict), []).append(node)
    for (name, verdict), nodes in groups.items():
        bands = [node.reference for node in nodes if node.reference is not None]
        root = " (root)" * any(node.root for node in nodes)
        table.add_row(f"{name}{root}", str(len(nodes)), *_figures(bands), _WORDS[verdict])
    reasons = dict.fromkeys(node.not_drawn for node in envelope.nodes if node.not_drawn is not None)
    notes = [Text(f"not drawn: {reason}", style="dim") for reason in reasons]
    legend = (
        f"{envelope.draws} orders of the reference's sums, on its inputs, its dtypes and roundings kept. furthest out: "
        "in ulps at a row's greatest magnitude. a draw's own out: elements that one draw has outside the others' band, "
        "at most, of those compared."
    )
    return Group(table, Text(legend, style="dim"), *notes, bullets(envelope.reading))


def _figures(bands: Sequence[OrderBand]) -> tuple[str, ...]:
    if not bands:
        return ("", "", "", "")
    elements, differences = (sum(getattr(b, name) for b in bands) for name in ("elements", "differing"))
    outliers = sum(b.outside for b in bands)
    return (
        percent(differences / elements),
        percent(1 - outliers / differences) if differences else "",
        f"{max(b.furthest for b in bands):.2g} ulp" if outliers else "",
        percent(max(b.draws_outside / b.elements for b in bands)),
    )


SHOWN = {"envelope": _section}
