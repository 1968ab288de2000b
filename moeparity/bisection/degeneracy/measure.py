"""What is degenerate about a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeparity.bisection.degeneracy.observe import FlatLogits
from moeparity.bisection.degeneracy.report import Degeneracy
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.metrics.tokens import first_occurrences


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The degeneracy of weights, tokens and logits."""
    return {"degeneracy": degeneracy(plan, observed.sections["degeneracy"])}


def degeneracy(plan: Plan, logits: FlatLogits) -> Degeneracy:
    """That of a plan's weights and tokens, and of the logits that passed."""
    tokens = plan.tokens
    # Of these nobody claims that they are a trained model's: the report says so.
    constant_weights = () if plan.recipe.synthetic is not None else plan.model.constant
    return Degeneracy(
        constant_weights=constant_weights,
        scored_tokens=logits.tokens,
        flat=logits.flat,
        sequences=len(tokens.input_ids),
        distinct=len(set(first_occurrences(tokens.input_ids, tokens.loss_mask).tolist())),
        constant_sequences=tokens.constant_sequences,
    )
