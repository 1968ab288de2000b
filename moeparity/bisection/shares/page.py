"""The KL waterfall as a picture: each share begins where the one before ends."""

from __future__ import annotations

import math
from collections.abc import Iterator

from markupsafe import Markup

from moeparity.bisection.report import Report
from moeparity.bisection.sections import Figures
from moeparity.bisection.shares.report import ShareRow, Shares
from moeparity.bisection.shares.text import interval_words, part_words
from moeparity.output.html.markup import tag
from moeparity.output.html.page import Block
from moeparity.output.html.strips import Scale, axis, bar, strip, whisker

_PERCENT = 100.0


def _waterfall(report: Report) -> Figures:
    if report.attribution is None or not report.attribution.shares.rows or not report.attribution.shares.total:
        return
    shares = report.attribution.shares
    rows = [row for row in shares.rows if row.depth == 0 and row.role != "had no effect"]
    ends = [value for start, row in _starts(rows) for value in _span(start, row)]
    scale = Scale.over([*ends, _PERCENT])
    lines = [_line(start, row, scale) for start, row in _starts(rows)]
    lines.append(_whole(shares, scale))
    note = (
        "Bars: the share of each toggle, from where the one above ends, in percent of the whole KL. Lines: its 95% "
        "interval, where there is one."
    )
    table = tag("table", tag("tbody", lines), class_="bars")
    yield Block(title="Shares of the KL", body=table + axis(scale, "% of the KL", "g") + tag("p", note, class_="t-dim"))


def _starts(rows: list[ShareRow]) -> Iterator[tuple[float, ShareRow]]:
    start = 0.0
    for row in rows:
        yield start, row
        start += _PERCENT * row.of_whole


def _span(start: float, row: ShareRow) -> list[float]:
    parts = (0.0, row.of_whole, row.of_whole_low, row.of_whole_high)
    return [start + _PERCENT * part for part in parts if math.isfinite(part)]


def _line(start: float, row: ShareRow, scale: Scale) -> Markup:
    look = f"role-{row.role.replace(' ', '-')}"
    parts = [bar(scale, start, start + _PERCENT * row.of_whole, look)]
    bounded = math.isfinite(row.of_whole_low) or math.isfinite(row.of_whole_high)
    if bounded:
        parts.append(whisker(scale, start + _PERCENT * row.of_whole_low, start + _PERCENT * row.of_whole_high))
    number = [tag("b", part_words(row.of_whole)), tag("small", f"95%: {interval_words(row)}")]
    name = [tag("span", row.name, class_="name"), tag("small", f"{row.role}; {row.evidence}")]
    return tag(
        "tr", [tag("th", name, scope="row"), tag("td", strip(parts), class_="drawn"), tag("td", number, class_="num")]
    )


def _whole(shares: Shares, scale: Scale) -> Markup:
    number = [tag("b", "100%"), tag("small", f"{shares.total or 0.0:.2e} nats per token")]
    cells = [
        tag("th", tag("span", "whole", class_="name"), scope="row"),
        tag("td", strip([bar(scale, 0.0, _PERCENT, "role-whole")]), class_="drawn"),
        tag("td", number, class_="num"),
    ]
    return tag("tr", cells, class_="whole")


FIGURES = {"attribution": _waterfall}
