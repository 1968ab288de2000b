"""One variant's forward pass over a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from moeparity.engine.passes import PassRunner
from moeparity.engine.view import NodeView
from moeparity.engine.walker import Walker
from moeparity.errors import SpecError, TokensError, Where, counted, did_you_mean, listed
from moeparity.inputs.machine import refuse_other_machine
from moeparity.inputs.model import Model, checked_mask, checked_tokens, open_model
from moeparity.inputs.tokens.grid import grid_of
from moeparity.inputs.tokens.images import laid_out, refuse_images
from moeparity.numerics.dtypes import FLOAT_NAMES
from moeparity.plan.address import file_key, select
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import Profile, load_profile, overrides, placement_rules
from moeparity.plan.faults.fault import FaultyNode
from moeparity.plan.faults.stated import earlier as versions_before
from moeparity.plan.graph import Graph
from moeparity.plan.rule import Rule
from moeparity.plan.schedule.make import refuse_unfit
from moeparity.plan.schedule.settings import settings
from moeparity.plan.schedule.steps import Groups, MicroBatches, Schedule
from moeparity.plan.schedule.updates import other_versions
from moeparity.plan.sides import walked
from moeparity.plan.spec import reader
from moeparity.plan.spec.variant_schema import Placement
from moeparity.progress import Callback


def forward(
    checkpoint: str | Path | Model,
    input_ids: torch.Tensor,
    *,
    profile: str = "hf-eager",
    micro_batch: int | None = None,
    schedule: Schedule | Mapping[str, Any] | None = None,
    dtype: str | None = None,
    device: str = "auto",
    save: Iterable[str] = (),
    settings: Mapping[str, str | float] | None = None,
    placement: Mapping[str, int | bool | str | Sequence[int]] | None = None,
    earlier: Sequence[str | Path] = (),
    attention_mask: torch.Tensor | None = None,
    images: Mapping[str, torch.Tensor] | None = None,
    memory_limit: float | None = None,
    progress: Callback | None = None,
) -> dict[str, torch.Tensor]:
    """Run one variant over input_ids [B, T] int64 and return its tensors on the CPU.

    `logits` [B, T, V]; for the MoE layer i `layers.{i}.router.ids` (int64) and `layers.{i}.router.weights`, both
    [B * T, K] in slot order; and every value of the nodes that a selector in `save` matches, under its own name.
    `micro_batch` sequences go through an op together (all of them by default: batching is part of the numerics), or the
    steps of a `schedule`: a recipe's own, as in `{"decode": {"from": 8}}`, or one that was made.
    `settings` are a recipe's own `set:`, addresses and values on top of the profile; `placement` is its own, as in
    `{"tensor": 4}`. `earlier` are the checkpoints before each update that the schedule's `updates` place, the latest
    first. `attention_mask` [B, T] bool or int64 is 0 on padding, at the ends of a sequence; padded tokens are computed
    and returned as well, as transformers does. `images` are `image_grid_thw`, `image_embeds` and `deepstack_embeds`, as
    a token file has them (docs/tokens.md). `memory_limit` is the bytes the pass may take (None: what is available,
    infinity: any number). `progress` hears how far it is. Raises MoeparityError.
    """
    _refuse(dtype, micro_batch, schedule)
    where = Where(Path("forward"))
    rules, own_rules, placing = _rules(profile, settings or {}, placement or {}, where)
    refuse_other_machine(rules.name, rules.machine, where)
    # Opening reads every weight once, so whatever can be wrong without them comes before.
    model = checkpoint if isinstance(checkpoint, Model) else open_model(checkpoint, device=device, progress=progress)
    passes = _runner(model, input_ids, attention_mask, images or {}, memory_limit, progress)
    steps = _walked(schedule, micro_batch, placing.groups, passes, where)
    placed, versions = placement_rules(placing, where), _versions(model, steps, earlier, where)
    plan = bind(
        model.graph, rules, dtype or model.dtype, own_rules, placement=placed, phases=steps.phases, faults=versions
    )
    model.weights.refuse_unfit(plan)
    recorder = _Recorder(model.graph, list(save))
    walker = Walker(name="forward", plan=plan, schedule=steps)
    passes.run([walker], [recorder], saved=recorder.saved)
    return recorder.tensors()


def _checked(input_ids: torch.Tensor, model: Model) -> torch.Tensor:
    """The ids on the model's device. Raises TokensError for ids that do not fit it, and for half a pair."""
    tokens = checked_tokens(input_ids, model, "forward")
    if model.graph.pairs and len(tokens) % 2:
        count = counted(len(tokens), "sequence")
        raise TokensError(f"forward: {count} of a model that scores pairs; expected an even number.")
    return tokens


