"""config.json of a checkpoint, read the same whether transformers 4 or 5 wrote it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from moeparity import paths
from moeparity.errors import CheckpointError, Where, did_you_mean, listed, shown
from moeparity.numerics.dtypes import CHECKPOINT_NAMES, name_of
from moeparity.plan.config_defaults import ABSENT, ROPE, THETA
from moeparity.plan.config_layouts import of_blocks, of_halves, of_linear_attention, of_rank, of_text

ALIASES: dict[str, tuple[str, ...]] = {
    "dtype": ("torch_dtype",),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "moe_top_k", "num_experts_per_token"),
    "hidden_size": ("d_model",),
    "num_hidden_layers": ("n_layers",),
    "num_attention_heads": ("n_heads",),
    "num_key_value_heads": ("kv_n_heads",),
    "intermediate_size": ("ffn_hidden_size",),
    "max_position_embeddings": ("max_seq_len",),
    "n_shared_experts": ("num_shared_experts",),
    "n_group": ("num_expert_group",),
    "norm_topk_prob": ("moe_renormalize",),
    "layer_types": ("layers_block_type",),
    "tie_word_embeddings": ("tie_embedding",),
}
"""Field name used by the graphs -> other names it goes by in hub checkpoints (`attribute_map` of transformers)."""

UNDECLARED_DTYPE = "fp32"
"""What transformers builds a model in where config.json names no dtype; files of weights say for themselves."""

ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("original_max_position_embeddings",),
    "ntk_alpha": ("alpha",),
    "longrope": ("short_factor", "short_mscale", "long_mscale", "original_max_position_embeddings"),
}
"""rope_type -> the fields that must be there."""
WITH_ALPHA = ("hunyuan_v1_moe",)
"""Whose rope_type `dynamic` is `ntk_alpha` where there is an alpha: a larger base, whatever the length."""
LONG = ("phimoe",)
"""Whose rope_type may be `longrope`, as transformers computes it for them alone."""
OF_ROPE = (
    *("partial_rotary_factor", "rope_type", "llama_4_scaling_beta", "original_max_position_embeddings"),
    "mrope_section",
)
"""Fields of rope_parameters that graphs read as if they stood beside it."""
BY_LAYER_TYPE = ("mellum", "mimo_v2_flash", "laguna")
"""Whose rope_parameters are one object for each word of layer_types; older fields are not read."""

AT_LEAST: dict[str, int] = {
    "num_experts": 0,
    "num_experts_per_tok": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "decoder_sparse_step": 1,
    "first_k_dense_replace": 0,
    "n_group": 1,
    "topk_group": 1,
    "original_max_position_embeddings": 1,
    "max_position_embeddings": 1,
    "max_window_layers": 0,
    "num_dense_layers": 0,
    "shared_intermediate_size": 0,
    "index_topk": 1,
    "index_topk_freq": 0,
    "index_skip_topk_offset": 0,
    "moe_layer_interval": 1,
    "attn_layer_period": 1,
    "attn_layer_offset": 0,
    "expert_layer_period": 1,
    "expert_layer_offset": 0,
    "moe_layer_start_index": 0,
    "moe_layer_end_index": -1,
    "spatial_merge_size": 1,
    "image_token_id": 0,
}
"""Whole numbers and the least each may be; a field that is absent or null is not looked at, here and below."""
NUMBERS = (
    *("rms_norm_eps", "layer_norm_eps", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor"),
    *("short_mscale", "long_mscale"),
)
"""Numbers that may not be negative."""
ABOVE = {
    "rope_theta": 1,
    "factor": 0,
    "clip_qkv": 0,
    "swiglu_limit": 0,
    "alpha": 0,
    "low_freq_factor": 0,
    "high_freq_factor": 0,
}
"""Numbers that must be above another."""
LAYERS = ("mlp_only_layers", "deepstack_visual_indexes")
"""Lists of the numbers of layers, of the text model or of its vision tower."""
MULTIPLES = (("num_attention_heads", "num_key_value_heads"), ("num_experts", "n_group"))
"""Pairs whose first must be a multiple of its second, where the graph reads both."""
AT_MOST = (("num_experts_per_tok", "num_experts"), ("topk_group", "n_group"))
"""Pairs whose first must not be above its second, where the graph reads both."""


class Config:
    """The fields of one config.json, whose text is `text`. Look-ups follow the alias table; `rope_parameters` is always
    there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fields_read: set[str] = set()
        self.text = _text(path)
        fields = of_halves(of_linear_attention(of_text(_parse(path, self.text))))
        self._fields = of_rank(of_blocks(fields, ALIASES["layer_types"]))
        self._fields = {**ABSENT.get(self._fields["model_type"], {}), **self._fields}
        self._fields["rope_parameters"] = _rope_parameters(self)
        rope = self._fields["rope_parameters"]
        self._fields |= {name: rope[name] for name in OF_ROPE if name in rope}
        _check_numbers(self)
        self._fields_read.clear()

    def __contains__(self, name: str) -> bool:
        return self._key(name) is not None

    def __getitem__(self, name: str) -> Any:
        key = self._key(name)
        if key is None:
            raise CheckpointError(
                f"{Where(self.path)}: field {name!r} is missing.{did_you_mean(name, self._fields)} "
                "Is this the config.json of the checkpoint?"
            )
        self._fields_read.add(name)
        return self._fields[key]

    def get(self, name: str, default: Any = None) -> Any:
        """The field, or `default` where it is absent or null."""
        value = self[name] if name in self else None
        return default if value is None else value

    @property
    def fields(self) -> Mapping[str, Any]:
        """All fields, as the file spells them, with `rope_parameters` added where the file has another generation's."""
        return MappingProxyType(self._fields)

    @property
    def names(self) -> list[str]:
        """All field names, as the file spells them."""
        return list(self._fields)

    @property
    def model_type(self) -> str:
        """The field that picks the graph."""
        return str(self["model_type"])

    @property
    def dtype(self) -> str | None:
        """`bf16`, `fp16` or `fp32` as the checkpoint declares it, None where it does not. Raises CheckpointError."""
        declared = self.get("dtype")
        if declared is None:
            return None
        name = name_of(declared) if isinstance(declared, str) else None
        if name not in CHECKPOINT_NAMES:
            raise CheckpointError(
                f"{self.where('dtype')}: dtype is {shown(declared)}; expected bfloat16, float16 or float32."
            )
        return name

    def spelled(self, name: str) -> str:
        """A field's name as the file has it; as it is where the file has none."""
        return self._key(name) or name

    def where(self, name: str) -> Where:
        """The line a field stands on, under the name the file gives it; the file alone where it is not found."""
        match = re.search(rf'"{re.escape(self.spelled(name))}"\s*:', self.text)
        return Where(self.path, None if match is None else self.text.count("\n", 0, match.start()) + 1)

    def check_pairs(self) -> None:
        """Refuse fields that do not go together; only those that were read, since others may hold a default.

        Raises CheckpointError.
        """
        values = {name: value for name in sorted(self._fields_read) if (value := self.get(name))}
        for name, divisor in MULTIPLES:
            if name in values and divisor in values and values[name] % values[divisor]:
                raise CheckpointError(
                    f"{self.where(divisor)}: {divisor} is {values[divisor]}; expected a divisor of {name}, which is "
                    f"{values[name]}."
                )
        for name, most in AT_MOST:
            if name in values and most in values and values[name] > values[most]:
                raise CheckpointError(
                    f"{self.where(name)}: {name} is {values[name]}; expected at most {most}, {values[most]}."
                )
        if values.get("n_group", 1) > 1 and values["n_group"] == values.get("num_experts"):
            raise CheckpointError(
                f"{self.where('n_group')}: n_group is {values['n_group']}, which leaves one expert per group; "
                "a group is chosen by its two best."
            )

    def _key(self, name: str) -> str | None:
        return next((key for key in (name, *ALIASES.get(name, ())) if key in self._fields), None)


