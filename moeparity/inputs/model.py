"""Opens and checks a checkpoint, and checks tokens against it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moeparity.errors import TokensError
from moeparity.inputs import machine
from moeparity.inputs.machine import keep_freed_memory
from moeparity.inputs.tokens.tokenset import defect
from moeparity.inputs.weights.adapter import adapted
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import check, check_values, file_dtype
from moeparity.inputs.weights.source import Source
from moeparity.inputs.weights.store import Residency, WeightStore
from moeparity.inputs.weights.synthetic import Synthetic
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.progress import Callback


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """An opened checkpoint. dtype: the one in which a variant runs unless it says otherwise. adapter: the folder of the
    LoRA adapter that stands beside its weights.
    """

    folder: Path
    graph: Graph
    dtype: str
    weights: WeightStore
    vocab_size: int
    adapter: Path | None = None

    def check_values(self, progress: Callback | None = None) -> None:
        """Read every weight once. Raises CheckpointError for a value that is not finite."""
        source = self.weights.checkpoint
        if isinstance(source, Checkpoint) and source.constant is None:
            source.constant = check_values(source, self.graph, progress)

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of matrices in which all elements are equal; () if values were not read."""
        source = self.weights.checkpoint
        return (source.constant or ()) if isinstance(source, Checkpoint) else ()

    @property
    def formats(self) -> tuple[str, ...]:
        """The formats of its quantised weights, by name; () if it has none."""
        source = self.weights.checkpoint
        return source.formats if isinstance(source, Checkpoint) else ()

    @property
    def unquantised(self) -> frozenset[str] | None:
        """The nodes with weights of which none is quantised; None if no weight of the checkpoint is."""
        if not self.formats:
            return None
        entries = self.weights.checkpoint.entries
        names = {node.name: [name for ref in node.weights.values() for name in ref.names] for node in self.graph.nodes}
        return frozenset(node for node, tensors in names.items() if not any(entries[name].packed for name in tensors))

    @property
    def device(self) -> torch.device:
        """The device of the weights and of the run."""
        return self.weights.device


def open_model(
    folder: str | Path,
    *,
    device: str = "auto",
    residency: Residency = "stream",
    synthetic: int | None = None,
    progress: Callback | None = None,
    values: bool = True,
    adapter: Path | None = None,
) -> Model:
    """Open and check a checkpoint folder.

    adapter: the folder of a LoRA adapter, as peft writes it, beside the weights. residency: `resident` keeps the
    weights in memory between runs. synthetic: a seed; only config.json is read then, and the weights are made from the
    seed. values: if False, no weight is read, only what the files say about them.
    Raises CheckpointError, GraphError, SpecError, DeviceError.
    """
    target = machine.choose(device)
    keep_freed_memory()
    # A missing checkpoint is reported before a config.json that does not fit.
    checkpoint = Checkpoint(Path(folder), progress) if synthetic is None else None
    config = Config(Path(folder) / "config.json")
    graph = expand(config)
    source: Source = checkpoint or Synthetic(config, graph, synthetic or 0)
    dtype = config.dtype or file_dtype(source)
    if checkpoint is not None:
        checkpoint.fit_to(graph)
        graph = graph if adapter is None else adapted(graph, checkpoint, adapter)
        check(checkpoint, graph)
    model = Model(
        folder=Path(folder),
        graph=graph,
        dtype=dtype,
        adapter=adapter,
        weights=WeightStore(source, graph, target, residency, progress),
        vocab_size=int(config["vocab_size"]),
    )
    if values:
        model.check_values(progress)
    return model


class OpenedOnce:
    """Opens the checkpoint for the first plan of a recipe that needs it, and gives it to the others."""

    def __init__(self) -> None:
        self.model: Model | None = None

    def __call__(self, folder: Path, **arguments: Any) -> Model:
        """The model, as `open_model` gives it."""
        if self.model is None:
            self.model = open_model(folder, **arguments)
        return self.model


def checked_tokens(input_ids: torch.Tensor, model: Model, origin: str) -> torch.Tensor:
    """The token ids on the model's device. Raises TokensError unless they are int64 [B, T] and inside the
    vocabulary.
    """
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
    """The attention mask as bool. Raises TokensError unless it has values 0 and 1, the ids' shape, and padding at the
    ends of sequences alone.
    """
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
