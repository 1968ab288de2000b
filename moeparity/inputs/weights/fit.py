"""Checks that a checkpoint is what the graph needs, and names every fault before the first forward pass."""

from __future__ import annotations

import math
import re
from collections import Counter

import torch

from moeparity.errors import CheckpointError, Where, listed
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.source import Entry, Source
from moeparity.plan.graph import Graph, WeightRef
from moeparity.progress import Callback, Progress

READABLE = ("BF16", "F16", "F32")
_COPY = {
    "mxfp4": "Write a copy in bf16 with transformers, from_pretrained(..., quantization_config=Mxfp4Config("
    "dequantize=True)), then save_pretrained(..., save_original_format=False), and give that"
}
"""quant_method -> how to make a checkpoint that can be read; tried with transformers 5.23.0."""


def check(checkpoint: Checkpoint, graph: Graph) -> None:
    """Raises CheckpointError for missing, extra, misshapen and unreadable tensors, in this order. Reads no weight."""
    _refuse_quantised(checkpoint, graph)
    for ref in _weights(graph):
        for name in ref.names:
            _check_entry(checkpoint, name, ref)
    _check_extra(checkpoint, {name for ref in _weights(graph) for name in ref.names}, graph)


def check_values(checkpoint: Checkpoint, graph: Graph, progress: Callback | None = None) -> tuple[str, ...]:
    """Reads every tensor once; `progress` is told of each. Raises CheckpointError for a value that is not finite.

    Returns the names of matrices in which all elements are equal, which no training leaves.
    """
    names = sorted({name for ref in _weights(graph) for name in ref.names})
    total, done, constant = sum(checkpoint.entries[name].bytes for name in names), 0, []
    for name in names:
        _report(progress, checkpoint.entries[name], done, total)
        _check_finite(checkpoint, name)
        if _is_constant(checkpoint.tensor(name)):
            constant.append(name)
        done += checkpoint.entries[name].bytes
        _report(progress, checkpoint.entries[name], done, total)
    return tuple(constant)


def _weights(graph: Graph) -> list[WeightRef]:
    return [ref for node in graph.nodes for ref in node.weights.values()]


def _report(progress: Callback | None, entry: Entry, done: int, total: int) -> None:
    if progress is not None:
        at = entry.file.name
        progress(Progress(step="checking weights", at=at, done=done, total=total, work=done / 1e6, unit="MB"))


def _refuse_quantised(checkpoint: Checkpoint, graph: Graph) -> None:
    """Refuse a checkpoint whose config.json says that it is quantised: its tensors have other names, and a message
    about missing ones would explain nothing.
    """
    method = quantisation(graph)
    if method is None or all(entry.dtype in READABLE for entry in checkpoint.entries.values()):
        return
    raise CheckpointError(
        f"{Where(checkpoint.config_path)}: quantization_config says {method}; quantised checkpoints are not read. "
        f"{_COPY.get(method, 'Give the one it was made from')}."
    )


def quantisation(graph: Graph) -> str | None:
    """The `quant_method` of config.json's quantization_config; None if it has none."""
    config = graph.config.get("quantization_config")
    return str(config.get("quant_method")) if isinstance(config, dict) else None


def _check_entry(checkpoint: Checkpoint, name: str, ref: WeightRef) -> None:
    entry = checkpoint.require(name, ref.where)
    where = Where(entry.file)
    if entry.dtype not in READABLE:
        raise CheckpointError(
            f"{where}: {name} is {entry.dtype}; expected one of {listed(READABLE)}. "
            "Quantised checkpoints are not read: give the one they were made from."
        )
    if entry.shape != ref.stored:
        raise CheckpointError(
            f"{where}: {name} has shape {list(entry.shape)}; {ref.where} with {checkpoint.config_path.name} expects "
            f"{list(ref.stored)}. Do config.json and weights belong together?"
        )


def _check_extra(checkpoint: Checkpoint, names: set[str], graph: Graph) -> None:
    ignore = re.compile("|".join(_pattern(p) for p in (*graph.ignore, "**.rotary_emb.inv_freq")))
    # A tied head may be stored nevertheless; the graph takes the embedding.
    extra = [n for n in checkpoint.entries if n not in names and not ignore.fullmatch(n) and n != "lm_head.weight"]
    if extra:
        where = Where(checkpoint.entries[extra[0]].file)
        examples = listed(extra[:3]) + (f" and {len(extra) - 3} more" if len(extra) > 3 else "")
        raise CheckpointError(
            f"{where}: holds tensors the {graph.model_type} graph does not use: {examples}. "
            "Is model_type right? A graph lists tensors to pass over under `ignore:`."
        )


def _pattern(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")


def _check_finite(checkpoint: Checkpoint, name: str) -> None:
    """Raises CheckpointError unless all values of the tensor are finite."""
    tensor: torch.Tensor = checkpoint.tensor(name)
    # One quick pass, since a NaN or an infinity makes the sum so. A finite sum may also overflow, hence the count
    # below.
    if math.isfinite(float(tensor.sum(dtype=torch.float32))):
        return
    finite = torch.isfinite(tensor)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise CheckpointError(
            f"{Where(checkpoint.entries[name].file)}: {name}: {bad} of {tensor.numel()} values are NaN or infinite. "
            "The checkpoint is damaged, or was saved from a diverged run."
        )


def _is_constant(tensor: torch.Tensor) -> bool:
    """Whether all elements of a matrix, or of one in a stack, are equal; norms and biases may be."""
    if tensor.dim() < 2 or tensor.shape[-1] * tensor.shape[-2] < 2:
        return False
    for matrix in tensor.reshape(-1, *tensor.shape[-2:]):
        # For all but a constant matrix, a few rows decide.
        first = matrix[0, 0]
        if bool((matrix[:2] == first).all()) and bool((matrix == first).all()):
            return True
    return False


def file_dtype(source: Source) -> str:
    """The dtype of most tensors: `bf16`, `fp16` or `fp32`."""
    names = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
    counts = Counter(names[e.dtype] for e in source.entries.values() if e.dtype in names)
    return counts.most_common(1)[0][0] if counts else "fp32"
