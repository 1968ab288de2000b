"""What config.json says of quantised weights: in which formats and blocks they lie, and which modules have none.

Every key is known (config_keys.py), with the values it may have, or the checkpoint is refused: a key that is passed
over may change what a code stands for.
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
from moeparity.inputs.weights.config_keys import ARGUMENTS, FREE, GROUP, KEYS, NOTHING
from moeparity.inputs.weights.formats import FORMATS, Block

Fields = Mapping[str, Any]

_EVERY = "Linear"
"""The target that stands for all linear layers."""
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
        """The rule by which a module's weights lie in a format; None if there is none. One that names the module goes
        before one for all linear layers, whatever their order (compressed-tensors, utils/match.py match_targets).
        """
        fitting = [rule for rule in self.rules if form in rule.formats]
        by_name = (rule for rule in fitting if names([t for t in rule.targets if t != _EVERY], module))
        return next(by_name, next((rule for rule in fitting if not rule.targets or _EVERY in rule.targets), None))


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
        if pattern == _EVERY or re.search(rf"(?:^|\.){anything}(?:\.|$)", module):
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
    if method not in KEYS:
        raise CheckpointError(
            f"{where}: quantization_config says quant_method {shown(fields.get('quant_method'))}; moeparity reads "
            f"{listed(KEYS)}. Give the checkpoint it was made from."
        )
    _check(where, f"quantization_config of {method}", fields, {"quant_method": FREE, **KEYS[method]})
    keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")
    skipped = tuple(pattern for key in keys for pattern in _patterns(where, key, fields.get(key)))
    rules = _RULES[method](where, fields)
    return Quantisation(where=where, method=method, rules=rules, skipped=skipped)


def _stated(config: Path) -> Fields | None:
    """The quantization_config, also that of a language model in a larger one, or of modelopt's own file; None if there
    is none, or if config.json can't be read, which others say. Raises CheckpointError for what is no mapping.
    """
    try:
        fields = json.loads(paths.contents(config, "config.json"))
        text = fields.get("text_config") or {}
        stated = fields.get("quantization_config") or text.get("quantization_config")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    beside = config.with_name("hf_quant_config.json")
    if not stated and paths.present(beside):
        stated = {"quant_method": "modelopt", **_of_modelopt(beside)}
    if stated and not isinstance(stated, dict):
        raise CheckpointError(
            f"{Where(config)}: quantization_config is {shown(stated)}; expected a mapping with quant_method. Give the "
            "file that the checkpoint was published with."
        )
    return stated or None


def _of_modelopt(path: Path) -> Fields:
    """What modelopt's own file says. Raises CheckpointError for a file that says nothing."""
    try:
        stated = json.loads(paths.contents(path, path.name))["quantization"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        stated = None
    if isinstance(stated, dict):
        return stated
    raise CheckpointError(
        f"{Where(path)}: no JSON with a mapping `quantization`, as modelopt writes it. Download it again, or delete it "
        "if the weights are not quantised."
    )


def _check(where: Where, place: str, fields: Fields, allowed: Mapping[str, Sequence[Any]]) -> None:
    for key, value in fields.items():
        if key not in allowed:
            raise CheckpointError(
                f"{where}: {place} has {key!r}, which is not known, so what it changes is not either."
                f"{did_you_mean(key, allowed)} Take it out of a copy if it changes no weight."
            )
        if allowed[key] and value not in allowed[key]:
            values = "it where it is empty" if allowed[key] is NOTHING else listed([shown(x) for x in allowed[key]])
            raise CheckpointError(
                f"{where}: {place} has {key} {shown(value)}; moeparity reads {values}. Give the checkpoint it was made "
                "from."
            )


def _bits(where: Where, fields: Fields) -> int:
    """In how many bits codes lie. Raises CheckpointError where nothing says so, or two keys say two things."""
    return int(_of_either(where, fields, "bits", "w_bit", "the bits of a code"))


def _of_either(where: Where, fields: Fields, key: str, older: str, says: str, default: object = None) -> Any:
    """What a key, or its older name, says. Raises CheckpointError where both differ, or where nothing says it."""
    numbers = [fields[name] for name in (key, older) if fields.get(name) is not None] or [default]
    if numbers[0] is not None and numbers[0] == numbers[-1]:
        return numbers[0]
    present = "nothing" if numbers[0] is None else " and ".join(f"{n} {shown(fields[n])}" for n in (key, older))
    raise CheckpointError(f"{where}: quantization_config has {present} for {says}; expected one number as {key!r}.")


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
    only = _patterns(where, "modules_to_convert", fields.get("modules_to_convert"))
    return tuple(Rule(formats=(form,), block=block, targets=only) for form in ("fp8-blocks", "fp8"))


def _mxfp4(where: Where, fields: Fields) -> tuple[Rule, ...]:
    return (Rule(formats=("mxfp4",), block=(1, 32)),)


def _awq(where: Where, fields: Fields) -> tuple[Rule, ...]:
    _bits(where, fields)
    size = _of_either(where, fields, "group_size", "q_group_size", "the inputs of a group", 128)
    return (Rule(formats=("awq",), block=(_number(where, "group_size", size), 1)),)


def _gptq(where: Where, fields: Fields) -> tuple[Rule, ...]:
    form = "gptq-int8" if _bits(where, fields) == 8 else "gptq-int4"
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
    _check(where, place, group, dict.fromkeys(GROUP, FREE))
    _check(where, f"{place}: weights", arguments, ARGUMENTS)
    stored_as = group.get("format") or fields.get("format")
    codes = _CODES[int(arguments.get("num_bits", 8)), str(arguments.get("type", "int"))]
    formats = tuple(form for form in _PACKED.get(str(stored_as), ()) if FORMATS[form].code in codes)
    if not formats:
        raise CheckpointError(
            f"{where}: {place} stores {codes[0]} as {shown(stored_as)}; moeparity reads {listed(_PACKED)}, each with "
            "its codes."
        )
    targets = _patterns(where, "targets", group.get("targets"))
    if not targets:
        raise CheckpointError(f"{where}: {place} has no targets; expected the modules whose weights it describes.")
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
        rule = _algorithm(where, fields, ())
        _refuse_others(where, fields, rule)
        return (rule,)
    layers = _mappings(where, "quantized_layers", fields.get("quantized_layers"))
    keys = {key: KEYS["modelopt"][key] for key in ("quant_algo", "group_size", "has_zero_point", "pre_quant_scale")}
    for name, layer in layers.items():
        _check(where, f"quantized_layers.{name} of quantization_config", layer, keys)
    return tuple(_algorithm(where, {**fields, **layer}, (str(name),)) for name, layer in layers.items())


def _refuse_others(where: Where, fields: Fields, rule: Rule) -> None:
    """Raises CheckpointError where the groups beside modelopt's quant_algo describe other codes than it does."""
    for name, group in _mappings(where, "config_groups", fields.get("config_groups") or {}).items():
        stated = group.get("weights")
        if isinstance(stated, dict) and "num_bits" in stated:
            bits, kind = stated["num_bits"], stated.get("type", "float")
            is_pair = isinstance(bits, int) and isinstance(kind, str)
            if not is_pair or FORMATS[rule.formats[0]].code not in _CODES.get((bits, kind), ()):
                raise CheckpointError(
                    f"{where}: quantization_config has quant_algo {shown(fields['quant_algo'])}, and weights of {bits} "
                    f"bits, {kind}, in config_groups.{name}. Which of them is right?"
                )


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
