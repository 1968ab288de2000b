"""Which toggles make the divergence: by their shares if these were taken, else by both trials of each toggle."""

from __future__ import annotations

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.data import ReportData
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.record.data import OtherRecord, Record, Recording, deciding, of_both
from moeparity.bisection.shares.data import Attribution, ShareRow
from moeparity.bisection.toggles.data import Toggled, ToggleResult
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.verdict.data import Verdicts
from moeparity.search.blame import Blame, Fix, Part, Suspect, blame
from moeparity.search.roles import Role


def measure(of: Context) -> Blame:
    """The blame of a run. If a record decides the verdict, or the candidate is a trace, no toggle is named: the blame's
    `kind` is then `record` or `trace`.
    """
    if of[Verdicts].verdict.of_record:
        return _of_record(deciding(of_both(of[Recording].record, of.get(OtherRecord))))
    if of.get(Traced) is not None:
        return Blame(kind="trace")
    return blame_of(of[Toggled], of[Verdicts].metrics.kl, of.get(Attribution), of.get(Nonfinite))


def blame_of_report(report: ReportData) -> Blame:
    """The blame made anew from a report, for kept reports that were written without one; as `measure` makes it."""
    if report.verdict.of_record:
        return _of_record(deciding(report.records))
    if report.trace is not None:
        return Blame(kind="trace")
    return blame_of(report, report.metrics.kl, report.attribution, report.nonfinite)


def _of_record(record: Record) -> Blame:
    return Blame(kind="record", would_decide="what `record` names" if record.causes else "")


def blame_of(
    toggled: Toggled | ReportData,
    total: float,
    attribution: Attribution | None = None,
    nonfinite: Nonfinite | None = None,
) -> Blame:
    """The blame for a divergence of `total` nats per token."""
    rows = {} if attribution is None else {row.name: row for row in attribution.shares.rows if row.depth == 0}
    whole = [toggle for toggle in toggled.toggles if toggle.parent is None]
    return blame(
        [suspect(toggle, total, rows.get(toggle.name)) for toggle in whole],
        total=total,
        shared=bool(rows),
        offsets=[(pair.first, pair.second) for pair in toggled.offsets],
        makers=() if nonfinite is None else nonfinite.made_by,
        enders=() if nonfinite is None else nonfinite.ended_by,
        searched_fix=_smallest_fix(attribution),
    )


def suspect(toggle: ToggleResult, total: float, share: ShareRow | None = None) -> Suspect:
    """One toggle as `search.blame` reads it: its role and the fractions of `total` that its trials and its share
    give.
    """
    of_trials, (alone, restored) = toggle.role(total), toggle.parts(total)
    return Suspect(
        name=toggle.name,
        role=of_trials if share is None or of_trials is Role.NO_EFFECT else Role(share.role),
        alone=alone,
        restored=restored,
        lowers=toggle.restored_change_high < 0,
        restores_all=toggle.restores_all,
        share=None if share is None else _share(share),
        needed=None if share is None else share.needed,
    )


def _share(row: ShareRow) -> Part:
    return Part(name=row.name, part=row.of_whole, low=row.of_whole_low, high=row.of_whole_high)


def _smallest_fix(attribution: Attribution | None) -> Fix | None:
    """The smallest fix that the searches found; None without one."""
    if attribution is None or not attribution.fixes:
        return None
    return Fix(toggles=attribution.fixes[0].toggles, exact=attribution.fixes[0].exact)


MEASURE = Measure(
    gives=Blame, measure=measure, needs=(Verdicts, Recording, OtherRecord, Toggled, Attribution, Nonfinite, Traced)
)
