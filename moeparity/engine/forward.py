"""A checkpoint made ready to run, and one variant's forward pass over it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from moeparity.engine.footprint import require
from moeparity.engine.lockstep import NodeView, Walker, run
from moeparity.engine.memory import keep_freed_memory
from moeparity.errors import SpecError, TokensError, Where, listed
from moeparity.inputs import machine
from moeparity.inputs.tokens import padding
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import check, file_dtype
from moeparity.inputs.weights.source import Source
from moeparity.inputs.weights.store import Residency, WeightStore
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.numerics.dtypes import FLOAT_NAMES
from moeparity.plan.address import file_key, select
from moeparity.plan.bind import bind
from moeparity.plan.config import Config
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.plan.spec import files
from moeparity.progress import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An opened checkpoint. `dtype` is what a variant runs in unless it says otherwise."""

    folder: Path
    graph: Graph
    dtype: str
    weights: WeightStore
    vocab_size: int

    @property
    def device(self) -> torch.device:
        """Where the weights go and the variants run."""
        return self.weights.device


def open_model(
    folder: str | Path,
    *,
    device: str = "auto",
    residency: Residency = "stream",
    synthetic: int | None = None,
    progress: Callback | None = None,
) -> Model:
    """Open and check a checkpoint folder. `resident` keeps the weights in memory between runs.

    With the seed `synthetic` only config.json is read, and the weights are made from the seed. Raises CheckpointError,
    GraphError, SpecError, DeviceError.
    """
    target = machine.choose(device)
    keep_freed_memory()
    # A folder without weights is told of before a config.json that does not fit them.
    checkpoint = Checkpoint(Path(folder)) if synthetic is None else None
    config = Config(Path(folder) / "config.json")
    graph = expand(config)
    source: Source = checkpoint or Synthetic(config, graph, synthetic or 0)
    if checkpoint is not None:
        check(checkpoint, graph, progress)
    return Model(
        folder=Path(folder),
        graph=graph,
        dtype=config.dtype or file_dtype(source),
        weights=WeightStore(source, graph, target, residency),
        vocab_size=int(config["vocab_size"]),
    )


def checked_tokens(input_ids: torch.Tensor, model: Model, what: str) -> torch.Tensor:
    """The token ids on the model's device. Raises TokensError unless they are int64 [B, T] inside the vocabulary."""
    if input_ids.dtype != torch.int64 or input_ids.dim() != 2 or input_ids.numel() == 0:
        shape, dtype = list(input_ids.shape), str(input_ids.dtype).removeprefix("torch.")
        raise TokensError(f"{what}: input_ids is {dtype} {shape}; expected int64 [sequences, tokens], not empty.")
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= model.vocab_size:
        bad = low if low < 0 else high
        raise TokensError(
            f"{what}: input_ids holds {bad}; the vocabulary of {model.folder} is 0..{model.vocab_size - 1}."
        )
    return input_ids.to(model.device)


def checked_mask(mask: torch.Tensor, input_ids: torch.Tensor, what: str) -> torch.Tensor:
    """The attention mask as bool. Raises TokensError unless it is 0 or 1, of the ids' shape, and padding at one end."""
    if mask.shape != input_ids.shape or mask.dtype not in {torch.bool, torch.int64}:
        shape, dtype = list(mask.shape), str(mask.dtype).removeprefix("torch.")
        raise TokensError(
            f"{what}: attention_mask is {dtype} {shape}; expected bool or int64 {list(input_ids.shape)}, as input_ids."
        )
    if bool(((mask != 0) & (mask != 1)).any()):
        raise TokensError(f"{what}: attention_mask holds values other than 0 and 1.")
    reason = padding.defect(mask.bool())
    if reason is not None:
        raise TokensError(f"{what}: attention_mask: {reason}.")
    return mask.bool()


def forward(
    checkpoint: str | Path | Model,
    input_ids: torch.Tensor,
    *,
    profile: str = "hf-eager",
    micro_batch: int | None = None,
    dtype: str | None = None,
    device: str = "auto",
    save: Iterable[str] = (),
    settings: Mapping[str, str | float] | None = None,
    placement: Mapping[str, int | bool] | None = None,
    attention_mask: torch.Tensor | None = None,
    memory_limit: float | None = None,
    progress: Callback | None = None,
) -> dict[str, torch.Tensor]:
    """Run one variant over input_ids [B, T] int64 and return its tensors on the CPU.

    `logits` [B, T, V]; for the MoE layer i `layers.{i}.router.ids` (int64) and `layers.{i}.router.weights`, both
    [B * T, K] in slot order; and every value of the nodes that a selector in `save` matches, under its own name.
    `micro_batch` sequences go through an op together (all of them by default: batching is part of the numerics).
    `settings` are a recipe's own `set:`, addresses and values on top of the profile; `placement` is its own, as in
    `{"tensor": 4}`. `attention_mask` [B, T] bool or
    int64 is 0 on padding, at the left or right end of a sequence; padded tokens are computed and returned as well, as
    transformers does. `memory_limit` is the bytes the pass may take (None: what is available, infinity: any number).
    `progress` hears how far it is.
    Raises MoeparityError.
    """
    if dtype is not None and dtype not in FLOAT_NAMES:
        raise SpecError(f"forward: dtype is {dtype!r}; expected one of {listed(FLOAT_NAMES)}.")
    if micro_batch is not None and micro_batch < 1:
        raise SpecError(f"forward: micro_batch is {micro_batch}; expected at least 1.")
    here = Where(Path("forward"))
    rules, own = load_profile(profile, here), overrides(dict(settings or {}), here)
    placed = placement_rules(files.read_placement(placement or {}, here), here)
    # Opening reads every weight once, so whatever can be wrong without them comes before.
    model = checkpoint if isinstance(checkpoint, Model) else open_model(checkpoint, device=device, progress=progress)
    tokens = checked_tokens(input_ids, model, "forward")
    mask = None if attention_mask is None else checked_mask(attention_mask, input_ids, "forward")
    plan = bind(model.graph, rules, dtype or model.dtype, own, placement=placed)
    recorder = _Recorder(model.graph, list(save))
    walker = Walker(name="forward", plan=plan, micro_batch=micro_batch or len(tokens))
    work = require([walker], model.weights, *tokens.shape, limit=memory_limit, kept=recorder.saved).work
    run([walker], model.weights, tokens, [recorder], attention_mask=mask, work=work, progress=progress)
    return recorder.tensors()


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
            keys += [f"layers.{node.layer}.router.{node.outputs[port]}"] if node.op.routes else []
            for key in keys:
                self.parts.setdefault(key, []).append(view.tensor("forward", port).cpu())

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything recorded, all sequences together, contiguous; routes as one row per token."""
        joined = {key: torch.cat(parts).contiguous() for key, parts in self.parts.items()}
        routes = {f"layers.{n.layer}.router.{o}" for n in self.graph.nodes if n.op.routes for o in n.outputs}
        return {key: x.flatten(0, 1) if key in routes else x for key, x in joined.items()}
