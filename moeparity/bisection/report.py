"""`Report`: a bisection's report with its JSON, its page, its display in a notebook, and its tables as pandas
frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeparity.bisection.data import ReportData
from moeparity.bisection.sections import document, screen
from moeparity.errors import MoeparityError, did_you_mean, listed
from moeparity.output.html.page import html
from moeparity.output.json import to_json
from moeparity.output.notebook import columns, notebook

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "moeparity.report/3"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""
Rows = Iterable[object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(ReportData):
    """Everything one bisection found; its fields are the keys of the JSON."""

    @property
    def exit_code(self) -> int:
        """0 parity, 1 divergence, 3 inconclusive."""
        return self.verdict.exit_code

    def to_json(self) -> str:
        """The report as strict JSON: NaN and infinities are written as the words nan, inf and -inf."""
        return to_json(SCHEMA, self)

    def to_html(self) -> str:
        """The report as one HTML page with figures; it opens offline."""
        return html(document(self))

    def frame(self, name: str) -> pd.DataFrame:
        """A table of the report as a pandas frame, a row for each entry; nested fields become columns such as
        `alone.kl`.

        Numbers are as in the report: NaN and infinities stay. Raises MoeparityError for a name that is not a table's,
        for a table that this report does not have, and if pandas is not installed.
        """
        if name not in FRAMES:
            raise MoeparityError(f"frame {name!r}: expected one of {listed(FRAMES)}.{did_you_mean(name, FRAMES)}")
        rows = FRAMES[name](self)
        if rows is None:
            raise MoeparityError(f"frame {name!r}: this report has none; its recipe does not ask for it.")
        try:
            import pandas as pd
        except ImportError:
            raise MoeparityError(f"frame {name!r}: frames need pandas; pip install 'moeparity[pandas]'.") from None
        return pd.DataFrame([dict(columns(row)) for row in rows])

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return notebook(screen(self, ()), ())


def _roots(report: ReportData) -> Iterator[dict[str, Any]]:
    """A row for each choice of each root."""
    for root in report.roots:
        whole = {key: value for key, value in columns(root) if key != "choices"}
        for choice in root.choices or (None,):
            yield whole | ({} if choice is None else {f"choice.{key}": value for key, value in columns(choice)})


FRAMES: Mapping[str, Callable[[ReportData], Rows | None]] = {
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
"""The tables by name, and how their rows are made; None if the recipe did not ask for the table."""
