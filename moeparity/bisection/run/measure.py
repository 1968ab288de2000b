"""What was run, on which machine, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.observed import Observed
from moeparity.bisection.run.data import Cost, Run, RunFacts, Variant
from moeparity.bisection.shares.search import SHARES
from moeparity.bisection.study import Study
from moeparity.bisection.tokens.measure import sampling
from moeparity.bisection.trace.measure import forwards
from moeparity.errors import display_path
from moeparity.inputs.machine import cpu_name, device_name
from moeparity.ops.linear import ORDER
from moeparity.plan.gemm_plans import PLANS_OF
from moeparity.plan.gpu import GPU
from moeparity.plan.rule import UNKNOWN
from moeparity.plan.schedule.settings import described
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.spec import variant_schema


def measure(of: Context) -> RunFacts:
    """The run, both sides and the cost."""
    study, observed = of.study, of.observed
    scored = int(observed.logits.sums(CANDIDATE).tokens.sum())
    variants = 1 + len(observed.logits.walkers) + (study.oracle is not None)
    return RunFacts(
        run=run_of(study, scored, variants),
        reference=variant(study.recipe.reference, study.reference),
        candidate=_candidate(study),
        cost=_cost(observed),
    )


def run_of(study: Study, scored: int, variants: int) -> Run:
    """The run, with its numbers of scored tokens and of walkers that are not shadows."""
    sequences, length = study.tokens.input_ids.shape
    sides = {REFERENCE: study.reference, CANDIDATE: study.candidate}
    return Run(
        recipe=display_path(study.path),
        checkpoint=display_path(study.model.folder),
        model_type=study.model.graph.model_type,
        sequences=sequences,
        tokens_per_sequence=length,
        scored_tokens=scored,
        pairs=study.model.graph.pairs,
        sampled_from=study.recipe.tokens.sampler,
        device=device_name(study.model.device),
        cpu=cpu_name(),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        variants=variants,
        pads=study.tokens.pads,
        sampling=sampling(study),
        formats=study.model.formats,
        adapter=None if study.model.adapter is None else display_path(study.model.adapter),
        of_codes=tuple(name for name, side in sides.items() if study.model.weights.multiplies_codes(side.plan)),
    )


def variant(variant: variant_schema.Variant, side: Side) -> Variant:
    """One side as it ran."""
    return Variant(
        profile=variant.profile,
        dtype=side.plan.dtype,
        micro_batch=side.schedule.batch if side.schedule.is_plain else None,
        schedule=described(side.schedule),
        placement=str(variant.placement),
        gpu=variant.gpu,
        plans=_plans(side),
        unstated=tuple(_unstated(side)),
        overrides=tuple(_overrides(variant)),
    )


def _plans(side: Side) -> str | None:
    """The file of plans by which its GEMMs cut K, as their rules name it."""
    rules = (setting.rule for (_, name), setting in side.plan.settings.items() if name == ORDER.name)
    sources = (rule.source for rule in rules if rule is not None and rule.placement == GPU)
    return next((text.removeprefix(PLANS_OF) for text in sources if text.startswith(PLANS_OF)), None)


def _unstated(side: Side) -> Iterator[str]:
    """The ops with a state of whose nodes nobody states anything."""
    settings = side.plan.settings.items()
    stated = {node for (node, _), setting in settings if setting.rule is not None and setting.level != UNKNOWN}
    ops = {node.name: node.op for node in side.plan.graph.nodes if node.op.tokens.state is not None}
    yield from sorted({op.name for name, op in ops.items()} - {op.name for name, op in ops.items() if name in stated})


def _overrides(variant: variant_schema.Variant) -> Iterator[str]:
    for number, (address, value) in enumerate(variant.set.items()):
        yield f"{'' if number else 'set: '}{address} {value}"
    for number, region in enumerate(variant.impl):
        yield f"{'' if number else 'impl: '}{region.call}"
    for number, fault in enumerate(variant.faults):
        yield f"{'' if number else 'fault: '}{fault.name}"


def _candidate(study: Study) -> Variant:
    """The candidate as it ran; for a trace, which is not run, what it shows."""
    recorded = study.recorded
    if recorded is None:
        return variant(study.recipe.candidate, study.candidate)
    profile_name = study.recipe.candidate.label
    return Variant(
        profile=profile_name, dtype=recorded.dtype, micro_batch=None, schedule=f"forwards: {forwards(recorded)}"
    )


def _cost(observed: Observed) -> Cost:
    cost, blame = observed.cost, observed.of_search(SHARES)
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


MEASURE = Measure(gives=RunFacts, measure=measure)
