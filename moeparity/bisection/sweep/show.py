"""A sweep as shown: a row for each point, and figures of the gate's metric and of flips over the swept values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from moeparity.bisection.report import Report
from moeparity.bisection.run.show import checkpoint, machine
from moeparity.bisection.sweep.report import Point, Sweep
from moeparity.errors import shown
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import EXIT_CODES
from moeparity.output.blocks import (
    Block,
    Cell,
    Document,
    Group,
    Row,
    Status,
    Styled,
    Table,
    columns,
    group,
    lines,
    names,
    notes,
    stacked,
    warnings,
)
from moeparity.output.figures import Line, Series
from moeparity.output.status import STYLE, state_of, status, unit
from moeparity.output.words import between, fitted, percent, quantity

_SHORT = 18
"""At most this many characters of a swept value stand under the axis."""
_CANNOT = "cannot run"


def document(sweep: Sweep) -> Document:
    """What was swept, and a row for each point."""
    return Document(command="sweep", subject=sweep.recipe, blocks=tuple(_blocks(sweep)))


def _blocks(sweep: Sweep) -> Iterator[Block]:
    reports = [point.report for point in sweep.points if point.report is not None]
    yield Status(state_of(sweep.exit_code), _status(sweep))
    yield _head(sweep, reports)
    yield from warnings(dict.fromkeys(warning for report in reports for warning in report.warnings))
    yield group("", lines(""), _table(sweep), lines("") if reports else None)
    sides = Counter(record.side for report in reports for record in report.records if record.contradicts)
    for side, count in sides.items():
        yield lines(f"In {count} of {quantity(len(reports), 'point')} the {side} does not reproduce the record.")
    if reports:
        verdict = reports[0].verdict
        yield notes(
            f"{gated(sweep)}: {unit(verdict)}, with its {verdict.value.level:.0%} interval. KL(candidate || reference) "
            "over the vocabulary in nats per token.",
            "flips: tokens with another expert set in some layer, then token-layers.",
        )
        yield _pictures(sweep)


def _status(sweep: Sweep) -> str:
    """How many points have which verdict."""
    counts = Counter(_CANNOT if point.report is None else point.report.verdict.status for point in sweep.points)
    words = ", ".join(f"{counts[word]} {word}" for word in (*EXIT_CODES, _CANNOT) if counts[word])
    verdict = next((point.report.verdict for point in sweep.points if point.report is not None), None)
    gate = "no gate" if verdict is None else f"gate {gated_name(verdict.metric)} {verdict.below:g}"
    return status(f"{quantity(len(sweep.points), 'point')}: {words}", gate, sweep.exit_code)


def gated(sweep: Sweep) -> str:
    """The metric that the gate bounds; k3, the default, if no point ran."""
    return next((gated_name(point.report.verdict.metric) for point in sweep.points if point.report is not None), "k3")


def _head(sweep: Sweep, reports: Sequence[Report]) -> Table:
    rows: list[tuple[Cell, ...]] = [("recipe", sweep.recipe)]
    if reports:
        verdict = reports[0].verdict
        rows += [("checkpoint", checkpoint(reports[0].run)), ("machine", machine(reports[0].run))]
        rows.append(("gate", f"{gated_name(verdict.metric)} below {verdict.below:g} per {verdict.reduce}"))
    return names(rows)


def _table(sweep: Sweep) -> Table:
    of = columns("verdict", gated(sweep), "KL", "flips", first=", ".join(sweep.keys), words=("verdict",))
    return stacked(of, [_row(sweep, point) for point in sweep.points])


def _row(sweep: Sweep, point: Point) -> Row:
    """Verdict, gate's metric, KL and flips, and below them where it starts; or why the point could not run."""
    name, report = _name(sweep, point), point.report
    if report is None:
        return Row((name, Styled(_CANNOT, "bold red"), "", "", ""), (str(point.error),))
    value, flips, roots = report.verdict.value, report.flips, report.roots
    metric = f"{_number(value.estimate)} {_between(value.low, value.high)}" if roots else "all bits equal"
    flipped = "" if flips is None else f"{percent(flips.tokens_any_layer / flips.tokens)} {_of_layers(report)}"
    cells: tuple[Cell, ...] = (
        name,
        Styled(report.verdict.status, STYLE[report.verdict.status]),
        metric,
        _number(report.metrics.kl),
        flipped,
    )
    return Row(cells, (f"starts at {roots[0].node} ({roots[0].op})" if roots else "starts nowhere",))


