"""The replay ladder for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.replay.report import Replay
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import bullets, plain_table
from moeparity.output.words import of_whole, percent

NATURAL = "natural"
_NAMES = {
    NATURAL: "none (natural)",
    "ids": "ids",
    "ids+weights": "ids, weights",
    "ids+weights+order": "ids, weights, slot order",
}


def _section(report: Report) -> Shown:
    if report.replay is not None:
        yield "Replay ladder", replay_tables(report.replay)


def replay_tables(replay: Replay) -> RenderableType:
    """A row per rung, a row per toggle with and without forced ids, and what they mean."""
    if not replay.rungs:
        return Group(bullets(replay.reading))
    columns = ("KL", "k3", "mean |delta|", "max |delta|", "expert set differs", "slots differ")
    ladder = plain_table(*columns, names="taken from the reference", names_first=True)
    natural = replay.rungs[0].kl
    for rung in replay.rungs:
        values = (f"{rung.k3:.2e}", f"{rung.mean_abs_delta:.2e}", f"{rung.max_abs_delta:.3g}")
        flips = (percent(rung.set_flips), percent(rung.slot_flips))
        ladder.add_row(_NAMES[rung.forced], of_whole(rung.kl, natural), *values, *flips)
    if not replay.toggles:
        return Group(ladder, bullets(replay.reading))
    toggles = plain_table("alone: KL", "with ids forced", names="toggle", names_first=True)
    for toggle in replay.toggles:
        toggles.add_row(toggle.name, of_whole(toggle.alone, natural), of_whole(toggle.alone_forced, natural))
    note = Text("ids forced: every router takes the reference's experts and weights them itself.", style="dim")
    return Group(ladder, Text(), toggles, note, bullets(replay.reading))


SHOWN = {"replay": _section}
