"""What was run, on what, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.bisection.run.report import Cost, Run, Variant
from moeparity.bisection.tokens.measure import sampling
from moeparity.bisection.trace.measure import forwards
from moeparity.errors import display_path
from moeparity.inputs.machine import cpu_name, device_name
from moeparity.plan.schedule.settings import described
from moeparity.plan.sides import CANDIDATE, Side
from moeparity.plan.spec import variant_schema


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The run, both sides and the cost."""
    scored = int(observed.logits.sums(CANDIDATE).tokens.sum())
    variants = 1 + len(observed.logits.walkers) + (plan.oracle is not None)
    return {
        "run": run_of(plan, scored, variants),
        "reference": variant(plan.recipe.reference, plan.reference),
        "candidate": _candidate(plan),
        "cost": _cost(observed),
    }


def run_of(plan: Plan, scored: int, variants: int) -> Run:
    """What was run: so many scored tokens through so many walkers that are no shadows."""
    sequences, length = plan.tokens.input_ids.shape
    return Run(
        recipe=display_path(plan.path),
        checkpoint=display_path(plan.model.folder),
        model_type=plan.model.graph.model_type,
        sequences=sequences,
        tokens_per_sequence=length,
        scored_tokens=scored,
        sampled_from=plan.recipe.tokens.sampler,
        device=device_name(plan.model.device),
        cpu=cpu_name(),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        variants=variants,
        pads=plan.tokens.pads,
        sampling=sampling(plan),
    )


def variant(variant: variant_schema.Variant, side: Side) -> Variant:
    """One side as it ran."""
    return Variant(
        profile=variant.profile,
        dtype=side.plan.dtype,
        micro_batch=side.schedule.batch if side.schedule.is_plain else None,
        schedule=described(side.schedule),
        placement=str(variant.placement),
    )


def _candidate(plan: Plan) -> Variant:
    """The candidate as it ran; of a trace, which is not run, what it shows."""
    recorded = plan.recorded
    if recorded is None:
        return variant(plan.recipe.candidate, plan.candidate)
    profile_name = plan.recipe.candidate.label
    return Variant(
        profile=profile_name, dtype=recorded.dtype, micro_batch=None, schedule=f"forwards: {forwards(recorded)}"
    )


def _cost(observed: Observed) -> Cost:
    cost, blame = observed.cost, observed.answers.get("shares")
    return Cost(
        evaluations=sum(cost.counts.evaluations.values()),
        naive_evaluations=cost.naive_evaluations,
        weight_bytes_read=cost.counts.bytes_read,
        seconds=cost.seconds,
        memory_estimated=cost.memory.estimated + (cost.memory.held_before or 0),
        memory_peak=cost.memory.peak,
        search_passes=0 if blame is None else blame.passes,
        search_seconds=0.0 if blame is None else blame.seconds,
    )
