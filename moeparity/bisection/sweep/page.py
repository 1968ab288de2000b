"""A Sweep as pictures: the gated metric and the flips at each of the swept values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from moeparity.bisection.report import Report
from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.bisection.sweep.text import gated, value_word
from moeparity.output.html.page import Block, PageSection
from moeparity.output.html.series import Line, Series, picture
from moeparity.output.status import unit
from moeparity.output.words import between, fitted, percent

_SHORT = 18
"""Characters of a swept value under the axis."""


def pictures(sweep: Sweep) -> PageSection | None:
    """The gated metric with its intervals and its gate, and which routes flip; None where no point could be run."""
    reports = [point.report for point in sweep.points]
    if not any(reports):
        return None
    return PageSection(
        key="swept", short="Swept", title="What does the swept value change?", blocks=[*_blocks(sweep, reports)]
    )


def _blocks(sweep: Sweep, reports: Sequence[Report | None]) -> Iterator[Block]:
    names = [", ".join(value_word(point.values[key]) for key in sweep.keys) for point in sweep.points]
    axis = ", ".join(sweep.keys)
    ticks = [fitted(name, _SHORT).split("\n")[0] for name in names]
    yield _gated(sweep, reports, axis, names, ticks)
    flips = [_flipped(report) for report in reports]
    if any(map(math.isfinite, flips)):
        words = [
            [name, "not known" if math.isnan(part) else f"{percent(part)} of tokens flip in some layer"]
            for name, part in zip(names, flips, strict=True)
        ]
        label = "tokens that flip"
        series = Series(
            name="flips", label="Tokens that flip, by point of the sweep", x=range(len(names)), ticks=ticks,
            x_label=axis, y_label="part of tokens", lines=[Line(label=label, values=flips, look="points")], words=words,
            reach=(0.0, 1.1 * max(filter(math.isfinite, flips)) or 1.0),
        )  # fmt: skip
        yield picture("Tokens with another expert set in some layer", series)


def _gated(
    sweep: Sweep, reports: Sequence[Report | None], axis: str, names: Sequence[str], ticks: Sequence[str]
) -> Block:
    values = [None if report is None else report.verdict.value for report in reports]
    first = next(report.verdict for report in reports if report is not None)
    metric = Line(
        label=f"{gated(sweep)}, with its {first.value.level:.0%} interval",
        look="points",
        values=[math.nan if value is None else value.estimate for value in values],
        low=[math.nan if value is None else value.low for value in values],
        high=[math.nan if value is None else value.high for value in values],
    )
    series = Series(
        name="swept",
        label=f"{gated(sweep)} by point of the sweep",
        x=range(len(names)),
        ticks=ticks,
        x_label=axis,
        y_label=f"{gated(sweep)}, {unit(first)}",
        lines=[metric],
        bound=(f"gate {first.below:g}", first.below),
        words=[_words(name, point) for name, point in zip(names, sweep.points, strict=True)],
    )
    return picture("Against the gate", series, "A point that could not be run has no mark; its line says why.")


def _words(name: str, point: Point) -> list[str]:
    if point.report is None:
        return [name, f"cannot run: {point.error}"]
    verdict, roots = point.report.verdict, point.report.roots
    value = verdict.value
    return [
        name,
        verdict.status,
        f"{value.estimate:.3g} {between(value.low, value.high)}",
        f"starts at {roots[0].node} ({roots[0].op})" if roots else "all bits equal",
    ]


def _flipped(report: Report | None) -> float:
    """The part of tokens that flip in some layer; NaN where none were compared."""
    if report is None or report.flips is None or not report.flips.tokens:
        return math.nan
    return report.flips.tokens_any_layer / report.flips.tokens
