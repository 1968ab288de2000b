"""Both sides against the oracle, for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.oracle.report import Oracle
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets, plain_table


def _section(report: Report) -> Shown:
    if report.oracle is not None:
        yield "Against the oracle", oracle_table(report.oracle)


def oracle_table(oracle: Oracle) -> RenderableType:
    """One row per layer with both sides' distances, and which side is nearer."""
    table = plain_table("reference", "candidate", "ratio", names="distance from fp64 after", names_first=True)
    for node in oracle.layers:
        table.add_row(
            node.node, f"{node.reference.relative_l2:.2e}", f"{node.candidate.relative_l2:.2e}", f"{node.ratio:.2f}"
        )
    note = Text("relative L2 of carried values; ratio: candidate over reference.", style="dim")
    return Group(table, note, bullets([oracle.reading]))


SHOWN = {"oracle": _section}