def _of_layers(report: Report) -> str:
    layers = () if report.flips is None else report.flips.layers
    return percent(sum(layer.set_flips for layer in layers) / sum(layer.tokens for layer in layers))


def _name(sweep: Sweep, point: Point) -> str:
    return ", ".join(value_word(point.values[key]) for key in sweep.keys)


def _between(low: float, high: float) -> str:
    return between(low, high) if math.isinf(low) and math.isinf(high) else f"{_number(low)}..{_number(high)}"


def _number(value: float) -> str:
    return f"{value:.2e}" if value else "0"


def value_word(value: str | float | bool | None) -> str:
    """A value as a recipe writes it."""
    return shown(value) if value is None or isinstance(value, bool) else str(value)


def _pictures(sweep: Sweep) -> Group:
    """The gated metric with its intervals and its gate, and which routes flip."""
    point_names = [_name(sweep, point) for point in sweep.points]
    ticks = [fitted(name, _SHORT).split("\n")[0] for name in point_names]
    flips = _flips(sweep, point_names, ticks)
    return group("What does the swept value change?", _metric(sweep, point_names, ticks), flips)


def _metric(sweep: Sweep, point_names: Sequence[str], ticks: Sequence[str]) -> Series:
    reports = [point.report for point in sweep.points]
    values = [None if report is None else report.verdict.value for report in reports]
    first = next(report.verdict for report in reports if report is not None)
    metric = Line(
        label=f"{gated(sweep)}, with its {first.value.level:.0%} interval",
        look="points",
        values=[math.nan if value is None else value.estimate for value in values],
        low=[math.nan if value is None else value.low for value in values],
        high=[math.nan if value is None else value.high for value in values],
    )
    return Series(
        title="Against the gate",
        name="swept",
        label=f"{gated(sweep)} by point of the sweep",
        x=range(len(ticks)),
        ticks=ticks,
        x_label=", ".join(sweep.keys),
        y_label=f"{gated(sweep)}, {unit(first)}",
        lines=[metric],
        bound=(f"gate {first.below:g}", first.below),
        words=[_words(name, point) for name, point in zip(point_names, sweep.points, strict=True)],
        note="A point that could not be run has no mark; its line says why.",
    )


def _flips(sweep: Sweep, point_names: Sequence[str], ticks: Sequence[str]) -> Series | None:
    """The fraction of tokens that flip in some layer; None if none were compared."""
    flips = [_flipped(point.report) for point in sweep.points]
    if not any(map(math.isfinite, flips)):
        return None
    words = [
        [name, "not known" if math.isnan(part) else f"{percent(part)} of tokens flip in some layer"]
        for name, part in zip(point_names, flips, strict=True)
    ]
    return Series(
        title="Tokens with another expert set in some layer",
        name="flips",
        label="Tokens that flip, by point of the sweep",
        x=range(len(ticks)),
        ticks=ticks,
        x_label=", ".join(sweep.keys),
        y_label="fraction of tokens",
        lines=[Line(label="tokens that flip", values=flips, look="points")],
        words=words,
        reach=(0.0, 1.1 * max(filter(math.isfinite, flips)) or 1.0),
    )


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
    if report is None or report.flips is None or not report.flips.tokens:
        return math.nan
    return report.flips.tokens_any_layer / report.flips.tokens
