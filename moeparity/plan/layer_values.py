"""Named rules for what a layer's nodes read beside config.json: its window, its rope, whether it has an indexer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from moeparity.errors import CheckpointError, GraphError, Where, did_you_mean, listed, shown
from moeparity.plan.config import Config
from moeparity.plan.layers import layer_type, mlp_layer_types_or_prefix

RuleType = TypeVar("RuleType")


def sliding_window(config: Config, index: int) -> int | None:
    """Mixtral: the same window in all layers, where `sliding_window` is set."""
    return None if config.get("sliding_window") is None else _window(config)


def use_sliding_window(config: Config, index: int) -> int | None:
    """Qwen3-MoE: the same window in all layers, where `use_sliding_window` says so."""
    return _window(config) if config.get("use_sliding_window", False) and not _is_null(config) else None


def max_window_layers(config: Config, index: int) -> int | None:
    """Qwen2, Qwen3: `layer_types`, or a window from layer `max_window_layers` on, where `use_sliding_window` is set."""
    windows = config.get("use_sliding_window", False) and not _is_null(config)
    return _by_layer_types(config, index, otherwise=windows and index >= config.get("max_window_layers", 28))


def sliding_from_max_window_layers(config: Config, index: int) -> int | None:
    """dots.llm1: `layer_types`, or a window from layer `max_window_layers` on, where `sliding_window` is not null."""
    word = layer_type(config, index)
    has_window = not _is_null(config) and index >= config.get("max_window_layers", 62)
    has_window = has_window if word is None else word == "sliding_attention"
    return _window(config) if has_window else None


def every_second_below_max_window_layers(config: Config, index: int) -> int | None:
    """Qwen2-MoE: `layer_types`, or a window in every second layer below `max_window_layers`."""
    windows = config.get("use_sliding_window", False) and index % 2 == 0
    return _by_layer_types(config, index, otherwise=windows and index < config.get("max_window_layers", 28))


def every_second_layer(config: Config, index: int) -> int | None:
    """gpt-oss: `layer_types`, or a window in every second layer, beginning with the first."""
    word = layer_type(config, index)
    has_window = index % 2 == 0 if word is None else word == "sliding_attention"
    return _window(config, otherwise=128) if has_window else None


_PERIOD: tuple[str | None, int, int] = ("sliding_window_pattern", 4, 4096)
_PERIODS: dict[str, tuple[str | None, int, int]] = {
    "afmoe": ("global_attn_every_n_layers", 4, 1024),
    "kolibri1": (None, 5, 513),
}
"""model_type -> the field that says which layers have no window, its default, and that of the window's width; of others
those of K-EXAONE.
"""


def all_but_every_nth_layer(config: Config, index: int) -> int | None:
    """K-EXAONE, Trinity, Kolibri: `layer_types`, or a window in all layers but every nth, by `sliding_window_pattern`
    or `global_attn_every_n_layers`. Raises CheckpointError where `sliding_window` is null: all layers are turned then.
    """
    field, period, width = _PERIODS.get(config.model_type, _PERIOD)
    window = _window(config, otherwise=width)
    word = layer_type(config, index)
    if word is not None:
        return window if word == "sliding_attention" else None
    period = period if field is None else _period(config, field, period)
    return window if (index + 1) % period else None


def layer_types(config: Config, index: int) -> int | None:
    """Mellum, Laguna: a window in the layers that `layer_types` calls so, in none where there is no such list."""
    width = 512 if config.model_type == "laguna" else 1024
    return _window(config, otherwise=width) if layer_type(config, index) == "sliding_attention" else None


def windows_behind_a_prefix(config: Config, index: int) -> int | None:
    """Cohere 2 MoE: `layer_types`, or a window in all layers but every nth, counted in the first
    `first_k_dense_replace` by `prefix_dense_sliding_window_pattern`, and anew behind them by `sliding_window_pattern`.
    """
    prefix = config.get("first_k_dense_replace", 0)
    period, at = (
        (_dense_period(config), index)
        if index < prefix
        else (_period(config, "sliding_window_pattern", 4), index - prefix)
    )
    word = layer_type(config, index)
    has_window = bool((at + 1) % period) if word is None else word == "sliding_attention"
    return _window(config) if has_window else None


def _dense_period(config: Config) -> int:
    return _period(config, "prefix_dense_sliding_window_pattern", 1)


def _period(config: Config, field: str, otherwise: int) -> int:
    """How many layers lie from one without a window to the next, by a field."""
    period = config.get(field, otherwise)
    if type(period) is not int or period < 1:
        raise CheckpointError(
            f"{config.where(field)}: {field} is {shown(period)}; expected a whole number of at least 1, or layer_types."
        )
    return period


def all_but_first_and_every_sixth(config: Config, index: int) -> int | None:
    """MiMo-V2-Flash: `layer_types`, or a window in all layers but the first and every sixth, of `sliding_window_size`
    tokens and the query itself, or of `sliding_window`.
    """
    word = layer_type(config, index)
    has_window = index > 0 and (index + 1) % 6 > 0 if word is None else word == "sliding_attention"
    before = config.get("sliding_window_size")
    if before is not None and (type(before) is not int or before < 0):
        raise CheckpointError(
            f"{config.where('sliding_window_size')}: sliding_window_size is {shown(before)}; expected a whole number "
            "of at least 0."
        )
    return (_window(config, otherwise=129) if before is None else before + 1) if has_window else None


def all_but_every_fourth(config: Config, index: int) -> int | None:
    """Granite with windows: `layer_types`, or a window in all layers but every fourth, beginning with the first."""
    word = layer_type(config, index)
    has_window = index % 4 > 0 if word is None else word == "sliding_attention"
    return _window(config, otherwise=128) if has_window else None


def all_but_every_fourth_and_ends(config: Config, index: int) -> int | None:
    """Flint: `layer_types`, or a window in all layers but the first two, every fourth from the second on, the last."""
    word = layer_type(config, index)
    is_end = index < 2 or index == config["num_hidden_layers"] - 1
    has_window = not is_end and index % 4 != 1 if word is None else word == "sliding_attention"
    return _window(config, otherwise=513) if has_window else None


def attention_chunks(config: Config, index: int) -> int | None:
    """Llama 4: chunks of `attention_chunk_size` tokens in layers that `layer_types` calls so, or that have a rope."""
    word = layer_type(config, index, ("full_attention", "chunked_attention"))
    has_chunks = _turns(config, index) if word is None else word == "chunked_attention"
    size = config["attention_chunk_size"] if "attention_chunk_size" in config else 8192
    if type(size) is not int or size < 1:
        raise CheckpointError(
            f"{config.where('attention_chunk_size')}: attention_chunk_size is {shown(size)}; expected a whole number "
            "of at least 1."
        )
    return size if has_chunks else None


def _turns(config: Config, index: int) -> bool:
    """Whether a layer has a rope: 1 in `no_rope_layers`, or all but every `no_rope_layer_interval`th."""
    listed = config.get("no_rope_layers") or None
    if listed is None:
        return (index + 1) % _period(config, "no_rope_layer_interval", 4) > 0
    flag = listed[index] if isinstance(listed, list) and index < len(listed) else None
    if flag not in (0, 1):
        raise CheckpointError(
            f"{config.where('no_rope_layers')}: no_rope_layers gives layer {index} as {shown(flag)}; expected 1 for a "
            "layer with a rope, or 0."
        )
    return bool(flag)


WINDOW_RULES: dict[str, Callable[[Config, int], int | None]] = {
    rule.__name__: rule
    for rule in (
        sliding_window,
        use_sliding_window,
        max_window_layers,
        sliding_from_max_window_layers,
        every_second_below_max_window_layers,
        every_second_layer,
        all_but_every_nth_layer,
        layer_types,
        windows_behind_a_prefix,
        all_but_first_and_every_sixth,
        all_but_every_fourth,
        all_but_every_fourth_and_ends,
        attention_chunks,
    )
}
"""Rule name -> the tokens a layer's queries see, None for all before them."""


