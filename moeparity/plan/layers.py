"""Named rules that say what kind a layer is, and how far its attention reaches, from config.json and its index."""

from __future__ import annotations

from collections.abc import Callable

from moeparity.errors import CheckpointError, shown
from moeparity.plan.config import Config


def uniform(config: Config, index: int) -> str:
    """All layers are `dense`."""
    return "dense"


def all_sparse(config: Config, index: int) -> str:
    """All layers are `sparse`."""
    return "sparse"


def decoder_sparse_step(config: Config, index: int) -> str:
    """Qwen: `sparse` every `decoder_sparse_step` layers, except those in `mlp_only_layers`."""
    is_dense = index in config.get("mlp_only_layers", [])
    sparse = config.get("num_experts", 0) > 0 and (index + 1) % config.get("decoder_sparse_step", 1) == 0
    return "sparse" if sparse and not is_dense else "dense"


def first_k_dense_replace(config: Config, index: int) -> str:
    """DeepSeek: the first `first_k_dense_replace` layers are `dense`, all others `sparse`."""
    return "dense" if index < config.get("first_k_dense_replace", 3) else "sparse"


LAYER_RULES: dict[str, Callable[[Config, int], str]] = {
    rule.__name__: rule for rule in (uniform, all_sparse, decoder_sparse_step, first_k_dense_replace)
}


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


def every_second_below_max_window_layers(config: Config, index: int) -> int | None:
    """Qwen2-MoE: `layer_types`, or a window in every second layer below `max_window_layers`."""
    windows = config.get("use_sliding_window", False) and index % 2 == 0
    return _by_layer_types(config, index, otherwise=windows and index < config.get("max_window_layers", 28))


def every_second_layer(config: Config, index: int) -> int | None:
    """gpt-oss: `layer_types`, or a window in every second layer, beginning with the first."""
    layer_type = _layer_type(config, index)
    has_window = index % 2 == 0 if layer_type is None else layer_type == "sliding_attention"
    return _window(config, otherwise=128) if has_window else None


WINDOW_RULES: dict[str, Callable[[Config, int], int | None]] = {
    rule.__name__: rule
    for rule in (
        sliding_window,
        use_sliding_window,
        max_window_layers,
        every_second_below_max_window_layers,
        every_second_layer,
    )
}
"""Rule name -> the tokens a layer's queries see, None for all before them."""


def _layer_type(config: Config, index: int) -> str | None:
    """What `layer_types` calls a layer; None where there is no such list."""
    types = config.get("layer_types")
    if types is None:
        return None
    layer_type = types[index] if isinstance(types, list) and index < len(types) else None
    if layer_type not in ("full_attention", "sliding_attention"):
        raise CheckpointError(
            f"{config.where('layer_types')}: layer_types gives layer {index} as {shown(layer_type)}; expected "
            "full_attention or sliding_attention for each layer."
        )
    return str(layer_type)


def _by_layer_types(config: Config, index: int, *, otherwise: bool) -> int | None:
    layer_type = _layer_type(config, index)
    if layer_type is None:
        return _window(config) if otherwise else None
    if layer_type == "full_attention":
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
