"""Shares and fix sets for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.report import Report
from moeparity.bisection.run.report import Cost
from moeparity.bisection.sections import Shown
from moeparity.bisection.shares.report import Attribution, FixSetRow, InteractionRow, ShareRow, Shares
from moeparity.output.tables import plain_table
from moeparity.output.words import quantity
from moeparity.search.contrast import surely_above, surely_below

TOLD = 0.01
"""From this part of the KL on, an interaction is shown."""

MOST = 8
"""So many fix sets, and so many interactions, are shown; the JSON holds all."""

_NOTE = (
    "share: what a toggle adds to the KL, as a mean over {orders} of restoring; the shares add up to the whole.\n"
    "95%: of that part, over sequences. In brackets: how sure the profiles are, reference | candidate.\n"
    "alone, restored: as above, of the whole KL. {forced}role: see docs/attribution.md."
)
_NONE = "No shares"
_FORCED = "ids forced: its share of the whole KL\nwith every router forced to the reference's experts. "


def _shares(report: Report) -> Shown:
    if report.attribution is not None:
        yield from share_sections(report.attribution)


def _fix_sets(report: Report) -> Shown:
    if report.attribution is not None:
        yield from fix_sections(report.attribution)
        if report.attribution.mixtures:
            yield "Cost of the search", Text(search_cost(report.attribution.mixtures, report.cost))


def share_sections(attribution: Attribution) -> Iterator[tuple[str, RenderableType]]:
    """Title and body of each part that says who makes how much."""
    if attribution.shares.total is None:
        yield "KL waterfall", Text(f"{_NONE}: the candidate's KL is not finite, or an op refuses it as a mixture.")
    elif not attribution.shares.rows:
        yield "KL waterfall", Text(f"{_NONE}: in each order of restoring there is a mixture that an op refuses.")
    else:
        yield "KL waterfall", _waterfall(attribution.shares, attribution.forced)
    if attribution.inside is not None and any(row.depth for row in attribution.inside.rows):
        yield "Inside the largest shares", _inside(attribution.inside)
    # What is saturated takes the place of each other: every pair says so again.
    saturated = any(row.role == "saturated" for row in attribution.shares.rows)
    pairs = (
        [] if saturated else [pair for pair in attribution.interactions if _sure(pair, attribution.shares.total or 0.0)]
    )
    if pairs:
        yield "Interactions", _interactions(pairs, attribution.shares)


def fix_sections(attribution: Attribution) -> Iterator[tuple[str, RenderableType]]:
    """Title and body of the fixes."""
    if attribution.fixes:
        yield "Smallest fixes", _fixes(attribution)


def _waterfall(shares: Shares, forced: Shares | None) -> RenderableType:
    columns = ["share", "of KL", "95%", "k3", "alone", "restored"]
    without = {} if forced is None else {row.name: row for row in forced.rows}
    columns += ["ids forced", "role"] if without else ["role"]
    table = plain_table(*columns, names="toggle", names_first=True)
    total = shares.total or 0.0
    for row in shares.rows:
        cells = [_nats(row), part_words(row.of_whole), interval_words(row), _k3(row)]
        cells += [_of(row.alone, total), _of(row.restored, total)]
        cells += [_of(without[row.name].share, total)] if row.name in without else [""] * bool(without)
        table.add_row(_label(row), *cells, row.role)
    all_forced = [_of(forced.total, total)] if without and forced is not None else []
    table.add_row("whole", f"{total:.2e}", "100%", "", "", "", "", *all_forced, "", style="bold")
    note = _NOTE.format(orders=_orders(shares), forced=_FORCED if without else "")
    return Group(table, Text(f"{note}{_left_out(shares)}", style="dim"))


def _orders(shares: Shares) -> str:
    if not shares.exact:
        return f"{shares.orders} drawn orders"
    every = "the" if shares.left_out or shares.orders == 1 else "all"
    return f"{every} {quantity(shares.orders, 'order')}"


def _left_out(shares: Shares) -> str:
    if not shares.left_out:
        return ""
    singular = shares.left_out == 1
    orders, possessive = ("order is", "its") if singular else ("orders are", "their")
    return f"\n{shares.left_out} {orders} left out: on {possessive} way an op refuses a mixture, or a KL is not finite."


def _inside(shares: Shares) -> RenderableType:
    table = plain_table("of it", "+-", "alone", "restored", names="part", names_first=True)
    total, whole = shares.total or 0.0, 0.0
    is_open = False
    for row, successor in zip(shares.rows, [*shares.rows[1:], None], strict=True):
        if row.depth == 0:
            whole, is_open = row.share, successor is not None and successor.depth > 0
        if is_open and whole:
            error = "" if row.depth == 0 else part_words(abs(row.standard_error / whole))
            cells = [part_words(row.share / whole), error, _of(row.alone, total), _of(row.restored, total)]
            table.add_row("  " * row.depth + _label(row), *cells)
    error = "" if shares.exact else ", with the standard error of drawing"
    note = f"of it: of the toggle's own share, from {_orders(shares)}{error}; a part is taken apart where its share is."
    return Group(table, Text(f"{note}{_left_out(shares)}", style="dim"))


def _interactions(pairs: list[InteractionRow], shares: Shares) -> RenderableType:
    total, labels = shares.total or math.nan, {row.name: _label(row) for row in shares.rows}
    table = plain_table("in the reference", "in the candidate", names="together, beyond each", names_first=True)
    for pair in sorted(pairs, key=lambda pair: -abs(pair.in_reference or 0.0))[:MOST]:
        table.add_row(
            " and ".join(labels.get(name, name) for name in (pair.first, pair.second)),
            _of(pair.in_reference, total),
            _of(pair.in_candidate, total),
        )
    return table


def _fixes(attribution: Attribution) -> RenderableType:
    table = plain_table("KL", "k3, upper bound", "", names="restore", names_first=True)
    for fix in attribution.fixes[:MOST]:
        exact = "all bits" if fix.exact else f"{fix.kl:.2e}"
        toggles = [f"{name} ({level})" for name, level in zip(fix.toggles, fix.evidence, strict=True)]
        table.add_row("\nand ".join(toggles) or "nothing", exact, f"{fix.upper:.2e}", _note(fix))
    surplus = len(attribution.fixes) - MOST
    if surplus <= 0:
        return table
    return Group(table, Text(f"and {surplus} more, in the JSON", style="dim"))


def _note(fix: FixSetRow) -> str:
    if fix.spoiled_by:
        return "undone by restoring more"
    return "" if fix.minimal else "perhaps not minimal"


def search_cost(mixtures: int, cost: Cost) -> str:
    """What the searches ran beyond the bisection's own passes."""
    passes, separate_passes = (quantity(count, "pass") for count in (cost.search_passes, mixtures))
    return (
        f"{quantity(mixtures, 'mixture')} in {passes} over the weights, {cost.search_seconds:.1f} s, beyond what the "
        f"bisection saw; one by one they take {separate_passes}"
    )