def rope_of_layer_type(config: Config, index: int) -> Mapping[str, Any]:
    """Mellum, Laguna, MiMo-V2-Flash: the object in rope_parameters that has the name of the layer's kind. Raises
    CheckpointError without, and for a part of a head where transformers' own rope fails.
    """
    window = all_but_first_and_every_sixth if config.model_type == "mimo_v2_flash" else layer_types
    kind = "full_attention" if window(config, index) is None else "sliding_attention"
    rope: Mapping[str, Any] | None = config["rope_parameters"].get(kind)
    if rope is None:
        raise CheckpointError(
            f"{config.where('rope_parameters')}: rope_parameters has no {kind!r}, which layer {index} is. Add it."
        )
    share = rope.get("partial_rotary_factor", 1)
    if share != 1 and config.model_type == "mellum":
        raise CheckpointError(
            f"{config.where('partial_rotary_factor')}: partial_rotary_factor is {shown(share)}; expected 1: "
            "transformers' own rope fails with less."
        )
    return rope


def rope_of_windows_and_dense(config: Config, index: int) -> Mapping[str, Any] | None:
    """Cohere 2 MoE: in layers with a window, and in dense ones where `prefix_dense_sliding_window_pattern` is 1."""
    forced = mlp_layer_types_or_prefix(config, index) == "dense" and _dense_period(config) == 1
    has_rope = forced or windows_behind_a_prefix(config, index) is not None
    rope: Mapping[str, Any] = config["rope_parameters"]
    return rope if has_rope else None