def _runner(
    model: Model,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    images: Mapping[str, torch.Tensor],
    memory_limit: float | None,
    progress: Callback | None,
) -> PassRunner:
    """A runner of passes over these tokens. Raises TokensError where tokens, mask and images do not fit each other."""
    tokens, where = _checked(input_ids, model), Where(Path("forward"))
    mask = None if attention_mask is None else checked_mask(attention_mask, input_ids, "forward")
    real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask
    of_tokens = laid_out(images, input_ids, real, model.graph.config, where) if images else None
    refuse_images(of_tokens, input_ids, model.graph, where)
    return PassRunner(
        weights=model.weights,
        input_ids=tokens,
        attention_mask=mask,
        images=None if of_tokens is None else of_tokens.to(tokens.device),
        memory_limit=memory_limit,
        progress=progress,
    )


def _versions(
    model: Model, steps: Schedule | MicroBatches, earlier: Sequence[str | Path], where: Where
) -> tuple[FaultyNode, ...]:
    """What the steps before each update run with in place of the model's weights. Raises SpecError."""
    if max(steps.lags) > len(earlier):
        raise other_versions(max(steps.lags), len(earlier), where)
    return versions_before(model.graph, [str(Path(folder).absolute()) for folder in earlier], (), where)


def _rules(
    profile: str,
    settings: Mapping[str, str | float],
    placement: Mapping[str, int | bool | str | Sequence[int]],
    where: Where,
) -> tuple[Profile, tuple[Rule, ...], Placement]:
    """What is asked for, read: a profile, settings on top of it, and where it lies. Raises MoeparityError."""
    rules, own_rules = load_profile(profile, where), overrides(dict(settings), where)
    return rules, own_rules, reader.read_placement(placement, where)


def _walked(
    schedule: Schedule | Mapping[str, Any] | None,
    micro_batch: int | None,
    groups: Groups,
    passes: PassRunner,
    where: Where,
) -> Schedule | MicroBatches:
    """The schedule on the tokens of these passes, all of them prompt. Raises SpecError where it does not fit them."""
    tokens, mask = passes.input_ids, passes.attention_mask
    if schedule is None:
        return MicroBatches(micro_batch or len(tokens), groups)
    if isinstance(schedule, Schedule):
        return replace(schedule, groups=groups)
    scheduling = settings(reader.read_scheduling(schedule, where), None, len(tokens), where, groups)
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    apart = tokens if passes.images is None else passes.images.told_apart(tokens)
    ids = None if scheduling.block is None else tuple(map(tuple, apart.tolist()))
    grid = grid_of(real, real.sum(1), ids)
    refuse_unfit(scheduling, grid, where)
    return walked(scheduling, grid, where)


def _refuse(dtype: str | None, micro_batch: int | None, schedule: object) -> None:
    if dtype is not None and dtype not in FLOAT_NAMES:
        nearest = did_you_mean(dtype, FLOAT_NAMES)
        raise SpecError(f"forward: dtype is {dtype!r}; expected one of {listed(FLOAT_NAMES)}.{nearest}")
    if micro_batch is not None and micro_batch < 1:
        raise SpecError(f"forward: micro_batch is {micro_batch}; expected at least 1.")
    if micro_batch is not None and schedule is not None:
        raise SpecError("forward: micro_batch and schedule are both given; expected one of them.")


class _Recorder:
    """Keeps the logits, the routes and the values of selected nodes, wave by wave, on the CPU."""

    def __init__(self, graph: Graph, save: list[str]) -> None:
        self.graph = graph
        names = [node.name for node in graph.nodes]
        self.saved = {
            name for selector in save for name in select(selector, names, graph.layers, Where(Path("--save")))
        }
        self.parts: dict[str, list[torch.Tensor]] = {}

    def see(self, view: NodeView) -> None:
        node = view.node
        for port, value in enumerate(node.values):
            keys = [file_key(value)] if node.name in self.saved else []
            keys += ["logits"] if value == self.graph.output else []
            keys += [f"layers.{node.layer}.router.{node.outputs[port]}"] if node.op.role.routes else []
            for key in keys:
                self.parts.setdefault(key, []).append(view.tensor("forward", port).cpu())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything recorded, all sequences together, contiguous; routes as one row per token."""
        joined = {key: torch.cat(parts).contiguous() for key, parts in self.parts.items()}
        routes = {f"layers.{n.layer}.router.{o}" for n in self.graph.nodes if n.op.role.routes for o in n.outputs}
        return {key: x.flatten(0, 1) if key in routes else x for key, x in joined.items()}
