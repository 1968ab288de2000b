"""What a pass saw, put into a Report."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from moeparity.bisection import report
from moeparity.bisection.arrival import measure as arrival
from moeparity.bisection.envelope.measure import envelope
from moeparity.bisection.flips import measure as flips
from moeparity.bisection.floor import measure as truth
from moeparity.bisection.floor.report import Arrival
from moeparity.bisection.observed import Observed, measured
from moeparity.bisection.observers import NodeRecord
from moeparity.bisection.prepare import Plan
from moeparity.bisection.replay.measure import replay
from moeparity.bisection.shares.measure import attribution
from moeparity.bisection.shares.search import Blame
from moeparity.bisection.shares.words import fix_reading, share_reading
from moeparity.bisection.toggles.words import Effect, Trial, reading
from moeparity.bisection.tokens import measure as tokens
from moeparity.bisection.trials import alone
from moeparity.errors import display_path
from moeparity.inputs.machine import cpu_name
from moeparity.metrics.divergence import Error
from moeparity.metrics.tokens import SequenceSums
from moeparity.plan.difference import Difference
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side
from moeparity.plan.spec import schema
from moeparity.plan.toggles import Toggle


def summarise(plan: Plan, observed: Observed, found: Blame | None = None) -> report.Report:
    """The report of one run; `found` is what the searches found, where the recipe asks for them."""
    sums = observed.logits.sums(CANDIDATE)
    metrics = _metrics(sums)
    drawn = arrival.arrival(plan, observed)
    verdict = _verdict(plan, sums, drawn)
    effects = [measured(toggle, observed) for toggle in plan.tried]
    return report.Report(
        run=_run(plan, observed, sums),
        reference=_variant(plan.recipe.reference, plan.reference),
        candidate=_variant(plan.recipe.candidate, plan.candidate),
        verdict=verdict,
        metrics=metrics,
        distribution=_distribution(observed),
        roots=tuple(_roots(plan, observed)),
        growth=tuple(_growth(plan, observed)),
        flips=flips.routing_flips(observed.census, {n.name: n for n in plan.model.graph.nodes}, plan.tried),
        toggles=tuple(_toggle_result(effect) for effect in effects),
        swaps=tuple(_swap(selector, plan, observed) for selector in plan.swaps),
        reading=tuple(reading(effects, metrics.kl, None if found is None else _told(plan, found))),
        nodes=tuple(_node_errors(observed)),
        warnings=tuple(tokens.warnings(plan)),
        recorded=tokens.recorded(observed),
        classes=tokens.classes(plan, observed),
        floor=truth.floor(plan, observed, verdict),
        oracle=truth.oracle(plan, observed, verdict.status),
        arrival=drawn,
        replay=replay(plan, observed),
        envelope=envelope(plan, observed),
        attribution=attribution(found),
    )


def _told(plan: Plan, found: Blame) -> list[str]:
    """Who is to blame and what to restore, in sentences."""
    dtypes = dict.fromkeys(side.plan.dtype for side in (plan.reference, plan.candidate))
    shares = share_reading(found.shares, found.forced, found.interactions, found.in_fp32, " and ".join(dtypes))
    return [*shares, *fix_reading(found.fixes, found.kept, costs=bool(plan.recipe.costs))]


def _verdict(plan: Plan, sums: SequenceSums, drawn: Arrival | None) -> report.Verdict:
    gate = plan.recipe.gate
    interval, judgement = arrival.judged(plan, sums)
    disputed = drawn is not None and drawn.disputed
    return report.Verdict(
        status="inconclusive" if disputed else judgement.status,
        reason="draws of its order of arrival decide differently" if disputed else judgement.reason,
        metric=gate.metric,
        reduce=gate.reduce,
        below=gate.below,
        value=truth.interval(interval),
        needed_sequences=judgement.needed_sequences,
        needed_tokens=judgement.needed_tokens,
    )


def _metrics(sums: SequenceSums) -> report.Metrics:
    def mean(values: torch.Tensor) -> float:
        return float(values.sum() / sums.tokens.sum())

    return report.Metrics(
        k1=mean(sums.k1),
        k2=mean(sums.k2),
        k3=mean(sums.k3),
        kl=mean(sums.kl_candidate_reference),
        kl_reverse=mean(sums.kl_reference_candidate),
        mean_abs_delta=mean(sums.abs_delta),
        max_abs_delta=float(sums.max_abs_delta.max()),
        top1_agreement=mean(sums.top1),
        nonfinite_tokens=int(sums.nonfinite.sum()),
    )


def _distribution(observed: Observed) -> report.Distribution | None:
    found = observed.distributions
    if found is None or not found.tokens:
        return None
    jsd, tv, jaccard, rank = (found.sums / found.tokens).tolist()
    return report.Distribution(jsd=jsd, tv=tv, max_tv=found.max_tv, top10_jaccard=jaccard, rank_change=rank)


def _roots(plan: Plan, observed: Observed) -> Iterator[report.Root]:
    for record in _records(observed).values():
        if record.root_sequences:
            yield report.Root(
                node=record.node.name,
                op=record.node.op.name,
                sequences=record.root_sequences,
                same_values=record.carried is not None and record.carried.equal == record.carried.elements,
                choices=tuple(_choices(plan, observed, record.node)),
            )


def _choices(plan: Plan, observed: Observed, node: Node) -> Iterator[report.Choice]:
    """The choices that differ at a node and alone make it a root; all of them where only several together do."""
    here = [toggle for toggle in plan.toggles if toggle.kind == "schedule" or node.name in toggle.nodes]
    acting = [toggle for toggle in here if node.name in observed.changes.roots.get((alone(toggle), REFERENCE), ())]
    # A toggle that was taken apart is told by its parts.
    chosen = acting or here
    parents = {toggle.parent for toggle in chosen}
    yield from dict.fromkeys(c for t in chosen if t.name not in parents for c in _choices_of(t, node))


def _choices_of(toggle: Toggle, node: Node) -> Iterator[report.Choice]:
    if not toggle.members:
        yield _choice(toggle.name, toggle)
    yield from (_choice(member.attribute, member) for member in toggle.members if member.node.name == node.name)


def _choice(attribute: str, of: Toggle | Difference) -> report.Choice:
    return report.Choice(
        attribute=attribute,
        reference=of.reference,
        candidate=of.candidate,
        reference_origin=of.reference_origin,
        candidate_origin=of.candidate_origin,
        reference_set_by=of.reference_set_by,
        candidate_set_by=of.candidate_set_by,
    )


def _growth(plan: Plan, observed: Observed) -> Iterator[report.LayerGrowth]:
    for segment in plan.model.graph.segments:
        known = _records(observed)
        records = [known[node.name] for node in segment.nodes if node.name in known]
        measured = [record for record in records if record.carried is not None and record.local is not None]
        if segment.name == "before" or not measured:
            continue
        closing, loudest = measured[-1], max(measured, key=_local_size)
        assert closing.carried is not None
        yield report.LayerGrowth(
            name=segment.name,
            node=closing.node.name,
            carried=_size(closing.carried),
            largest_local=_local_size(loudest),
            largest_local_node=loudest.node.name if _local_size(loudest) else "",
        )


def _records(observed: Observed) -> dict[str, NodeRecord]:
    assert observed.divergence is not None, "the first pass looks for divergence"
    return observed.divergence.records


def _local_size(record: NodeRecord) -> float:
    # Routing weights sit in slot order, so one reordering of slots would outweigh every rounding.
    return 0.0 if record.local is None or record.node.op.routes else record.local.relative_l2


def _node_errors(observed: Observed) -> Iterator[report.NodeError]:
    for record in _records(observed).values():
        if record.carried is not None and record.local is not None:
            yield report.NodeError(
                node=record.node.name,
                op=record.node.op.name,
                layer=record.node.layer,
                carried=_size(record.carried),
                local=_size(record.local),
            )


def _size(error: Error) -> report.Size:
    return report.Size(
        equal_share=error.equal_share,
        mean_abs=error.mean_abs,
        max_abs=error.max_abs,
        mean_ulp=error.mean_ulp,
        max_ulp=error.max_ulp,
        relative_l2=error.relative_l2,
        nonfinite_reference=error.nonfinite[0],
        nonfinite_candidate=error.nonfinite[1],
    )


def _toggle_result(effect: Effect) -> report.ToggleResult:
    toggle = effect.toggle
    return report.ToggleResult(
        name=toggle.name,
        kind=toggle.kind,
        reference=toggle.reference,
        candidate=toggle.candidate,
        reference_origin=toggle.reference_origin,
        candidate_origin=toggle.candidate_origin,
        flag=toggle.flag,
        reference_set_by=toggle.reference_set_by,
        candidate_set_by=toggle.candidate_set_by,
        parent=toggle.parent,
        nodes=len(toggle.nodes),
        alone=_trial_result(effect.alone),
        restored=_trial_result(effect.restored),
        restored_change_low=effect.change[0],
        restored_change_high=effect.change[1],
        restores_all=effect.restores_all,
        had_no_effect=effect.had_no_effect,
        masked=effect.is_masked,
    )


def _swap(selector: str, plan: Plan, observed: Observed) -> report.Swap:
    nodes, toggle = plan.swaps[selector]
    result = None if toggle is None else _toggle_result(measured(toggle, observed))
    return report.Swap(selector=selector, nodes=len(nodes), toggle=result)


def _trial_result(trial: Trial | None) -> report.TrialResult | None:
    if trial is None:
        return None
    return report.TrialResult(
        kl=trial.kl, k3=trial.k3, flipped_routes=trial.flipped_routes, changed_nodes=trial.changed_nodes
    )


def _variant(variant: schema.Variant, side: Side) -> report.Variant:
    return report.Variant(
        profile=variant.profile,
        dtype=side.plan.dtype,
        micro_batch=side.micro_batch,
        placement=str(variant.placement),
    )


def _run(plan: Plan, observed: Observed, sums: SequenceSums) -> report.Run:
    device = plan.model.device
    return report.Run(
        recipe=display_path(plan.path),
        checkpoint=display_path(plan.model.folder),
        model_type=plan.model.graph.model_type,
        sequences=len(plan.tokens.input_ids),
        tokens_per_sequence=plan.tokens.input_ids.shape[1],
        scored_tokens=int(sums.tokens.sum()),
        sampled_from=plan.recipe.tokens.sampler,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        cpu=cpu_name(),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        variants=1 + len(observed.logits.others) + (observed.truth is not None),
        evaluations=sum(observed.counts.evaluations.values()),
        naive_evaluations=observed.naive_evaluations,
        weight_bytes_read=observed.counts.bytes_read,
        seconds=observed.seconds,
        memory_estimated=observed.memory.estimated + (observed.memory.held_before or 0),
        memory_peak=observed.memory.peak,
        pads=plan.tokens.pads,
        sampling=tokens.sampling(plan),
    )