def layer_rope_theta(config: Config, index: int) -> Mapping[str, Any] | None:
    """Granite with windows: rope_parameters with the layer's base of `layer_rope_theta`, none where that is 0."""
    bases, rope = config.get("layer_rope_theta"), config["rope_parameters"]
    if bases is None:
        return {**rope}
    base = bases[index] if isinstance(bases, list) and index < len(bases) else None
    if isinstance(base, bool) or not isinstance(base, int | float) or not (base == 0 or base > 1):
        raise CheckpointError(
            f"{config.where('layer_rope_theta')}: layer_rope_theta gives layer {index} as {shown(base)}; expected 0 or "
            "a number above 1 for each layer."
        )
    return {**rope, "rope_theta": base} if base else None


def no_rope_layers(config: Config, index: int) -> Mapping[str, Any] | None:
    """Llama 4: rope_parameters where `no_rope_layers` has a 1."""
    return {**config["rope_parameters"]} if _turns(config, index) else None


ROPE_RULES: dict[str, Callable[[Config, int], Mapping[str, Any] | None]] = {
    rule.__name__: rule for rule in (rope_of_layer_type, rope_of_windows_and_dense, layer_rope_theta, no_rope_layers)
}
"""Rule name -> the rope_parameters of a layer, None for none."""


def indexer_types(config: Config, index: int) -> bool:
    """GLM-5: whether a layer has an indexer, by `indexer_types`, `index_topk_pattern` (`FSSF`), or every
    `index_topk_freq` layers from `index_skip_topk_offset` - 1 on; the others see the keys of the last one that has.
    Raises CheckpointError where the first has none.
    """
    field = "indexer_types" if config.get("indexer_types") is not None else "index_topk_pattern"
    pattern = config.get(field)
    if pattern is None:
        period, offset = max(config.get("index_topk_freq", 1), 1), config.get("index_skip_topk_offset", 2)
        has_indexer = bool(max(index - offset + 1, 0) % period == 0)
    else:
        word = pattern[index] if isinstance(pattern, str | list) and index < len(pattern) else None
        if word not in ("F", "full", "S", "shared"):
            raise CheckpointError(
                f"{config.where(field)}: {field} gives layer {index} as {shown(word)}; expected full or shared."
            )
        has_indexer = word in ("F", "full")
    if not has_indexer and index == 0:
        raise CheckpointError(f"{config.where(field)}: {field}: the first layer has no indexer, and none is before it.")
    return has_indexer


