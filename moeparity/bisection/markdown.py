"""A report for a pull request or the summary of a step: the seven lines, who is to blame, and one small picture."""

from __future__ import annotations

from collections.abc import Sequence

from moeparity.bisection.report import Report
from moeparity.bisection.run.text import machine
from moeparity.bisection.toggles.report import TrialResult
from moeparity.output.markdown import escaped, picture, table
from moeparity.output.svg import Bar, bars

_MOST = 12
"""Rows of a table, and bars of a picture over toggles."""
_LAYERS = 40
WATERFALL, GROWTH = "KL by toggle", "Error after each layer"


def markdown(report: Report, drawn: str | None = None) -> str:
    """The report as Markdown; `drawn` is the file with its picture, beside it."""
    return "\n\n".join([f"### moeparity: {report.verdict.status.upper()}", *parts(report, drawn), _footer(report)])


def parts(report: Report, drawn: str | None) -> list[str]:
    """What stands between headline and footer."""
    summary = report.summary
    lines = [("verdict", summary.verdict), ("record", summary.record), ("starts", summary.starts)]
    lines += [("blame", summary.blame), ("to set", summary.to_set), ("floor", summary.floor), ("sure", summary.sure)]
    blame = [_toggles(report)] if report.toggles else []
    pictures = [] if drawn is None else [picture(_title(report), drawn)]
    return [table(["", ""], lines), *blame, *pictures]


def drawing(report: Report) -> str | None:
    """The picture as SVG: the KL by toggle where it was shared out, else the error after each layer; None where both
    sides have the same bits.
    """
    rows = report.attribution.shares.rows if report.attribution is not None else ()
    shares = sorted((row for row in rows if row.depth == 0), key=lambda row: -abs(row.share))[:_MOST]
    if shares:
        return bars(WATERFALL, [Bar(name=row.name, value=row.share, number=f"{row.of_whole:.0%}") for row in shares])
    errors = [(layer.name, layer.carried.relative_l2) for layer in report.growth]
    step = -(-len(errors) // _LAYERS) or 1
    drawn = [*errors[::step], *errors[-1:]] if step > 1 else errors
    if not any(error for _, error in drawn):
        return None
    title = f"{GROWTH} (relative L2, logarithmic)"
    return bars(title, [Bar(name=name, value=error, number=f"{error:.1e}") for name, error in drawn], log=True)


def _title(report: Report) -> str:
    return WATERFALL if report.attribution is not None and report.attribution.shares.rows else GROWTH


def _toggles(report: Report) -> str:
    """Shares where there are some, else what each toggle costs alone and restored."""
    if report.attribution is not None and report.attribution.shares.rows:
        whole = (row for row in report.attribution.shares.rows if row.depth == 0)
        shares = [(row.name, f"{row.of_whole:.1%}", row.role, row.evidence) for row in whole]
        return _cut(["toggle", "of KL", "role", "evidence"], shares)
    costs = [(toggle.name, _kl(toggle.alone), _kl(toggle.restored)) for toggle in report.toggles]
    return _cut(["toggle", "KL alone", "KL restored"], costs)


def _kl(trial: TrialResult | None) -> str:
    return "cannot run" if trial is None else f"{trial.kl:.2e}"


def _cut(header: list[str], rows: Sequence[Sequence[str]]) -> str:
    more = f"\n\n{len(rows) - _MOST} more are in the JSON." if len(rows) > _MOST else ""
    return table(header, rows[:_MOST]) + more


def _footer(report: Report) -> str:
    sides = f"reference {report.reference}; candidate {report.candidate}"
    return f"{escaped(report.run.recipe)}: {escaped(sides)}. {escaped(machine(report.run))}."
