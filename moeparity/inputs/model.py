"""A checkpoint opened and checked, and tokens checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moeparity.errors import TokensError
from moeparity.inputs import machine
from moeparity.inputs.machine import keep_freed_memory
from moeparity.inputs.tokens.tokenset import defect
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import check, file_dtype
from moeparity.inputs.weights.source import Source
from moeparity.inputs.weights.store import Residency, WeightStore
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.progress import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An opened checkpoint. `dtype` is what a variant runs in unless it says otherwise; `constant` are the matrices of
    its files that hold one number only.
    """

    folder: Path
    graph: Graph
    dtype: str
    weights: WeightStore
    vocab_size: int
    constant: tuple[str, ...] = ()

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
    check_weights: bool = True,
) -> Model:
    """Open and check a checkpoint folder. `resident` keeps the weights in memory between runs.

    With the seed `synthetic` only config.json is read, and the weights are made from the seed. Without `check_weights`
    no weight is looked at, which is for estimates. Raises CheckpointError, GraphError, SpecError, DeviceError.
    """
    target = machine.choose(device)
    keep_freed_memory()
    # A folder without weights is told of before a config.json that does not fit them.
    checkpoint = Checkpoint(Path(folder), progress) if synthetic is None else None
    config = Config(Path(folder) / "config.json")
    graph = expand(config)
    source: Source = checkpoint or Synthetic(config, graph, synthetic or 0)
    constant = () if checkpoint is None or not check_weights else check(checkpoint, graph, progress)
    return Model(
        folder=Path(folder),
        graph=graph,
        dtype=config.dtype or file_dtype(source),
        weights=WeightStore(source, graph, target, residency, progress),
        vocab_size=int(config["vocab_size"]),
        constant=constant,
    )


class OpenedOnce:
    """Opens the checkpoint for the first plan that gets as far, and hands it to the others of one recipe."""

    def __init__(self) -> None:
        self.model: Model | None = None

    def __call__(self, folder: Path, **arguments: Any) -> Model:
        """What `open_model` gives."""
        if self.model is None:
            self.model = open_model(folder, **arguments)
        return self.model


def checked_tokens(input_ids: torch.Tensor, model: Model, origin: str) -> torch.Tensor:
    """The token ids on the model's device. Raises TokensError unless they are int64 [B, T] inside the vocabulary."""
    if input_ids.dtype != torch.int64 or input_ids.dim() != 2 or input_ids.numel() == 0:
        shape, dtype = list(input_ids.shape), str(input_ids.dtype).removeprefix("torch.")
        raise TokensError(f"{origin}: input_ids is {dtype} {shape}; expected int64 [sequences, tokens], not empty.")
    low, high = int(input_ids.min()), int(input_ids.max())
    if low < 0 or high >= model.vocab_size:
        bad = low if low < 0 else high
        raise TokensError(
            f"{origin}: input_ids holds {bad}; the vocabulary of {model.folder} is 0..{model.vocab_size - 1}."
        )
    return input_ids.to(model.device)


def checked_mask(mask: torch.Tensor, input_ids: torch.Tensor, origin: str) -> torch.Tensor:
    """The attention mask as bool. Raises TokensError unless it is 0 or 1, of the ids' shape, and padding at one end."""
    if mask.shape != input_ids.shape or mask.dtype not in {torch.bool, torch.int64}:
        shape, dtype = list(mask.shape), str(mask.dtype).removeprefix("torch.")
        raise TokensError(
            f"{origin}: attention_mask is {dtype} {shape}; expected bool or int64 {list(input_ids.shape)}, as "
            "input_ids."
        )
    if bool(((mask != 0) & (mask != 1)).any()):
        raise TokensError(f"{origin}: attention_mask holds values other than 0 and 1.")
    reason = defect(mask.bool())
    if reason is not None:
        raise TokensError(f"{origin}: attention_mask: {reason}.")
    return mask.bool()
