"""The seven lines, of what all other sections say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.record.report import Record
from moeparity.bisection.record.words import decided_blame, decided_start, decided_step
from moeparity.bisection.summary.blame import blame, to_set
from moeparity.bisection.summary.report import Summary
from moeparity.bisection.summary.words import decided_verdict, floor, nonfinite_start, recorded, starts, sure
from moeparity.bisection.trace import words as of_trace
from moeparity.output.status import judged
from moeparity.plan.sides import CANDIDATE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary; the sections it is made of stand before it in the list."""
    traced = report["trace"] is not None
    summary = _of_trace(observed, report) if traced else _of_sides(plan, observed, report)
    return {"summary": _of_record(summary, report) if report["verdict"].of_record else summary}


def _of_sides(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Summary:
    """The summary of a verdict on the difference of both sides."""
    metrics, toggles = report["metrics"], report["toggles"]
    tokens = int(observed.logits.sums(CANDIDATE).tokens.sum())
    return Summary(
        verdict=judged(report["verdict"]),
        record=recorded(report["record"]),
        starts=starts(report["roots"], report["nonfinite"], metrics),
        blame=blame(
            toggles, report["attribution"], metrics.kl, offsets=report["offsets"], nonfinite=report["nonfinite"]
        ),
        to_set=to_set(
            toggles,
            report["attribution"],
            metrics.kl,
            passes=report["verdict"].status == "pass",
            nonfinite=report["nonfinite"],
        ),
        floor=floor(report["floor"], report["verdict"]),
        sure=sure(toggles, report["degeneracy"].distinct, tokens, synthetic=plan.recipe.synthetic is not None),
    )


def _of_record(summary: Summary, report: Mapping[str, Any]) -> Summary:
    """The summary of a verdict that the record decided: what the sides' choices do is no answer to it."""
    record: Record = report["record"]
    return replace(
        summary,
        verdict=decided_verdict(record, report["verdict"]),
        starts=decided_start(record, summary.starts),
        blame=decided_blame(record),
        to_set=decided_step(record),
    )


def _of_trace(observed: Observed, report: Mapping[str, Any]) -> Summary:
    """The summary of a recorded candidate, which has no choices."""
    traced, roots, verdict = report["trace"], report["roots"], report["verdict"]
    tokens = int(observed.logits.sums(CANDIDATE).tokens.sum())
    nonfinite = [] if report["nonfinite"] is None else report["nonfinite"].first
    first = next((it.node for it in nonfinite if it.side == CANDIDATE and not it.padding), None)
    return Summary(
        verdict=judged(verdict),
        record=of_trace.recorded(report["record"]),
        starts=nonfinite_start(report["nonfinite"], report["metrics"]) or of_trace.starts(traced, roots),
        blame=of_trace.blame(traced, roots, report["metrics"]),
        to_set=of_trace.to_set(traced, roots, first, passes=verdict.status == "pass"),
        floor=floor(report["floor"], verdict),
        sure=of_trace.sure(traced, report["degeneracy"].distinct, tokens),
    )
