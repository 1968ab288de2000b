"""Where NaN and infinities start, from what was seen of both sides and of the toggles' trials."""

from __future__ import annotations

from moeparity.bisection.context import Context
from moeparity.bisection.nonfinite.data import FirstNonfinite, Nonfinite
from moeparity.bisection.nonfinite.observe import OCCURRENCES, Occurrence
from moeparity.bisection.nonfinite.show import nonfinite_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import TrialKey, alone, restored
from moeparity.bisection.verdict.data import Verdicts
from moeparity.plan.sides import CANDIDATE, REFERENCE


def measure(of: Context) -> Nonfinite | None:
    """The first values that are not finite; None if every value of both sides is finite."""
    plan, occurrences = of.plan, of.observed.of_watch(OCCURRENCES)
    if not occurrences:
        return None
    order = [node.name for node in plan.model.graph.nodes]
    first = sorted(
        (_first(side, padding, occurrence) for (side, padding), occurrence in occurrences.items()),
        key=lambda entry: (order.index(entry.node), entry.padding, entry.side != REFERENCE),
    )
    made_by, ended_by = _causes(plan, of.observed)
    metrics, tokens = of[Verdicts].metrics, plan.tokens.input_ids
    reading = nonfinite_reading(first, made_by, ended_by, metrics.nonfinite_tokens, tuple(tokens.shape))
    return Nonfinite(first=tuple(first), made_by=made_by, ended_by=ended_by, reading=tuple(reading))


def _first(side: str, padding: bool, occurrence: Occurrence) -> FirstNonfinite:
    return FirstNonfinite(
        side=side,
        node=occurrence.node.name,
        op=occurrence.node.op.name,
        nan=occurrence.nan,
        infinite=occurrence.infinite,
        sequences=occurrence.sequences,
        tokens=occurrence.tokens,
        sequence=occurrence.sequence,
        position=occurrence.position,
        expert=occurrence.expert,
        padding=padding,
    )


def _causes(plan: Plan, observed: Observed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The toggles that alone make scored tokens that are not finite, and those whose restoring leaves none."""

    def count(key: TrialKey | str) -> int | None:
        """How many scored tokens of a trial are not finite; None if an op refuses the trial."""
        ran = key in observed.logits.walkers
        return int(observed.logits.sums(key).nonfinite.sum()) if ran else None

    if not count(CANDIDATE):
        return (), ()
    whole = [toggle for toggle in plan.trial_toggles if toggle.parent is None]
    ended_by = tuple(toggle.name for toggle in whole if count(restored(toggle)) == 0)
    occurrences = observed.of_watch(OCCURRENCES) or {}
    if (REFERENCE, False) in occurrences:
        return (), ended_by
    return tuple(toggle.name for toggle in whole if count(alone(toggle))), ended_by
