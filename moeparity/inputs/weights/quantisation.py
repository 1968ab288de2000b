"""What config.json says of quantised weights: in which formats and blocks they lie, and which modules have none.

Every key is known here, with the values it may have, or the checkpoint is refused: a key that is passed over may change
what a code stands for. Sources: transformers 5.23.0 (utils/quantization_config.py), compressed-tensors 0.20.1
(quantization/quant_args.py), modelopt 0.47.0 (torch/export/convert_hf_config.py) and gptqmodel 7.7.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeparity import paths
from moeparity.errors import CheckpointError, Where, did_you_mean, listed, shown
from moeparity.inputs.weights.formats import FORMATS, Block

Fields = Mapping[str, Any]

_FREE: Sequence[Any] = ()
"""For a key whose value changes no weight, or is read below: any value."""
_NOTHING: Sequence[Any] = (None, {}, [], False)
_KEYS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "fp8": {
        "fmt": ("e4m3", "float8_e4m3fn"), "activation_scheme": ("dynamic", "static"), "weight_block_size": _FREE,
        "scale_fmt": (None, "float", "ue8m0"), "expert_dtype": (None, "fp8"), "modules_to_not_convert": _FREE,
        "ignored_layers": _FREE, "modules_to_convert": _FREE, "dequantize": _FREE, "kv_cache_scheme": _FREE,
    },
    "mxfp4": {"modules_to_not_convert": _FREE, "dequantize": _FREE},
    "awq": {
        "bits": (4,), "w_bit": (4,), "group_size": _FREE, "q_group_size": _FREE, "zero_point": (True,),
        "version": ("gemm", "GEMM"), "format": ("gemm",), "backend": _FREE, "modules_to_not_convert": _FREE,
        "do_fuse": _FREE, "fuse_max_seq_len": _FREE, "modules_to_fuse": _FREE, "exllama_config": _FREE,
    },
    "gptq": {
        "bits": (4, 8), "group_size": _FREE, "desc_act": (True, False), "sym": (True, False),
        "checkpoint_format": ("gptq",), "format": ("gptq",), "pack_dtype": ("int32",), "lm_head": (True, False),
        "dynamic": _NOTHING, "modules_in_block_to_quantize": _FREE, "true_sequential": _FREE, "static_groups": _FREE,
        "damp_percent": _FREE, "damp_auto_increment": _FREE, "act_group_aware": _FREE, "mse": _FREE, "meta": _FREE,
        "model_name_or_path": _FREE, "model_file_base_name": _FREE, "dataset": _FREE, "tokenizer": _FREE,
        "batch_size": _FREE, "block_name_to_quantize": _FREE, "module_name_preceding_first_block": _FREE,
        "pad_token_id": _FREE, "max_input_length": _FREE, "model_seqlen": _FREE, "backend": _FREE,
        "cache_block_outputs": _FREE, "use_cuda_fp16": _FREE, "use_exllama": _FREE, "exllama_config": _FREE,
        "disable_exllama": _FREE,
    },
    "compressed-tensors": {
        "config_groups": _FREE, "format": _FREE, "ignore": _FREE, "kv_cache_scheme": _FREE, "version": _FREE,
        "quantization_status": ("compressed", "frozen"), "global_compression_ratio": _FREE,
        "sparsity_config": _NOTHING, "transform_config": _NOTHING, "run_compressed": _FREE, "dequantize": _FREE,
    },
    "modelopt": {
        "quant_algo": _FREE, "config_groups": _FREE, "ignore": _FREE, "exclude_modules": _FREE, "producer": _FREE,
        "kv_cache_scheme": _FREE, "kv_cache_quant_algo": _FREE, "group_size": _FREE, "quantized_layers": _FREE,
        "has_zero_point": _NOTHING, "pre_quant_scale": _NOTHING,
    },
}  # fmt: skip
"""quant_method -> key -> the values it may have (none listed: any)."""
_ARGUMENTS: Mapping[str, Sequence[Any]] = {
    "num_bits": (4, 8), "type": ("int", "float"), "symmetric": (True, False), "group_size": _FREE,
    "strategy": ("tensor", "channel", "group", "tensor_group", "block"), "block_structure": _FREE,
    "dynamic": (False,), "actorder": (None, "static", "weight", False), "scale_dtype": _FREE,
    "zp_dtype": _FREE, "observer": _FREE, "observer_kwargs": _FREE,
}  # fmt: skip
"""Keys of `weights` in a group of compressed-tensors, as above."""
_GROUP = {"targets", "weights", "input_activations", "output_activations", "format"}
_PACKED = {
    "float-quantized": ("fp8",), "naive-quantized": ("fp8", "int8"), "int-quantized": ("int8",),
    "pack-quantized": ("int4-packed", "int8-packed"), "nvfp4-pack-quantized": ("nvfp4-packed",),
    "mxfp4-pack-quantized": ("mxfp4-packed",), "mxfp8-quantized": ("mxfp8",), "mixed-precision": (),
}  # fmt: skip
"""`format` of compressed-tensors -> what may lie there; of mixed-precision each group says its own."""
_CODES = {(8, "float"): ("e4m3",), (4, "float"): ("e2m1",), (8, "int"): ("int8",), (4, "int"): ("int4",)}
_ALGORITHMS = {
    "FP8": ("fp8", (0, 0)), "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", (1, 0)), "NVFP4": ("nvfp4", (1, 16)),
    "W4A16_NVFP4": ("nvfp4", (1, 16)), "MXFP8": ("mxfp8", (1, 32)),
}  # fmt: skip
"""`quant_algo` of modelopt -> format and block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Modules whose weights lie in one of these formats. targets: their names or patterns; () for all. block: what
    shares a scale (None: not said). zeros: whether there are zero points (None: as the format has them).
    """

    formats: tuple[str, ...]
    block: Block | None = None
    zeros: bool | None = None
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """What config.json says: quant_method ("" if nothing), rules, and the modules that are left as they are."""

    where: Where
    method: str = ""
    rules: tuple[Rule, ...] = (Rule(formats=("fp8-blocks", "fp8")),)
    skipped: tuple[str, ...] = ()

    def rule(self, module: str, form: str) -> Rule | None:
        """The rule by which a module's weights lie in a format; None if there is none."""
        fitting = (rule for rule in self.rules if form in rule.formats)
        return next((rule for rule in fitting if not rule.targets or names(rule.targets, module)), None)


