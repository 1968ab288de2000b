"""What a report says about its tokens: where they come from, and their classes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.bisection.context import Context
from moeparity.bisection.plan import Plan
from moeparity.bisection.real_ranks.show import real_ranks_warnings
from moeparity.bisection.tokens.data import ClassMetrics, OfTokens
from moeparity.bisection.tokens.observe import CLASSES, Classes
from moeparity.plan.sides import Side


def measure(of: Context) -> OfTokens:
    """Warnings and classes."""
    sums = of.observed.of_watch(CLASSES)
    return OfTokens(warnings=tuple(warnings(of.plan)), classes=() if sums is None else classes(of.plan, sums))


def warnings(plan: Plan) -> Iterator[str]:
    """Sentences on what makes the numbers of a run mean less than they seem to."""
    if plan.recipe.synthetic is not None:
        yield (
            f"The weights are {plan.recipe.weights}, random numbers of the right shapes. Their router margins and "
            "logits are not those of a trained model, so flip rates, k3 and KL say nothing about one; which node "
            "differs first, and whether bits are equal, still holds."
        )
    if plan.real_ranks is not None:
        yield from real_ranks_warnings(plan.real_ranks)
    sample = plan.recipe.tokens.sample
    if sample is None:
        return
    sides = (plan.reference, plan.candidate)
    temperatures = {temperature for side in sides for temperature in _temperatures(side)} - {sample.temperature}
    if temperatures:
        values = " and ".join(f"{temperature:g}" for temperature in sorted(temperatures))
        advice = f", or set log_probs:temperature to {sample.temperature:g} on both sides" if sample.temperature else ""
        yield (
            f"The tokens are sampled at temperature {sample.temperature:g}, log-probabilities taken at {values}: k3 is "
            f"no estimate of a KL on such tokens. Use temperature 1 for a gate{advice}."
        )


def _temperatures(side: Side) -> set[float]:
    """The temperatures by which a side's logits are divided before its log-softmax, over all phases."""
    place = (side.plan.graph.scores, "temperature")
    settings = [plan.settings.get(place) for plan in side.plan.distinct]
    return {1.0 if setting is None else float(setting.value) for setting in settings}


def sampling(plan: Plan) -> str | None:
    """How the tokens were generated for this run; None if they come from the file."""
    sample = plan.recipe.tokens.sample
    if sample is None:
        return None
    return f"{sample.new_tokens} new tokens per prompt, temperature {sample.temperature:g}, seed {sample.seed}"


def classes(plan: Plan, sums: Classes) -> tuple[ClassMetrics, ...]:
    """The metrics of each class of tokens."""
    return tuple(
        ClassMetrics(
            name=name,
            scored_tokens=(tokens := int(sums.tokens[i])),
            k3=float(sums.k3[i]) / tokens if tokens else math.nan,
            mean_abs_delta=float(sums.abs_delta[i]) / tokens if tokens else math.nan,
            token_layers=int(sums.routes[i]),
            set_flips=int(sums.set_flips[i]),
        )
        for i, name in enumerate(plan.tokens.label_names)
    )
