"""The verdict on each draw of a side that adds in order of arrival."""

from __future__ import annotations

from moeparity.bisection.arrival.data import Arrival, ArrivalDraw
from moeparity.bisection.arrival.show import DrawValue, agreed, arrival_reading
from moeparity.bisection.context import Context
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import TrialKey
from moeparity.metrics.gating import gated_name
from moeparity.metrics.verdict import Verdict
from moeparity.plan.sides import CANDIDATE, REFERENCE


def measure(of: Context) -> Arrival | None:
    """All draws of the sides that add in order of arrival."""
    return arrival(of.plan, of.observed)


def arrival(plan: Plan, observed: Observed) -> Arrival | None:
    """All draws of the sides that add in order of arrival; None if neither side does."""
    keys_by_side = {
        side: [key for key in observed.keys("arrival") if key.of == side] for side in (REFERENCE, CANDIDATE)
    }
    if not any(keys_by_side.values()):
        return None
    verdicts: dict[TrialKey, Verdict] = {
        key: observed.logits.sums(key).verdict(plan.gate) for keys in keys_by_side.values() for key in keys
    }
    reference, candidate = (
        [_draw(key, verdicts[key]) for key in keys_by_side[side]] for side in (REFERENCE, CANDIDATE)
    )
    candidate_draws = [
        DrawValue(value=verdicts[key].value.estimate, status=verdicts[key].status) for key in keys_by_side[CANDIDATE]
    ]
    if candidate:
        # The recipe's own draw comes first.
        verdict = observed.logits.sums(CANDIDATE).verdict(plan.gate)
        candidate.insert(0, ArrivalDraw(side=CANDIDATE, draw=0, value=verdict.value))
        candidate_draws.insert(0, DrawValue(value=verdict.value.estimate, status=verdict.status))
    reference_draws = [DrawValue(value=draw.value.estimate, status=None) for draw in reference]
    return Arrival(
        draws=(*reference, *candidate),
        disputed=not agreed(candidate_draws),
        reading=tuple(arrival_reading(candidate_draws, reference_draws, gated_name(plan.gate.metric))),
    )


def _draw(key: TrialKey, verdict: Verdict) -> ArrivalDraw:
    return ArrivalDraw(side=key.of, draw=key.draw, value=verdict.value)