def names(patterns: Sequence[str], module: str) -> bool:
    """Whether a list of modules names this one, or one that it is a part of: by its whole name or the end of it, with
    `*` for anything; after `re:` by a regular expression.
    """
    for pattern in patterns:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], module):
                return True
            continue
        anything = re.escape(pattern).replace(r"\*", ".*")
        if pattern == "Linear" or re.search(rf"(?:^|\.){anything}(?:\.|$)", module):
            return True
    return False


def read(config: Path) -> Quantisation:
    """What the config.json at this path says of quantised weights. Raises CheckpointError for a method, key or value
    that is not known.
    """
    where = Where(config)
    fields = _stated(config)
    if fields is None:
        return Quantisation(where=where)
    method = str(fields.get("quant_method", ""))
    if method not in _KEYS:
        raise CheckpointError(
            f"{where}: quantization_config says quant_method {shown(fields.get('quant_method'))}; moeparity reads "
            f"{listed(_KEYS)}. Give the checkpoint it was made from."
        )
    _check(where, f"quantization_config of {method}", fields, {"quant_method": _FREE, **_KEYS[method]})
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    skipped = tuple(pattern for key in keys for pattern in _patterns(where, key, fields.get(key)))
    rules = _RULES[method](where, fields)
    return Quantisation(where=where, method=method, rules=rules, skipped=skipped)


def _stated(config: Path) -> Fields | None:
    """The quantization_config, also that of a language model in a larger one, or of modelopt's own file."""
    try:
        fields = json.loads(paths.contents(config, "config.json"))
        text = fields.get("text_config") or {}
        stated = fields.get("quantization_config") or text.get("quantization_config")
        beside = config.with_name("hf_quant_config.json")
        if not stated and paths.present(beside):
            stated = {"quant_method": "modelopt", **json.loads(paths.contents(beside, beside.name))["quantization"]}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return stated if isinstance(stated, dict) else None


def _check(where: Where, place: str, fields: Fields, allowed: Mapping[str, Sequence[Any]]) -> None:
    for key, value in fields.items():
        if key not in allowed:
            raise CheckpointError(
                f"{where}: {place} has {key!r}, which is not known, so what it changes is not either."
                f"{did_you_mean(key, allowed)} Take it out of a copy if it changes no weight."
            )
        if allowed[key] and value not in allowed[key]:
            raise CheckpointError(
                f"{where}: {place} has {key} {shown(value)}; moeparity reads "
                f"{listed([shown(each) for each in allowed[key]])}. Give the checkpoint it was made from."
            )


def _patterns(where: Where, key: str, value: object) -> tuple[str, ...]:
    """A list of modules. Raises CheckpointError for anything else, and for what is no regular expression."""
    modules = [] if value is None else value
    if isinstance(modules, list) and all(isinstance(name, str) and _is_pattern(name) for name in modules):
        return tuple(modules)
    raise CheckpointError(
        f"{where}: quantization_config has {key} {value}; expected a list of modules, or of patterns after `re:`."
    )


def _is_pattern(name: str) -> bool:
    try:
        re.compile(name[3:] if name.startswith("re:") else "")
    except re.error:
        return False
    return True


