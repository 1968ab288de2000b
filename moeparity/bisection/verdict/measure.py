"""The verdict on the candidate, and its metrics."""

from __future__ import annotations

from dataclasses import replace

from moeparity.bisection.arrival.data import Arrival
from moeparity.bisection.context import Context, Measure
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.degeneracy.show import sound
from moeparity.bisection.record.data import OtherRecord, Record, Recording
from moeparity.bisection.study import Study
from moeparity.bisection.verdict.data import Metrics, Verdicts
from moeparity.metrics.tokens import SequenceSums
from moeparity.metrics.verdict import Status, Verdict
from moeparity.plan.sides import CANDIDATE

_SEVERITY: tuple[Status, ...] = ("pass", "inconclusive", "fail")


def measure(of: Context) -> Verdicts:
    """The verdict and the metrics."""
    own_verdict = _of_whole_trace(sound(_verdict(of), of[Degeneracy]), of.study)
    other_record = of.get(OtherRecord)
    verdict = beside_record(own_verdict, of[Recording].record)
    verdict = verdict if other_record is None else beside_record(verdict, other_record.record)
    if of.study.model.graph.pairs:
        verdict = replace(verdict, reduce="pair")
    return Verdicts(verdict=verdict, metrics=_metrics(of.observed.logits.sums(CANDIDATE)))


def _verdict(of: Context) -> Verdict:
    verdict, draws = of.observed.logits.sums(CANDIDATE).verdict(of.study.gate), of.get(Arrival)
    if draws is None or not draws.disputed:
        return verdict
    return replace(verdict, status="inconclusive", reason="draws of its order of arrival decide differently")


def _of_whole_trace(verdict: Verdict, study: Study) -> Verdict:
    """The verdict, inconclusive if a trace can't support it: if its logits were not recorded, or, instead of a pass, if
    its recording was cut.
    """
    if study.recorded is None:
        return verdict
    if study.model.graph.output not in study.recorded.grafts:
        reason = "no logits were recorded, so these are what the reference's head makes of the recorded values"
        return replace(verdict, status="inconclusive", reason=reason)
    if study.recorded.whole or verdict.status != "pass":
        return verdict
    reason = "the trace was cut, its program did not get to the end of its recording"
    return replace(verdict, status="inconclusive", reason=f"{reason}: {verdict.reason}")


def beside_record(verdict: Verdict, record: Record) -> Verdict:
    """The verdict on two simulations, limited to what the record allows to say of the engine; a fail stays a fail.

    If there is a gate on the record, it decides too. If there is none, a record that is not reproduced turns a pass
    into inconclusive.
    """
    gate = record.gate
    if gate is not None and _SEVERITY.index(gate.status) > _SEVERITY.index(verdict.status):
        return replace(
            verdict,
            status=gate.status,
            reason=f"against the record, {gate.reason}; between both sides, {verdict.reason}",
            needed_sequences=gate.needed_sequences,
            needed_tokens=gate.needed_tokens,
            of_record=True,
        )
    if record.contradicts and verdict.status == "pass":
        reason = f"the {record.side} does not reproduce the record, so only two simulations agree"
        return replace(verdict, status="inconclusive", reason=f"{reason}: {verdict.reason}", of_record=True)
    return verdict


def _metrics(sums: SequenceSums) -> Metrics:
    return Metrics(
        k1=sums.mean("k1"),
        k2=sums.mean("k2"),
        k3=sums.mean("k3"),
        kl=sums.mean("kl_candidate_reference"),
        kl_reverse=sums.mean("kl_reference_candidate"),
        mean_abs_delta=sums.mean("abs_delta"),
        max_abs_delta=float(sums.max_abs_delta.max()),
        top1_agreement=sums.mean("top1"),
        nonfinite_tokens=int(sums.nonfinite.sum()),
        unequal_tokens=int(sums.unequal.sum()),
        outside_tokens=int(sums.outside.sum()),
        unshared_tokens=int(sums.unshared.sum()),
    )


MEASURE = Measure(gives=Verdicts, measure=measure, needs=(Arrival, Degeneracy, Recording, OtherRecord))
