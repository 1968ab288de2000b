"""Shares and fixes as tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.run.data import Cost
from moeparity.bisection.shares.data import Attribution, FixSetRow, InteractionRow, PlacesRow, ShareRow, Shares
from moeparity.bisection.shares.reading import TOLD, excludes_zero
from moeparity.output.blocks import Block, Group, Row, Styled, Table, columns, group, lines, notes, table
from moeparity.output.figures import Mark, Span, Strip, Strips, Whisker
from moeparity.output.words import quantity
from moeparity.plan.address import pattern

MOST = 8
"""At most this many fixes, and as many interactions, are shown; the JSON has all."""
_NONE = "No shares"
_PERCENT = 100.0
HALF = 0.5
"""Places that take at least this fraction of the KL away are told in the summary."""
_ROUNDED = {True: "left unquantised", False: "rounded as in the reference"}


def show(report: ReportData) -> Iterator[Group]:
    """The group of the KL divided among the toggles."""
    if report.attribution is not None:
        yield from share_groups(report.attribution)


def show_fixes(report: ReportData) -> Iterator[Group]:
    """The smallest fixes, and what the search cost."""
    attribution = report.attribution
    if attribution is None:
        return
    if attribution.fixes:
        yield group("Smallest fixes", _fixes(attribution))
    for places in attribution.places:
        if places.sets:
            yield group(f"{_ROUNDED[places.unquantised].capitalize()}, by {places.by}", *_places(places))
    if attribution.mixtures:
        yield group("Cost of the search", lines(search_cost(attribution.mixtures, report.cost)))


def share_groups(attribution: Attribution) -> Iterator[Group]:
    """All groups about shares."""
    if attribution.shares.total is None:
        reason = "the candidate's KL is not finite, or an op refuses to run the candidate in this search."
        yield group("KL waterfall", lines(f"{_NONE}: {reason}"))
    elif not attribution.shares.rows:
        reason = "in each order of restoring there is a mixture that an op refuses."
        yield group("KL waterfall", lines(f"{_NONE}: {reason}"))
    else:
        yield group("KL waterfall", _picture(attribution.shares), *_waterfall(attribution.shares, attribution.forced))
    if attribution.inside is not None and any(row.depth for row in attribution.inside.rows):
        yield group("Inside the largest shares", *_inside(attribution.inside))
    # Saturated toggles can replace each other, which every pair would say again.
    saturated = any(row.role == "saturated" for row in attribution.shares.rows)
    total = attribution.shares.total or 0.0
    pairs = [] if saturated else [pair for pair in attribution.interactions if _sure(pair, total)]
    if pairs:
        yield group("Interactions", _interactions(pairs, attribution.shares))


def _waterfall(shares: Shares, forced: Shares | None) -> Iterator[Block]:
    without = {} if forced is None else {row.name: row for row in forced.rows}
    titles = ["share", "of KL", "95%", "k3", "alone", "restored", *(["ids forced"] if without else []), "role"]
    total = shares.total or 0.0
    rows = []
    for row in shares.rows:
        cells = [_nats(row), part_words(row.of_whole), interval_words(row), _k3(row)]
        cells += [_of(row.alone, total), _of(row.restored, total)]
        cells += [_of(without[row.name].share, total)] if row.name in without else [""] * bool(without)
        rows.append(Row((_label(row), *cells, row.role)))
    all_forced = [_of(forced.total, total)] if without and forced is not None else []
    whole = ("whole", f"{total:.2e}", "100%", "", "", "", "", *all_forced, "")
    yield table(columns(*titles, first="toggle", words=("role",), optional=("k3",)), [*rows, Row(whole, style="bold")])
    in_words = "alone, restored: as above, of the whole KL."
    ids = "ids forced: its share of the whole KL with every router forced to the reference's experts."
    yield notes(
        f"share: what a toggle adds to the KL, as a mean over {_orders(shares)} of restoring; the shares add up to the "
        "whole.",
        "95%: of that part, over sequences. In brackets: how sure the profiles are, reference | candidate.",
        f"{in_words} {ids if without else ''} role: see docs/attribution.md.".replace("  ", " "),
        *_left_out(shares),
    )


def _orders(shares: Shares) -> str:
    if not shares.exact:
        return f"{shares.orders} drawn orders"
    every = "the" if shares.left_out or shares.orders == 1 else "all"
    return f"{every} {quantity(shares.orders, 'order')}"


def _left_out(shares: Shares) -> list[str]:
    if not shares.left_out:
        return []
    orders, possessive = ("order is", "its") if shares.left_out == 1 else ("orders are", "their")
    return [f"{shares.left_out} {orders} left out: on {possessive} way an op refuses a mixture, or a KL is not finite."]


def _inside(shares: Shares) -> Iterator[Block]:
    total, whole = shares.total or 0.0, 0.0
    is_open = False
    rows = []
    for row, successor in zip(shares.rows, [*shares.rows[1:], None], strict=True):
        if row.depth == 0:
            whole, is_open = row.share, successor is not None and successor.depth > 0
        if is_open and whole:
            error = "" if row.depth == 0 else part_words(abs(row.standard_error / whole))
            cells = [part_words(row.share / whole), error, _of(row.alone, total), _of(row.restored, total)]
            rows.append(("  " * row.depth + _label(row), *cells))
    error = "" if shares.exact else ", with the standard error of drawing"
    yield table(columns("of it", "+-", "alone", "restored", first="part"), rows)
    yield notes(
        f"of it: the part's percent of its toggle's share, from {_orders(shares)}{error}; large parts are divided "
        "again.",
        *_left_out(shares),
    )


def _interactions(pairs: list[InteractionRow], shares: Shares) -> Table:
    total, labels = shares.total or math.nan, {row.name: _label(row) for row in shares.rows}
    rows = [
        (
            " and ".join(labels.get(name, name) for name in (pair.first, pair.second)),
            _of(pair.in_reference, total),
            _of(pair.in_candidate, total),
        )
        for pair in sorted(pairs, key=lambda pair: -abs(pair.in_reference or 0.0))[:MOST]
    ]
    unit = "percent of the whole KL" if total > 0 else "nats per token"
    note = (
        f"What both together cost beyond each alone, in {unit}; all others as in the reference or as in the candidate."
    )
    return table(columns("in the reference", "in the candidate", first="pair"), rows, Styled(note, "dim"))


def _fixes(attribution: Attribution) -> Table:
    rows = []
    for fix in attribution.fixes[:MOST]:
        exact = "all bits" if fix.exact else f"{fix.kl:.2e}"
        toggles = [f"{name} ({level})" for name, level in zip(fix.toggles, fix.evidence, strict=True)]
        rows.append(("\nand ".join(toggles) or "nothing", exact, f"{fix.upper:.2e}", _note(fix)))
    surplus = len(attribution.fixes) - MOST
    more = [Styled(f"and {surplus} more, in the JSON", "dim")] if surplus > 0 else []
    return table(columns("KL", "k3, upper bound", "", first="restore", words=("",)), rows, *more)


def _places(places: PlacesRow) -> Iterator[Block]:
    shown = places.sets if len(places.sets) <= MOST else (*places.sets[: MOST - 1], places.sets[-1])
    rows = [
        (
            pattern(row.places),
            "all bits" if row.exact else f"{row.kl:.2e}",
            part_words(row.gone),
            _bounds_words(row.gone_low, row.gone_high),
            f"{row.upper:.2e}",
            "" if row.best else "perhaps not the best",
        )
        for row in shown
    ]
    heads = columns("KL", "gone", "95%", "k3, upper bound", "", first=places.by, words=("",))
    surplus = len(places.sets) - len(shown)
    yield table(heads, rows, *([Styled(f"and {surplus} more, in the JSON", "dim")] if surplus else []))
    yield notes(
        f"Each row was run: these are {_ROUNDED[places.unquantised]}, everything else is as in the candidate; of every "
        "number, those that leave least. gone: of the whole KL."
    )


def place_words(attribution: Attribution | None) -> str:
    """The fewest places, by op and by layer, that take at least half of the KL away, and by how much; "" without any
    that are not all of them.
    """
    return ", ".join(filter(None, map(_fewest, attribution.places))) if attribution is not None else ""


def _fewest(places: PlacesRow) -> str:
    enough = [row for row in places.sets[:-1] if row.gone >= HALF]
    if not enough:
        return ""
    row = enough[0]
    bounds = _bounds_words(row.gone_low, row.gone_high)
    return f"{pattern(row.places)} {_ROUNDED[places.unquantised]} removes {part_words(row.gone)} ({bounds})"


def _note(fix: FixSetRow) -> str:
    if fix.spoiled_by:
        return "undone by restoring more"
    return "" if fix.minimal else "perhaps not minimal"


def search_cost(mixtures: int, cost: Cost) -> str:
    """What the searches ran beyond the bisection's own passes, in words."""
    passes, separate_passes = (quantity(count, "pass") for count in (cost.search_passes, mixtures))
    return (
        f"{quantity(mixtures, 'mixture')} in {passes} over the weights, {cost.search_seconds:.1f} s, beyond what the "
        f"bisection saw; one by one they take {separate_passes}"
    )