def _sure(pair: InteractionRow, total: float) -> bool:
    """Above or below 0 by its interval, and not too small to be told."""
    if pair.in_reference is None or abs(pair.in_reference) < TOLD * total:
        return False
    interval = pair.in_reference_low, pair.in_reference_high
    return surely_above(interval) or surely_below(interval)


def _label(row: ShareRow) -> str:
    return f"{row.name} ({row.evidence})"


def _nats(row: ShareRow) -> str:
    return f"{row.share:.2e}"


def _k3(row: ShareRow) -> str:
    return "" if row.k3 is None else f"{row.k3:.2e}"


def interval_words(row: ShareRow) -> str:
    """The interval of a share of the whole; `unknown` where the sequences do not bound it."""
    low, high = row.of_whole_low, row.of_whole_high
    if not (math.isfinite(low) and math.isfinite(high)):
        return "unknown"
    return f"{part_words(low)} to {part_words(high)}"


def _of(value: float | None, total: float) -> str:
    if value is None:
        return "cannot run"
    return part_words(value / total) if total > 0 else f"{value:.2e}"


def part_words(value: float) -> str:
    """Whole percents, with a digit more where a part is small: its sign must not be lost."""
    if 0 < abs(value) < 5e-4:
        return "<0.1%" if value > 0 else ">-0.1%"
    return f"{value:.1%}" if 0 < abs(value) < 0.0095 else f"{value:.0%}"


SHOWN = {"attribution": _shares, "fixes": _fix_sets}