def _text(path: Path) -> str:
    try:
        return paths.contents(path, "config.json").decode("utf-8")
    except OSError as error:
        raise CheckpointError(
            f"{Where(path)}: cannot be read: {error.strerror}. Is this a checkpoint folder?"
        ) from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{Where(path)}: not JSON: byte {error.start} is not UTF-8.") from None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{Where(path, error.lineno)}: not JSON: {error.msg}, column {error.colno}.") from None
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise CheckpointError(f"{Where(path)}: not the config.json of a checkpoint: {reason}.") from None
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise CheckpointError(
            f'{Where(path)}: no `"model_type": "..."` in it, which decides what graph is used. '
            "Is this the config.json of the checkpoint?"
        )
    return data


def _integer(text: str) -> int:
    if len(text) > 18:
        raise ValueError(f"{text[:18]}... is too large a number")
    return int(text)


def _rope_parameters(config: Config) -> Mapping[str, Any]:
    """One dictionary from either generation: `rope_parameters`, or `rope_theta` with `rope_scaling`; or one for each
    kind of layer.
    """
    if config.model_type in BY_LAYER_TYPE:
        field = "rope_parameters"
        kinds = _object(config, field, config.get(field) or ROPE[config.model_type])
        return {kind: _one_rope(config, field, _object(config, field, fields)) for kind, fields in kinds.items()}
    # As in transformers the older name wins where a file has both.
    field = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    fields = _object(config, field, config.get(field) or ROPE.get(config.model_type, {}))
    return _one_rope(
        config, field, {"rope_theta": config.get("rope_theta", THETA.get(config.model_type, 10_000.0)), **fields}
    )


