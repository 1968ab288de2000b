"""What looks at a pass, made for a plan."""

from __future__ import annotations

from moeparity.bisection.envelope.observe import Envelope, Settings
from moeparity.bisection.flips.observe import FlipObserver, Ranking
from moeparity.bisection.prepare import Plan
from moeparity.bisection.tokens.classes import Classes
from moeparity.bisection.tokens.records import Records
from moeparity.bisection.trials import SHADOW
from moeparity.engine.work import kernel_settings
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE, Side


def records(plan: Plan) -> Records | None:
    """Looks at what an engine recorded of the tokens; None where it recorded nothing."""
    if not plan.tokens.has_records:
        return None
    tokens, device = plan.tokens, plan.model.device
    return Records(
        output=plan.model.graph.scores,
        walkers=(REFERENCE, CANDIDATE),
        input_ids=tokens.input_ids.to(device),
        scored=tokens.loss_mask.to(device),
        logprobs=None if tokens.logprobs is None else tokens.logprobs.to(device),
        routed_experts=None if tokens.routed_experts is None else tokens.routed_experts.to(device),
    )


def classes(plan: Plan) -> Classes | None:
    """Takes the metrics of each class of tokens; None where they have no labels."""
    tokens, device = plan.tokens, plan.model.device
    if tokens.labels is None:
        return None
    return Classes(
        output=plan.model.graph.scores,
        reference=REFERENCE,
        candidate=CANDIDATE,
        input_ids=tokens.input_ids.to(device),
        loss_mask=tokens.loss_mask.to(device),
        attention_mask=tokens.attention_mask.to(device),
        labels=tokens.labels.to(device),
        count=len(tokens.label_names),
        sampled_from=plan.recipe.tokens.sampler,
    )


def flip_observer(plan: Plan, trials: list[str]) -> FlipObserver | None:
    """Looks at the candidate's routing flips; None without routers."""
    routers = [node for node in plan.model.graph.nodes if node.op.routes]
    if not routers:
        return None
    tokens, device = plan.tokens, plan.model.device
    sides = (plan.reference, plan.candidate)
    return FlipObserver(
        (REFERENCE, CANDIDATE),
        {node.name: (ranking(plan, sides[0], node), ranking(plan, sides[1], node)) for node in routers},
        [-1 if node.layer is None else node.layer for node in routers],
        trials,
        output=plan.model.graph.scores,
        input_ids=tokens.input_ids.to(device),
        loss_mask=tokens.loss_mask.to(device),
        attention_mask=tokens.attention_mask.to(device),
        sampled_from=plan.recipe.tokens.sampler,
    )


def ranking(plan: Plan, side: Side, node: Node) -> Ranking:
    """How a side's router ranks. The weights are its correction bias alone, which is small enough to be kept."""
    how = _called(plan, side)
    return Ranking(w=how.weights(node), p=node.params, at=how.at(node))


def envelope(plan: Plan) -> Envelope | None:
    """Draws legal orders where the candidate's own numerics differ; None where the recipe asks for none."""
    if not plan.recipe.envelope or not plan.attribution:
        return None
    return Envelope(
        walkers=(REFERENCE, SHADOW),
        sides=(_called(plan, plan.reference), _called(plan, plan.candidate)),
        draws=plan.recipe.envelope,
        length=plan.tokens.input_ids.shape[1],
    )


def _called(plan: Plan, side: Side) -> Settings:
    """How a side's kernels are called outside of a pass."""
    bound = side.plan
    return Settings(
        at=lambda node: kernel_settings(node, {**bound.told_to(node), **bound.active(node)}),
        weights=lambda node: plan.model.weights.node(node, bound.dtype_of(node.name)),
    )
