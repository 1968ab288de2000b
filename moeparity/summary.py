"""What a pass saw, put into a Report."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from moeparity.attribution.effects import Effect, Trial, reading
from moeparity.attribution.toggles import CANDIDATE, REFERENCE, Side, Toggle
from moeparity.errors import display_path
from moeparity.graph.graph import Node
from moeparity.observation import Observed, alone, restored
from moeparity.observe.divergence import Error
from moeparity.observe.logprobs import SequenceSums
from moeparity.observe.observers import NodeRecord
from moeparity.observe.statistics import judge, sequence_mean, token_mean
from moeparity.plan import Plan
from moeparity.report import model as report


def summarise(plan: Plan, observed: Observed) -> report.Report:
    """The report of one pass."""
    sums = observed.logits.sums(CANDIDATE)
    metrics = _metrics(sums)
    effects = [_effect(toggle, observed) for toggle in plan.toggles]
    return report.Report(
        run=_run(plan, observed, sums),
        reference=_variant(plan.recipe.reference.profile, plan.reference),
        candidate=_variant(plan.recipe.candidate.profile, plan.candidate),
        verdict=_verdict(plan, observed, sums),
        metrics=metrics,
        roots=tuple(_roots(plan, observed)),
        growth=tuple(_growth(plan, observed)),
        flips=_flips(observed),
        toggles=tuple(_toggle_result(effect) for effect in effects),
        reading=tuple(reading(effects, metrics.kl)),
        nodes=tuple(_node_errors(observed)),
    )


def _verdict(plan: Plan, observed: Observed, sums: SequenceSums) -> report.Verdict:
    gate = plan.recipe.gate
    interval = (token_mean if gate.reduce == "token" else sequence_mean)(sums.k3, sums.tokens)
    output = observed.divergence.records[plan.model.graph.output]
    judgement = judge(interval, gate.below, bit_equal=output.differing_cells == 0, nonfinite=int(sums.nonfinite.sum()))
    return report.Verdict(
        status=judgement.status,
        reason=judgement.reason,
        metric=gate.metric,
        reduce=gate.reduce,
        below=gate.below,
        value=report.Interval(
            estimate=interval.estimate,
            low=interval.low,
            high=interval.high,
            level=interval.level,
            method=interval.method,
        ),
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


def _roots(plan: Plan, observed: Observed) -> Iterator[report.Root]:
    for record in observed.divergence.records.values():
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
    here = [toggle for toggle in plan.toggles if not toggle.nodes or node.name in toggle.nodes]
    acting = [toggle for toggle in here if node.name in observed.changes.roots.get((alone(toggle), REFERENCE), ())]
    for toggle in acting or here:
        yield report.Choice(
            attribute=toggle.attribute,
            reference=toggle.reference,
            candidate=toggle.candidate,
            reference_origin=toggle.reference_origin,
            candidate_origin=toggle.candidate_origin,
        )


def _growth(plan: Plan, observed: Observed) -> Iterator[report.LayerGrowth]:
    for segment in plan.model.graph.segments:
        records = [observed.divergence.records[node.name] for node in segment.nodes]
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


def _local_size(record: NodeRecord) -> float:
    # Routing weights sit in slot order, so one reordering of slots would outweigh every rounding.
    return 0.0 if record.local is None or record.node.op.name == "router" else record.local.relative_l2


def _node_errors(observed: Observed) -> Iterator[report.NodeError]:
    for record in observed.divergence.records.values():
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


def _flips(observed: Observed) -> report.RoutingFlips | None:
    layers = [
        report.LayerFlips(
            layer=layer,
            tokens=flips.tokens,
            set_flips=flips.set_flips,
            slot_flips=flips.slot_flips,
            slots_replaced=flips.slots_replaced,
            zero_overlap=flips.zero_overlap,
        )
        for (name, layer), flips in observed.routes.layers.items()
        if name == CANDIDATE
    ]
    if not layers:
        return None
    return report.RoutingFlips(
        layers=tuple(layers), tokens=layers[0].tokens, tokens_any_layer=observed.routes.tokens_flipped(CANDIDATE)
    )


def _effect(toggle: Toggle, observed: Observed) -> Effect:
    trial = _trial(restored(toggle), CANDIDATE, observed)
    change = (-math.inf, math.inf)
    if trial is not None:
        with_it, without_it = observed.logits.sums(CANDIDATE), observed.logits.sums(restored(toggle))
        paired = token_mean(without_it.kl_candidate_reference - with_it.kl_candidate_reference, with_it.tokens)
        change = (paired.low, paired.high)
    return Effect(toggle=toggle, alone=_trial(alone(toggle), REFERENCE, observed), restored=trial, change=change)


def _trial(name: str, base: str, observed: Observed) -> Trial | None:
    if (name, base) not in observed.changes.nodes:
        return None
    sums = observed.logits.sums(name)
    tokens = float(sums.tokens.sum())
    flips = observed.routes.total(name)
    return Trial(
        kl=float(sums.kl_candidate_reference.sum()) / tokens,
        k3=float(sums.k3.sum()) / tokens,
        flipped_routes=flips.set_flips / flips.tokens if flips else 0.0,
        changed_nodes=len(observed.changes.nodes[name, base]),
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
        nodes=len(toggle.nodes),
        alone=_trial_result(effect.alone),
        restored=_trial_result(effect.restored),
        restored_change_low=effect.change[0],
        restored_change_high=effect.change[1],
        had_no_effect=effect.had_no_effect,
        masked=effect.is_masked,
    )


def _trial_result(trial: Trial | None) -> report.TrialResult | None:
    if trial is None:
        return None
    return report.TrialResult(
        kl=trial.kl, k3=trial.k3, flipped_routes=trial.flipped_routes, changed_nodes=trial.changed_nodes
    )


def _variant(profile: str, side: Side) -> report.Variant:
    return report.Variant(profile=profile, dtype=side.plan.dtype, micro_batch=side.micro_batch)


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
        evaluations=sum(observed.counts.evaluations.values()),
        naive_evaluations=observed.naive_evaluations,
        weight_bytes_read=observed.counts.bytes_read,
        seconds=observed.seconds,
    )


def cpu_name() -> str:
    """The processor's name, since its instruction set is part of the numerics."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
