"""Writes a quantised copy of a checkpoint in the layout of the hub, each weight rounded to the nearest code.

Scales are made from the largest number of each block alone: no calibration, no search, no clipping. So the copy has the
format of a published checkpoint, and not the quality of one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from moeparity.errors import CheckpointError, Where
from moeparity.inputs.weights.checkpoint import SINGLE, Checkpoint
from moeparity.inputs.weights.codes import joined, nearest_codes, per_word
from moeparity.inputs.weights.formats import BITS, Block, Format, Packing
from moeparity.inputs.weights.packed import factors, spread
from moeparity.inputs.weights.rounded_to_fp8 import amax
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from moeparity.plan.graph import Graph
from moeparity.progress import Callback

_TOPS = {"e4m3": 448.0, "e2m1": 6.0, "int4": 7.5, "int8": 127.5}
_POWERS = {"e4m3": 8, "e2m1": 2}
"""The exponent of 2 in the largest number of each code."""
_TINY = 1e-30
_COMPRESSED = {
    "fp8": "float-quantized", "mxfp8": "mxfp8-quantized", "mxfp4-packed": "mxfp4-pack-quantized",
    "nvfp4-packed": "nvfp4-pack-quantized", "int4-packed": "pack-quantized", "int8-packed": "pack-quantized",
    "int8": "int-quantized",
}  # fmt: skip


def default_group(form: Format) -> int:
    """Inputs that share a scale unless the caller says otherwise; 0: all of a row."""
    if form.group:
        return form.group
    return 0 if form.name in ("fp8", "int8", "int8-packed") else 32 if form.name == "int4-packed" else 128


def quantise(folder: Path, form: Format, out: Path, group: int, progress: Callback | None = None) -> list[str]:
    """Write the checkpoint in a folder to the new folder `out`, with the weights of its linear layers and experts in a
    format; returns their names. All of the copy is held in memory. Raises CheckpointError for a checkpoint that is
    quantised already, and for weights that the format does not fit.
    """
    source = Checkpoint(folder, progress)
    graph = expand(Config(folder / "config.json"))
    is_quantised = any(entry.packed for entry in source.entries.values())
    chosen = [name for name in dict.fromkeys(_weights(graph)) if _fits(source, name, form)]
    if is_quantised or not chosen:
        reason = "is quantised already" if is_quantised else f"has no weight that {form.name} fits: {_fitting(form)}"
        raise CheckpointError(f"{Where(folder)}: {reason}. Give another checkpoint.")
    tensors: dict[str, Tensor] = {}
    for name in source.entries:
        tensor = source.tensor(name)
        tensors |= _packed(name, tensor, form, group) if name in chosen else {name: tensor}
    fields = json.loads((folder / "config.json").read_text("utf-8"))
    left_out = [name.removesuffix(".weight") for name in source.entries if _is_left(source, name, chosen)]
    fields["quantization_config"] = _config(form, group, left_out)
    out.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, out / SINGLE, {"format": "pt"})
    (out / "config.json").write_text(json.dumps(fields, indent=2), "utf-8")
    return chosen


def _weights(graph: Graph) -> Iterator[str]:
    """The names that engines quantise: matrices of layers, the router's left out, and so embedding and head."""
    for node in graph.nodes:
        if node.layer is not None and not node.op.role.gates:
            yield from (name for ref in node.weights.values() for name in ref.names)


def _is_left(source: Checkpoint, name: str, chosen: list[str]) -> bool:
    return (
        name.endswith(".weight") and len(source.entries[name].shape) == 2 and name not in chosen and "embed" not in name
    )


def _fits(source: Checkpoint, name: str, form: Format) -> bool:
    shape = source.entries[name].shape
    if form.transposed:
        return len(shape) == 3 and shape[1] % form.group == 0
    if not name.endswith(".weight") or len(shape) != 2 or shape[0] < 2:
        return False
    # Words that would not be full, and blocks of a size that the format fixes, are not read.
    whole = per_word(form.packing, BITS[form.code])
    return shape[1] % math.lcm(form.group or 1, whole) == 0 and (not form.input_major or shape[0] % whole == 0)


def _fitting(form: Format) -> str:
    if form.transposed:
        return f"experts in one tensor [experts, inputs, outputs], inputs a multiple of {form.group}"
    size = math.lcm(form.group or 1, per_word(form.packing, BITS[form.code]))
    return f"matrices whose inputs are a multiple of {size}, one for each expert"