def _number(where: Where, key: str, value: object) -> int:
    if type(value) is not int or (value < 1 and value != -1):
        raise CheckpointError(
            f"{where}: quantization_config has {key} {shown(value)}; expected a whole number above 0, or -1."
        )
    return max(value, 0)


def _pair(where: Where, key: str, value: object) -> Block | None:
    if value is None:
        return None
    sides = [int(side) for side in re.findall(r"\d+", value)] if isinstance(value, str) else value
    if isinstance(sides, list) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
        return sides[0], sides[1]
    raise CheckpointError(
        f"{where}: quantization_config has {key} {value}; expected two whole numbers above 0, rows and columns."
    )


def _fp8(where: Where, fields: Fields) -> tuple[Rule, ...]:
    block = _pair(where, "weight_block_size", fields.get("weight_block_size"))
    return (Rule(formats=("fp8-blocks",), block=block), Rule(formats=("fp8",), block=block))


def _mxfp4(where: Where, fields: Fields) -> tuple[Rule, ...]:
    return (Rule(formats=("mxfp4",), block=(1, 32)),)


def _awq(where: Where, fields: Fields) -> tuple[Rule, ...]:
    size = fields.get("group_size", fields.get("q_group_size", 128))
    return (Rule(formats=("awq",), block=(_number(where, "group_size", size), 1)),)


def _gptq(where: Where, fields: Fields) -> tuple[Rule, ...]:
    form = "gptq-int8" if fields.get("bits") == 8 else "gptq-int4"
    return (Rule(formats=(form,), block=(_number(where, "group_size", fields.get("group_size", 128)), 1)),)


def _compressed(where: Where, fields: Fields) -> tuple[Rule, ...]:
    groups = fields.get("config_groups")
    by_name = _mappings(where, "config_groups", groups)
    described = {name: group for name, group in by_name.items() if group.get("weights")}
    _mappings(where, "weights of config_groups", {name: group["weights"] for name, group in described.items()})
    return tuple(_group(where, fields, name, group) for name, group in described.items())


def _mappings(where: Where, key: str, value: object) -> Mapping[str, Fields]:
    """A mapping of names to mappings. Raises CheckpointError for anything else."""
    if isinstance(value, dict) and all(isinstance(each, dict) for each in value.values()):
        return value
    raise CheckpointError(f"{where}: quantization_config has {key} {shown(value)}; expected names, each with its keys.")


def _group(where: Where, fields: Fields, name: str, group: Fields) -> Rule:
    place, arguments = f"config_groups.{name} of quantization_config", group["weights"]
    _check(where, place, group, dict.fromkeys(_GROUP, _FREE))
    _check(where, f"{place}: weights", arguments, _ARGUMENTS)
    stored_as = group.get("format") or fields.get("format")
    codes = _CODES[int(arguments.get("num_bits", 8)), str(arguments.get("type", "int"))]
    formats = tuple(form for form in _PACKED.get(str(stored_as), ()) if FORMATS[form].code in codes)
    if not formats:
        raise CheckpointError(
            f"{where}: {place} stores {codes[0]} as {shown(stored_as)}; moeparity reads {listed(_PACKED)}, each with "
            "its codes."
        )
    targets = _patterns(where, "targets", group.get("targets"))
    symmetric = arguments.get("symmetric", True)
    return Rule(formats=formats, block=_block(where, arguments), zeros=not symmetric, targets=targets)


def _block(where: Where, arguments: Fields) -> Block | None:
    """What shares a scale, as arguments of compressed-tensors say."""
    size = arguments.get("group_size")
    by_size = None if size is None else "channel" if size == -1 else "group"
    strategy = arguments.get("strategy") or by_size or "tensor"
    if strategy in ("group", "tensor_group"):
        return 1, _number(where, "group_size", size)
    if strategy == "block":
        return _pair(where, "block_structure", arguments.get("block_structure"))
    return (1, 0) if strategy == "channel" else (0, 0)


def _modelopt(where: Where, fields: Fields) -> tuple[Rule, ...]:
    if fields.get("quant_algo") != "MIXED_PRECISION":
        return (_algorithm(where, fields, ()),)
    layers = _mappings(where, "quantized_layers", fields.get("quantized_layers"))
    return tuple(_algorithm(where, {**fields, **layer}, (str(name),)) for name, layer in layers.items())


def _algorithm(where: Where, fields: Fields, targets: tuple[str, ...]) -> Rule:
    algorithm = fields.get("quant_algo")
    if algorithm not in _ALGORITHMS:
        raise CheckpointError(
            f"{where}: quantization_config has quant_algo {shown(algorithm)}; moeparity reads {listed(_ALGORITHMS)}."
        )
    form, (rows, columns) = _ALGORITHMS[algorithm]
    size = _number(where, "group_size", fields.get("group_size") or columns) if FORMATS[form].group else columns
    return Rule(formats=(form,), block=(rows, size), targets=targets)


_RULES = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "awq": _awq,
    "gptq": _gptq,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
}