def _sure(pair: InteractionRow, total: float) -> bool:
    """Whether the interval excludes 0 and the interaction is large enough to be told."""
    if pair.in_reference is None or abs(pair.in_reference) < TOLD * total:
        return False
    return excludes_zero((pair.in_reference_low, pair.in_reference_high))


def _label(row: ShareRow) -> str:
    return f"{row.name} ({row.evidence})"


def _nats(row: ShareRow) -> str:
    return f"{row.share:.2e}"


def _k3(row: ShareRow) -> str:
    return "" if row.k3 is None else f"{row.k3:.2e}"


def interval_words(row: ShareRow) -> str:
    """The interval of a share of the whole; `unknown` if the sequences do not bound it."""
    return _bounds_words(row.of_whole_low, row.of_whole_high)


def _bounds_words(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "unknown"
    return f"{part_words(low)} to {part_words(high)}"


def _of(value: float | None, total: float) -> str:
    if value is None:
        return "cannot run"
    return part_words(value / total) if total > 0 else f"{value:.2e}"


def part_words(value: float) -> str:
    """Whole percents; one more digit for a small value, so that its sign stays visible."""
    if 0 < abs(value) < 5e-4:
        return "<0.1%" if value > 0 else ">-0.1%"
    return f"{value:.1%}" if 0 < abs(value) < 0.0095 else f"{value:.0%}"


def _picture(shares: Shares) -> Strips | None:
    """A figure in which each share begins where the one before ends."""
    if not shares.total:
        return None
    rows = [row for row in shares.rows if row.depth == 0 and row.role != "had no effect"]
    starts = [_PERCENT * sum(row.of_whole for row in rows[:place]) for place in range(len(rows))]
    whole = Strip(
        name="whole",
        marks=[Span(0.0, _PERCENT, "role-whole")],
        look="whole",
    )
    return Strips(
        title="Shares of the KL",
        strips=[*(_strip(start, row) for start, row in zip(starts, rows, strict=True)), whole],
        over=[
            *(start + _PERCENT * part for start, row in zip(starts, rows, strict=True) for part in _ends(row)),
            _PERCENT,
        ],
        unit="% of the KL",
        digits="g",
        note="Bars: the share of each toggle, from where the one above ends, in percent of the whole KL. Lines: its "
        "95% interval, where there is one.",
    )


def _ends(row: ShareRow) -> list[float]:
    return [part for part in (0.0, row.of_whole, row.of_whole_low, row.of_whole_high) if math.isfinite(part)]


def _strip(start: float, row: ShareRow) -> Strip:
    marks: list[Mark] = [Span(start, start + _PERCENT * row.of_whole, f"role-{row.role.replace(' ', '-')}")]
    if math.isfinite(row.of_whole_low) or math.isfinite(row.of_whole_high):
        marks.append(Whisker(start + _PERCENT * row.of_whole_low, start + _PERCENT * row.of_whole_high))
    return Strip(
        name=row.name,
        says=f"{row.role}; {row.evidence}",
        marks=marks,
    )
