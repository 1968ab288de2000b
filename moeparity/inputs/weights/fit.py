"""Checks that a checkpoint is what the graph needs, and names every fault before the first forward pass."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from moeparity.errors import CheckpointError, Where, listed
from moeparity.inputs.weights.cache_scales import cache_scales, reads_scales
from moeparity.inputs.weights.checkpoint import READABLE, Checkpoint
from moeparity.inputs.weights.packed import GRIDS, on_grid
from moeparity.inputs.weights.source import Entry, Packed, Source
from moeparity.ops.attribute import Value
from moeparity.ops.quantised import CHECKPOINT, multiplies_codes
from moeparity.ops.scale_choices import BLOCK, CHANNEL, GROUP, STATIC, WEIGHTS
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Graph, Node, WeightRef
from moeparity.progress import Callback, Progress

_MADE = "or weight_codes: made, which rounds its numbers anew"


def check(checkpoint: Checkpoint, graph: Graph) -> None:
    """Raises CheckpointError for missing, extra, misshapen and unreadable tensors, in this order. Reads no weight."""
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


def quantisation(graph: Graph) -> str | None:
    """The `quant_method` of config.json's quantization_config; None if it has none."""
    config = graph.config.get("quantization_config")
    return str(config.get("quant_method")) if isinstance(config, dict) else None


def _check_entry(checkpoint: Checkpoint, name: str, ref: WeightRef) -> None:
    entry = checkpoint.require(name, ref.where)
    where = Where(entry.file)
    if entry.dtype not in READABLE and entry.packed is None:
        raise CheckpointError(
            f"{where}: {name} is {entry.dtype}; expected one of {listed(READABLE)}, or a format of "
            "`moeparity show formats`."
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


def refuse_codes(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raises RefusedError where a node is to multiply the checkpoint's codes, and these are in other blocks, have zero
    points or don't come through the node's dtype; and where it is to use a static scale that the checkpoint lacks.
    """
    for node in plan.nodes_as_run:
        if plan.region(node.name) is not None:
            continue
        values, dtype = plan.active(node), plan.dtype_of(node.name)
        if reads_scales(node, values):
            cache_scales(node, plan.graph, checkpoint)
        for name, entry in _quantised(node, checkpoint):
            refusal = _codes(name, entry, checkpoint, values, dtype) or _static(name, checkpoint, values)
            if refusal is not None:
                raise plan.refusal(node, *refusal)


def own_codes(plan: Plan, checkpoint: Checkpoint) -> bool:
    """Whether some GEMM of a plan multiplies the checkpoint's own codes."""
    return any(
        _takes_codes(entry, plan.active(node)) and multiplies_codes(plan.active(node))
        for node in plan.nodes_as_run
        if plan.region(node.name) is None
        for _, entry in _quantised(node, checkpoint)
    )


def _takes_codes(entry: Entry, values: Mapping[str, Value]) -> bool:
    if entry.packed is None or values.get("weight_codes") != CHECKPOINT:
        return False
    return GRIDS.get(entry.packed.form.code) == values[WEIGHTS]


def _quantised(node: Node, checkpoint: Checkpoint) -> Iterator[tuple[str, Entry]]:
    parts = (part for ref in node.weights.values() for part in ref.pieces if not part.checkpoint)
    yield from ((name, checkpoint.entries[name]) for name in dict.fromkeys(part.name for part in parts))


def _codes(
    name: str, entry: Entry, checkpoint: Checkpoint, values: Mapping[str, Value], dtype: str
) -> tuple[str, str] | None:
    """The choice by which a weight's codes cannot be multiplied, and why."""
    packed = entry.packed
    if packed is None or not _takes_codes(entry, values):
        return None
    if on_grid(packed) is None:
        return "weight_codes", f"{name} has zero points, which GEMMs of codes have not. Set made."
    if checkpoint.reordered(name):
        return "weight_codes", f"inputs that share a scale of {name} do not lie side by side (g_idx). Set made."
    scales = checkpoint.stored[packed.tensors["scales"]].dtype
    runs_in_half, has_half_scales, has_integers = dtype == "fp16", scales == "F16", "int" in packed.form.code
    product_in_half = has_half_scales and packed.form.product == "scales"
    if (runs_in_half and not (has_half_scales and has_integers)) or (product_in_half and not has_integers):
        return "weight_codes", f"codes of {packed.form.name}, as {name} has, can be lost in fp16. Run in bf16, {_MADE}."
    return _blocks(name, entry, packed, values)


def _blocks(name: str, entry: Entry, packed: Packed, values: Mapping[str, Value]) -> tuple[str, str] | None:
    shape, side = entry.shape[-2:], int(values.get("weight_block", 0))
    rows, columns = shape[::-1] if packed.form.transposed else shape
    stated = {BLOCK: (side, side), GROUP: (1, side), CHANNEL: (1, columns)}.get(
        str(values["weight_scales"]), (rows, columns)
    )
    block = (min(packed.by_output[0], rows), min(packed.by_output[1], columns))
    if block == (min(stated[0], rows), min(stated[1], columns)):
        return None
    reason = (
        f"the checkpoint has a scale of {name} for each {block[0]} x {block[1]} numbers, and not "
        f"{stated[0]} x {stated[1]}. Set these, {_MADE}."
    )
    return ("weight_block" if "weight_block" in values else "weight_scales"), reason


def _static(name: str, checkpoint: Checkpoint, values: Mapping[str, Value]) -> tuple[str, str] | None:
    if values.get("activation_scales") != STATIC or checkpoint.input_scale(name) is not None:
        return None
    return "activation_scales", f"the checkpoint has no input_scale beside {name}. Set token, or group."


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
