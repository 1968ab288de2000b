"""A Report in a notebook: the summary as a small piece of HTML, and the tables as pandas frames (`moeparity[pandas]`).

The HTML has no colours of its own, so that it is read on light and on dark; every word in it is the text report's.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console

from moeparity.bisection.report import Report
from moeparity.bisection.summary.text import lines
from moeparity.bisection.text import print_report
from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.output.words import printable

if TYPE_CHECKING:
    import pandas as pd

WIDTH = 100
"""Columns of the text report inside."""
_CELL = "text-align:left;vertical-align:top;padding:0.1em 1em 0.1em 0"
Rows = Iterable[object]


def html(report: Report) -> str:
    """The seven lines of the summary, and the text report behind a line that unfolds it."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL}">{_escaped(word)}</th><td style="{_CELL}">{_escaped(line)}</td></tr>'
        for word, line in lines(report)
    )
    text = io.StringIO()
    print_report(report, Console(file=text, width=WIDTH, markup=False, highlight=False, emoji=False))
    return (
        f'<div class="moeparity-report"><table style="border-collapse:collapse">{rows}</table>'
        f"<details><summary>the whole report</summary>"
        f'<pre style="white-space:pre;overflow-x:auto">{_escaped(_unpadded(text.getvalue()))}</pre></details></div>'
    )


def frame(report: Report, name: str) -> pd.DataFrame:
    """A table of the report with a row for each of its entries; fields of entries within are columns `alone.kl`.

    Numbers are as in the report: NaN and infinities stay. Raises MoeparityError for a name that is no table, a table
    that this report does not have, and without pandas.
    """
    if name not in FRAMES:
        raise MoeparityError(f"frame {name!r}: expected one of {listed(FRAMES)}.{did_you_mean(name, FRAMES)}")
    rows = FRAMES[name](report)
    if rows is None:
        raise MoeparityError(f"frame {name!r}: this report has none; its recipe does not ask for it.")
    try:
        import pandas as pd
    except ImportError:
        raise MoeparityError(f"frame {name!r}: frames need pandas; pip install 'moeparity[pandas]'.") from None
    return pd.DataFrame([dict(_columns(row)) for row in rows])


def _roots(report: Report) -> Rows:
    """A row for each choice of each root."""
    for root in report.roots:
        whole = {key: value for key, value in _columns(root) if key != "choices"}
        for choice in root.choices or (None,):
            yield whole | ({} if choice is None else {f"choice.{key}": value for key, value in _columns(choice)})


FRAMES: Mapping[str, Callable[[Report], Rows | None]] = {
    "metrics": lambda report: [report.metrics],
    "roots": _roots,
    "growth": lambda report: report.growth,
    "nodes": lambda report: report.nodes,
    "flips": lambda report: None if report.flips is None else report.flips.layers,
    "toggles": lambda report: report.toggles,
    "swaps": lambda report: report.swaps,
    "shares": lambda report: None if report.attribution is None else report.attribution.shares.rows,
    "fixes": lambda report: None if report.attribution is None else report.attribution.fixes,
    "classes": lambda report: report.classes,
}
"""The tables, and their rows; None where the recipe did not ask for them."""


def _columns(row: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of an entry, those of entries within it behind their name; several words are one text."""
    if isinstance(row, dict):
        yield from row.items()
        return
    assert is_dataclass(row)
    for field in fields(row):
        value = getattr(row, field.name)
        if is_dataclass(value):
            yield from _columns(value, f"{prefix}{field.name}.")
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            yield f"{prefix}{field.name}", ", ".join(value)
        else:
            yield f"{prefix}{field.name}", value


def _unpadded(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


def _escaped(text: str) -> str:
    return escape(printable(text))
