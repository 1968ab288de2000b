"""What is degenerate about a run."""

from __future__ import annotations

from moeparity.bisection.context import Context
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.bisection.degeneracy.observe import FLAT, FlatLogits
from moeparity.bisection.plan import Plan
from moeparity.metrics.tokens import first_occurrences


def measure(of: Context) -> Degeneracy:
    """The degeneracy of weights, tokens and logits."""
    logits = of.observed.of_watch(FLAT)
    assert logits is not None, "it looks at every pass"
    return degeneracy(of.plan, logits)


def degeneracy(plan: Plan, logits: FlatLogits) -> Degeneracy:
    """The degeneracy of a plan's weights and tokens, and of the logits seen in the pass."""
    tokens = plan.tokens
    # The report says that synthetic weights are synthetic, so nobody takes them for a trained model's.
    constant_weights = () if plan.recipe.synthetic is not None else plan.model.constant
    return Degeneracy(
        constant_weights=constant_weights,
        scored_tokens=logits.tokens,
        flat=logits.flat,
        sequences=len(tokens.input_ids),
        distinct=len(set(first_occurrences(tokens.input_ids, tokens.loss_mask).tolist())),
        constant_sequences=tokens.constant_sequences,
    )