def _object(config: Config, field: str, fields: Any) -> Mapping[str, Any]:
    if not isinstance(fields, dict):
        raise CheckpointError(f"{config.where(field)}: {field} is {shown(fields)}; expected an object, as in {{...}}.")
    return fields


def _one_rope(config: Config, field: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """rope_parameters with a rope_type and what that needs."""
    rope = dict(fields)
    rope["rope_type"] = rope.get("rope_type") or rope.pop("type", None) or "default"
    if rope["rope_type"] == "dynamic" and rope.get("alpha") and config.model_type in WITH_ALPHA:
        rope["rope_type"] = "ntk_alpha"
    kinds = [kind for kind in ROPE_NEEDS if kind != "longrope" or config.model_type in LONG]
    if rope["rope_type"] not in kinds:
        place = config.where("rope_type" if "rope_type" in fields else "type")
        raise CheckpointError(
            f"{place}: rope_type is {shown(rope['rope_type'])}; expected one of {listed(kinds)}."
            f"{did_you_mean(str(rope['rope_type']), kinds)}"
        )
    # The softmax scale that mscale_all_dim asks for is a function of `factor`.
    needs_factor = rope["rope_type"] == "yarn" and rope.get("mscale_all_dim")
    needs = ("rope_theta", *ROPE_NEEDS[rope["rope_type"]], *(("factor",) if needs_factor else ()))
    absent = [name for name in needs if rope.get(name) is None]
    if absent:
        raise CheckpointError(
            f"{config.where(field)}: {field}: rope_type {rope['rope_type']} needs {absent[0]!r}. Add it."
        )
    return rope


def _check_numbers(config: Config) -> None:
    """Numbers that are used before any weight's shape shows that they are wrong."""
    rope = config["rope_parameters"]
    for of_kind in rope.values() if config.model_type in BY_LAYER_TYPE else (rope,):
        _check_rope(config, of_kind)
    for field in LAYERS:
        numbers = config.get(field, [])
        if not isinstance(numbers, list) or any(type(index) is not int for index in numbers):
            raise CheckpointError(
                f"{config.where(field)}: {field} is {shown(numbers)}; expected a list of layer numbers."
            )


def _check_rope(config: Config, rope: Mapping[str, Any]) -> None:
    """The numbers of a rope, and those of config.json by other names."""
    # A dense model of a family with experts chooses none.
    none_chosen = {"num_experts_per_tok": 0} if config.get("num_experts") == 0 else {}
    for name, least in {**AT_LEAST, **none_chosen}.items():
        value = rope.get(name, config.get(name))
        if value is not None and (type(value) is not int or value < least):
            raise CheckpointError(
                f"{config.where(name)}: {name} is {shown(value)}; expected a whole number of at least {least}."
            )
    for name in (*ABOVE, *NUMBERS):
        value, bound = rope.get(name, config.get(name)), ABOVE.get(name)
        number = type(value) in {int, float} and math.isfinite(value)
        if value is not None and not (number and (value >= 0 if bound is None else value > bound)):
            range_words = "a number of at least 0" if bound is None else f"a number above {bound}"
            raise CheckpointError(f"{config.where(name)}: {name} is {shown(value)}; expected {range_words}.")
    if rope["rope_type"] == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        raise CheckpointError(
            f"{config.where('high_freq_factor')}: high_freq_factor is {rope['high_freq_factor']}; expected more than "
            f"low_freq_factor, {rope['low_freq_factor']}."
        )
