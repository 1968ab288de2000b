"""Where NaN and infinities start, of what was seen of both sides and of the toggles' trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.nonfinite.observe import Occurrence
from moeparity.bisection.nonfinite.report import FirstNonfinite, Nonfinite
from moeparity.bisection.nonfinite.words import nonfinite_reading
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.trials import TrialKey, alone, restored
from moeparity.plan.sides import CANDIDATE, REFERENCE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first values that are not finite; None where every value of every node of both sides is."""
    occurrences: Mapping[tuple[str, bool], Occurrence] = observed.sections["nonfinite"]
    if not occurrences:
        return {"nonfinite": None}
    order = [node.name for node in plan.model.graph.nodes]
    first = sorted(
        (_first(side, padding, occurrence) for (side, padding), occurrence in occurrences.items()),
        key=lambda entry: (order.index(entry.node), entry.padding, entry.side != REFERENCE),
    )
    made_by, ended_by = _causes(plan, observed)
    metrics, tokens = report["metrics"], plan.tokens.input_ids
    reading = nonfinite_reading(first, made_by, ended_by, metrics.nonfinite_tokens, tuple(tokens.shape))
    return {"nonfinite": Nonfinite(first=tuple(first), made_by=made_by, ended_by=ended_by, reading=tuple(reading))}


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
    """Toggles that alone make scored tokens that are not finite, and those whose restoring ends all of them."""

    def count(key: TrialKey | str) -> int | None:
        """Such tokens of a trial; None where an op refuses it."""
        ran = key in observed.logits.walkers
        return int(observed.logits.sums(key).nonfinite.sum()) if ran else None

    if not count(CANDIDATE):
        return (), ()
    whole = [toggle for toggle in plan.trial_toggles if toggle.parent is None]
    ended_by = tuple(toggle.name for toggle in whole if count(restored(toggle)) == 0)
    occurrences: Mapping[tuple[str, bool], Occurrence] = observed.sections["nonfinite"]
    if (REFERENCE, False) in occurrences:
        return (), ended_by
    return tuple(toggle.name for toggle in whole if count(alone(toggle))), ended_by
