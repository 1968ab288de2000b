"""The floor and the oracle for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.floor.report import Floor, Oracle
from moeparity.output.tables import bullets, plain_table


def floor_table(found: Floor, metric: str) -> RenderableType:
    """One row per trial, and what they mean."""
    table = plain_table(metric, "flips", names="the reference against itself, with", names_first=True)
    for trial in found.trials:
        value = "bit-identical" if trial.bit_identical else f"{trial.value.estimate:.2e}"
        flips = "" if trial.bit_identical or trial.flipped_routes is None else f"{trial.flipped_routes:.2%}"
        table.add_row(trial.name, value, flips)
    return Group(table, bullets(found.reading)) if found.trials else Group(bullets(found.reading))


def oracle_table(found: Oracle) -> RenderableType:
    """One row per layer with both sides' distances, and which side is nearer."""
    table = plain_table("reference", "candidate", "ratio", names="distance from fp64 after", names_first=True)
    for node in found.layers:
        table.add_row(
            node.node, f"{node.reference.relative_l2:.2e}", f"{node.candidate.relative_l2:.2e}", f"{node.ratio:.2f}"
        )
    note = Text("relative L2 of carried values; ratio: candidate over reference.", style="dim")
    return Group(table, note, bullets([found.reading]))
