"""A bisection's report as Markdown for a pull request or a CI summary: the seven lines, who is to blame, a picture."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.run.show import machine
from moeparity.bisection.summary import show as summary
from moeparity.bisection.toggles.data import TrialResult
from moeparity.output.blocks import Block, Document, Table, columns, lines, table
from moeparity.output.markdown import MOST, in_markdown, picture
from moeparity.output.markdown import markdown as of_document
from moeparity.output.svg import Bar, bars

_LAYERS = 40
"""A picture over layers has at most this many bars."""
WATERFALL, GROWTH = "KL by toggle", "Error after each layer"


def markdown(report: ReportData, drawn: str | None = None) -> str:
    """The report as Markdown. `drawn`: the file with its picture, in the same folder."""
    document = Document(command="bisect", subject=report.run.recipe, blocks=tuple(blocks(report)))
    sides = f"reference {report.reference.in_full}; candidate {report.candidate.in_full}"
    footer = lines(f"{report.run.recipe}: {sides}. {machine(report.run)}.")
    return "\n\n".join([of_document(document), *pictures(report, drawn), *in_markdown([footer])])


def blocks(report: ReportData) -> Iterator[Block]:
    """The seven lines, and a table of what each toggle costs."""
    yield from summary.show(report)
    if report.toggles:
        yield _toggles(report)


def pictures(report: ReportData, drawn: str | None) -> list[str]:
    """A link to the picture, if it was written to a file."""
    return [] if drawn is None else [picture(WATERFALL if _is_shared(report) else GROWTH, drawn)]


def drawing(report: ReportData) -> str | None:
    """The picture as SVG: the KL by toggle if there are shares, else the error after each layer; None if both sides
    have the same bits.
    """
    rows = report.attribution.shares.rows if report.attribution is not None else ()
    shares = sorted((row for row in rows if row.depth == 0), key=lambda row: -abs(row.share))[:MOST]
    if shares:
        return bars(WATERFALL, [Bar(name=row.name, value=row.share, number=f"{row.of_whole:.0%}") for row in shares])
    errors = [(layer.name, layer.carried.relative_l2) for layer in report.growth]
    step = -(-len(errors) // _LAYERS) or 1
    drawn = [*errors[::step], *errors[-1:]] if step > 1 else errors
    if not any(error for _, error in drawn):
        return None
    title = f"{GROWTH} (relative L2, logarithmic)"
    return bars(title, [Bar(name=name, value=error, number=f"{error:.1e}") for name, error in drawn], log=True)


def _is_shared(report: ReportData) -> bool:
    return report.attribution is not None and bool(report.attribution.shares.rows)


def _toggles(report: ReportData) -> Table:
    """Shares if there are some, else the KL of each toggle alone and restored."""
    if report.attribution is not None and report.attribution.shares.rows:
        whole = (row for row in report.attribution.shares.rows if row.depth == 0)
        shares = [(row.name, f"{row.of_whole:.1%}", row.role, row.evidence) for row in whole]
        return table(columns("of KL", "role", "evidence", first="toggle"), shares)
    costs = [(toggle.name, _kl(toggle.alone), _kl(toggle.restored)) for toggle in report.toggles]
    return table(columns("KL alone", "KL restored", first="toggle"), costs)


def _kl(trial: TrialResult | None) -> str:
    return "cannot run" if trial is None else f"{trial.kl:.2e}"