def _packed(name: str, tensor: Tensor, form: Format, group: int) -> dict[str, Tensor]:
    """The tensors that a weight becomes, by their names in the file."""
    prefix = name.removesuffix(form.weight) if form.weight else name
    if form.transposed:
        roles = [packed(matrix.mT, form, group) for matrix in tensor]
        stacked = {role: torch.stack([each[role] for each in roles]) for role in roles[0]}
        stacked["values"] = stacked["values"].view(*stacked["scales"].shape, form.group // 2)
    else:
        stacked = packed(tensor, form, group)
    return {prefix + form.names[role]: each for role, each in stacked.items()}


def packed(weight: Tensor, form: Format, group: int) -> dict[str, Tensor]:
    """A matrix [outputs, inputs] in a format: its tensors by role. group: inputs that share a scale; 0: all."""
    matrix = weight.float().mT.contiguous() if form.input_major else weight.float()
    block = _block(form, group, tuple(matrix.shape))
    tensors, zeros = {}, None
    if form.code.startswith("u"):
        scales, zeros = _with_zeros(matrix, block, BITS[form.code])
        tensors = {"scales": scales.half(), "zeros": _words(zeros - form.zero_offset, form.zero_packing, form)}
        if form.index:
            tensors["index"] = (torch.arange(len(matrix)) // block[0]).int()
    else:
        tensors = _scales(amax(matrix, block), form, weight.dtype)
    effective = factors(tensors["scales"], tensors.get("second"), divides=form.second_divides).float()
    by = spread(effective, block, tuple(matrix.shape))
    shifted = matrix / by + (0 if zeros is None else spread(zeros, block, tuple(matrix.shape)))
    codes = nearest_codes(shifted, form.code)
    tensors["values"] = codes if form.code == "e4m3" else _words(codes, form.packing, form)
    if form.shape:
        tensors["shape"] = torch.tensor(weight.shape)
    return tensors


def _block(form: Format, group: int, shape: tuple[int, ...]) -> Block:
    if form.name == "fp8-blocks":
        return group or shape[0], group or shape[1]
    return (group or shape[0], 1) if form.input_major else (1, group or shape[1])


def _scales(largest: Tensor, form: Format, dtype: torch.dtype) -> dict[str, Tensor]:
    """Scales by role such that the largest number of a block is that of the code."""
    top = _TOPS[form.code]
    if form.scale_dtypes == ("U8",):
        exponents = torch.frexp(largest.clamp(min=_TINY)).exponent - 1 - _POWERS[form.code]
        return {"scales": (exponents + 127).clamp(0, 254).to(torch.uint8)}
    if form.second:
        second = (largest.max() / (top * _TOPS["e4m3"])).clamp(min=_TINY)
        scales = (largest / top / second).clamp(2**-6, _TOPS["e4m3"]).to(torch.float8_e4m3fn)
        return {"scales": scales, "second": (1 / second).view(1) if form.second_divides else second}
    scales = torch.where(largest > 0, largest / top, 1.0)
    return {"scales": scales if form.code == "e4m3" else scales.to(dtype)}


def _with_zeros(matrix: Tensor, block: Block, bits: int) -> tuple[Tensor, Tensor]:
    """Scales, fp32, and zero points such that a block's least and largest numbers are the ends of the codes; GPTQ keeps
    them above 0.
    """
    above, below = amax(matrix.clamp(min=0), block), amax(matrix.clamp(max=0), block)
    scales = ((above + below) / (2**bits - 1)).clamp(min=1e-6).half().float()
    return scales, (below / scales).round().clamp(1, 2**bits - 1).to(torch.int16)


def _words(codes: Tensor, packing: Packing, form: Format) -> Tensor:
    if packing == "one by one":
        return codes.to(torch.int8)
    above = 0 if form.code.startswith(("u", "e")) else 2 ** (BITS[form.code] - 1)
    return joined((codes + above).to(torch.uint8), packing, BITS[form.code])


def _config(form: Format, group: int, left_out: list[str]) -> dict[str, Any]:
    """The quantization_config of a published checkpoint of the format."""
    method = form.methods[0] if form.name != "fp8" else "compressed-tensors"
    if method == "compressed-tensors":
        return _compressed(form, group, left_out)
    methods: dict[str, dict[str, Any]] = {
        "fp8": {"fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [group, group]},
        "mxfp4": {"modules_to_not_convert": left_out},
        "awq": {
            "bits": 4, "group_size": group, "zero_point": True, "version": "gemm", "modules_to_not_convert": left_out,
        },
        "gptq": {"bits": BITS[form.code], "group_size": group or -1, "desc_act": False, "sym": False},
        "modelopt": {"quant_algo": form.name.upper(), "ignore": left_out, "producer": {"name": "modelopt"}},
    }  # fmt: skip
    return {"quant_method": method, **methods[method]}


def _compressed(form: Format, group: int, left_out: list[str]) -> dict[str, Any]:
    strategy = "tensor_group" if form.second else "group" if group else "channel"
    weights: dict[str, Any] = {
        "num_bits": BITS[form.code], "type": "float" if form.code.startswith("e") else "int", "symmetric": True,
        "strategy": strategy, "dynamic": False, **({"group_size": group} if group else {}),
        **({"scale_dtype": "torch.uint8"} if form.name == "mxfp8" else {}),
    }  # fmt: skip
    described: dict[str, Any] = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": _COMPRESSED[form.name], "quantization_status": "compressed",
        "config_groups": {"group_0": described}, "ignore": left_out, "kv_cache_scheme": None,
    }  # fmt: skip