INDEXER_RULES: dict[str, Callable[[Config, int], bool]] = {rule.__name__: rule for rule in (indexer_types,)}
"""Rule name -> whether a layer has an indexer."""


def num_attention_heads_per_layer(config: Config, index: int) -> int:
    """Laguna: as many heads as the list of that name says, or `num_attention_heads`, a multiple of the keys'."""
    listed_heads = config.get("num_attention_heads_per_layer")
    if listed_heads is None:
        return int(config["num_attention_heads"])
    heads = listed_heads[index] if isinstance(listed_heads, list) and index < len(listed_heads) else None
    groups = config.get("num_key_value_heads", 8)
    if type(heads) is not int or heads < 1 or heads % groups:
        raise CheckpointError(
            f"{config.where('num_attention_heads_per_layer')}: num_attention_heads_per_layer gives layer {index} as "
            f"{shown(heads)}; expected a multiple of num_key_value_heads, which is {groups}."
        )
    return heads


HEADS_RULES = {num_attention_heads_per_layer.__name__: num_attention_heads_per_layer}
"""Rule name -> the rule for how many heads a layer's attention has."""

_Rules = Mapping[str, Callable[[Config, int], Any]]
TABLES: dict[str, _Rules] = {"window": WINDOW_RULES, "rope": ROPE_RULES, "indexer": INDEXER_RULES, "heads": HEADS_RULES}
"""What the nodes of a layer may read -> the rules for it."""


def values_of_layer(
    config: Config, index: int, names: Mapping[str, str | None], where_in_file: Callable[[str], Where]
) -> dict[str, Any]:
    """What the nodes of a layer read as `$window`, `$rope`, `$indexer` and `$heads`, by the rules that a graph names;
    as `$rope_portion` the part of each head that its rope turns; and as `$image_part` which of the embeddings of images
    deepstack adds behind it. Raises GraphError, CheckpointError.
    """
    rules = {
        field: rule_named(field, name, TABLES[field], where_in_file)
        for field, name in names.items()
        if name is not None
    }
    values = {field: rule(config, index) for field, rule in rules.items()}
    return values | {"rope_portion": (values.get("rope") or {}).get("partial_rotary_factor"), "image_part": index + 1}


def rule_named(field: str, name: str, rules: Mapping[str, RuleType], where_in_file: Callable[[str], Where]) -> RuleType:
    """The rule that a field of `layers:` names. Raises GraphError."""
    if name in rules:
        return rules[name]
    raise GraphError(
        f"{where_in_file(field)}: layers.{field} is {name!r}; expected one of {listed(rules)}."
        f"{did_you_mean(name, rules)}"
    )


def _by_layer_types(config: Config, index: int, *, otherwise: bool) -> int | None:
    word = layer_type(config, index)
    if word is None:
        return _window(config) if otherwise else None
    if word == "full_attention":
        return None
    if not config.get("use_sliding_window", False):
        raise CheckpointError(
            f"{config.where('layer_types')}: layer_types has a sliding_attention, but use_sliding_window is not set, "
            "and transformers refuses that too. Set it, or list full_attention."
        )
    return _window(config)


def _window(config: Config, *, otherwise: int = 4096) -> int:
    """The width of a window, `otherwise` where config.json is silent."""
    window = config["sliding_window"] if "sliding_window" in config else otherwise
    if type(window) is not int or window < 1:
        raise CheckpointError(
            f"{config.where('sliding_window')}: sliding_window is {shown(window)}; expected a whole number of at "
            "least 1, since a layer has a sliding window."
        )
    return window


def _is_null(config: Config) -> bool:
    return "sliding_window" in config and config["sliding_window"] is None
