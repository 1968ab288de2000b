"""adapter_config.json of a LoRA adapter, as peft writes it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moeparity import paths
from moeparity.errors import CheckpointError, Where, shown

CONFIG: Final = "adapter_config.json"

_NOT_COMPUTED: Final = (
    "use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save", "trainable_token_indices",
    "layer_replication", "alora_invocation_tokens", "arrow_config", "velora_config", "kasa_config", "monteclora_config",
)  # fmt: skip
"""Fields by which an adapter is more than a product of two matrices for each module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterConfig:
    """What adapter_config.json says: rank and alpha of a module, where no pattern gives it others; whether alpha is
    divided by sqrt(rank); and which modules and parameters it was made for, as peft selects them (a list of endings, or
    one regular expression).
    """

    path: Path
    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    modules: tuple[str, ...] | str
    narrowed: bool

    def rank_of(self, module: str) -> int:
        """The rank of a module, by its name in the model."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def alpha_of(self, module: str) -> float:
        """Its alpha."""
        return _by_pattern(self.alpha_pattern, module, self.alpha)

    def targets(self, module: str) -> bool:
        """Whether it must have tensors of a module: False where layers or modules are left out by other fields."""
        if self.narrowed:
            return False
        if isinstance(self.modules, str):
            return re.fullmatch(self.modules, module) is not None
        return any(module == name or module.endswith(f".{name}") for name in self.modules)


def read_adapter_config(folder: Path) -> AdapterConfig:
    """The configuration of the adapter in a folder. Raises CheckpointError for what is missing, malformed or not
    computed here.
    """
    path = folder / CONFIG
    if not paths.present(path):
        raise CheckpointError(f"{Where(folder)}: holds no {CONFIG}. Give the folder that peft's save_pretrained wrote.")
    try:
        fields = json.loads(paths.contents(path, "config.json"))
    except OSError as error:
        raise CheckpointError(f"{Where(path)}: cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise CheckpointError(f"{Where(path)}: is no JSON mapping; expected the fields of a peft LoraConfig.")
    _refuse_others(path, fields)
    return _config(path, fields)


def _refuse_others(path: Path, fields: Mapping[str, Any]) -> None:
    if fields.get("peft_type") != "LORA":
        raise CheckpointError(
            f"{Where(path)}: peft_type is {shown(fields.get('peft_type'))}; expected 'LORA', the one kind of adapter "
            "that is computed."
        )
    refused = next((name for name in _NOT_COMPUTED if fields.get(name)), None)
    if refused is not None or fields.get("bias", "none") != "none":
        name = refused or "bias"
        raise CheckpointError(
            f"{Where(path)}: {name} is {shown(fields[name])}; expected an adapter without it, since only W + scaling * "
            "B @ A is computed. Merge it with peft (merge_and_unload) and compare the merged checkpoint."
        )


def _config(path: Path, fields: Mapping[str, Any]) -> AdapterConfig:
    def field(name: str, fits: Callable[[Any], bool], expected: str, default: Any = None) -> Any:
        value = fields.get(name, default)
        if not fits(value):
            raise CheckpointError(f"{Where(path)}: {name} is {shown(value)}; expected {expected}.")
        return value

    def numbers(value: Any, fits: Callable[[Any], bool]) -> bool:
        return isinstance(value, dict) and all(map(_selects, value)) and all(map(fits, value.values()))

    modules = field("target_modules", _selects, "a list of module names, or one regular expression") or ()
    return AdapterConfig(
        path=path,
        rank=field("r", _is_rank, "a whole number above 0, the rank"),
        alpha=field("lora_alpha", _is_number, "a finite number"),
        rslora=field("use_rslora", lambda value: isinstance(value, bool), "true or false", default=False),
        rank_pattern=field(
            "rank_pattern",
            lambda v: numbers(v, _is_rank),
            "a mapping of valid regular expressions to ranks",
            {},
        ),
        alpha_pattern=field(
            "alpha_pattern",
            lambda v: numbers(v, _is_number),
            "a mapping of valid regular expressions to alphas",
            {},
        ),
        modules=modules if isinstance(modules, str) else tuple(modules),
        narrowed=any(fields.get(name) for name in ("layers_to_transform", "exclude_modules")),
    )


def _is_rank(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and math.isfinite(value)


def _selects(value: Any) -> bool:
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error:
            return False
        return True
    return value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    """As peft 0.21.2 looks it up (utils/other.py, `get_pattern_key`)."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)
