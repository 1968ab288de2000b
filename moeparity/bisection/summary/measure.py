"""Makes the seven lines of what all other measures found."""

from __future__ import annotations

from dataclasses import replace

from moeparity.bisection.blame.show import other_functions, to_set, who
from moeparity.bisection.context import Context, Measure
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.divergence.data import Divergence
from moeparity.bisection.floor.data import Floor
from moeparity.bisection.nonfinite.data import Nonfinite
from moeparity.bisection.record.data import OtherRecord, Record, Recording, deciding, of_both
from moeparity.bisection.record.show import decided_blame, decided_start, decided_step
from moeparity.bisection.shares.data import Attribution
from moeparity.bisection.shares.show import place_words
from moeparity.bisection.summary.data import Summary
from moeparity.bisection.summary.show import decided_verdict, floor, nonfinite_start, recorded, starts, sure
from moeparity.bisection.toggles.data import Toggled
from moeparity.bisection.trace import show as of_trace
from moeparity.bisection.trace.data import Traced
from moeparity.bisection.verdict.data import Verdicts
from moeparity.output.status import judged
from moeparity.plan.sides import CANDIDATE
from moeparity.search.blame import Blame


def measure(of: Context) -> Summary:
    """The summary."""
    traced = of.get(Traced)
    summary = _of_sides(of) if traced is None else _of_trace(of, traced)
    return _of_record(summary, of) if of[Verdicts].verdict.of_record else summary


def _of_sides(of: Context) -> Summary:
    """The summary if the difference of both sides decides the verdict."""
    verdict, metrics = of[Verdicts].verdict, of[Verdicts].metrics
    toggles, blame, passes = of[Toggled].toggles, of[Blame], verdict.status == "pass"
    places = place_words(of.get(Attribution))
    return Summary(
        verdict=judged(verdict),
        but=other_functions(toggles) if passes else (),
        record=recorded(_records(of)),
        starts=starts(of[Divergence].roots, of.get(Nonfinite), metrics),
        blame="" if blame.kind == "record" else who(blame),
        to_set="; ".join(filter(None, (to_set(blame, toggles, passes=passes), "" if passes else places))),
        floor=floor(of.get(Floor), verdict),
        sure=sure(toggles, of[Degeneracy].distinct, _tokens(of), synthetic=of.study.recipe.synthetic is not None),
    )


def _of_record(summary: Summary, of: Context) -> Summary:
    """The summary if the record decides the verdict, so that the sides' choices are no answer to it."""
    record = deciding(_records(of))
    return replace(
        summary,
        verdict=decided_verdict(record, of[Verdicts].verdict),
        starts=decided_start(record, summary.starts),
        blame=decided_blame(record),
        to_set=decided_step(record),
    )


def _of_trace(of: Context, traced: Traced) -> Summary:
    """The summary if the candidate is a trace, which has no choices."""
    roots, verdict, metrics = of[Divergence].roots, of[Verdicts].verdict, of[Verdicts].metrics
    nonfinite = of.get(Nonfinite)
    places = () if nonfinite is None else nonfinite.first
    first = next((it.node for it in places if it.side == CANDIDATE and not it.padding), None)
    return Summary(
        verdict=judged(verdict),
        record=of_trace.recorded(_records(of)),
        starts=nonfinite_start(nonfinite, metrics) or of_trace.starts(traced, roots, of[Divergence].subtracted),
        blame=of_trace.blame(traced, roots, metrics),
        to_set=of_trace.to_set(traced, roots, first, passes=verdict.status == "pass"),
        floor=floor(of.get(Floor), verdict),
        sure=of_trace.sure(traced, of[Degeneracy].distinct, _tokens(of)),
    )


def _records(of: Context) -> tuple[Record, ...]:
    return of_both(of[Recording].record, of.get(OtherRecord))


def _tokens(of: Context) -> int:
    return int(of.observed.logits.sums(CANDIDATE).tokens.sum())


MEASURE = Measure(
    gives=Summary,
    measure=measure,
    needs=(
        Blame,
        Verdicts,
        Recording,
        OtherRecord,
        Divergence,
        Toggled,
        Attribution,
        Floor,
        Degeneracy,
        Nonfinite,
        Traced,
    ),
)
