"""Named rules that say what kind a layer is, from config.json and its index."""

from __future__ import annotations

from collections.abc import Callable

from moeparity.errors import CheckpointError, shown
from moeparity.plan.config import Config

FIRST_DENSE = {
    "glm4_moe": 1,
    "glm4v_moe": 1,
    "dots1": 0,
    "deepseek_v2": 0,
    "exaone_moe": 1,
    "kimi_linear": 1,
    "bailing_hybrid": 2,
    "axk1": 1,
    "axk2": 1,
    "mistral4": 0,
}
"""model_type -> the first_k_dense_replace of a config.json that has none, where it is not 3."""


MLP_ONLY = {"flint": [0, 1]}
"""model_type -> the mlp_only_layers of a config.json that has none, where there are some."""


def uniform(config: Config, index: int) -> str:
    """All layers are `dense`."""
    return "dense"


def all_sparse(config: Config, index: int) -> str:
    """All layers are `sparse`."""
    return "sparse"


def decoder_sparse_step(config: Config, index: int) -> str:
    """Qwen: `sparse` every `decoder_sparse_step` layers, except those in `mlp_only_layers`."""
    is_dense = index in config.get("mlp_only_layers", MLP_ONLY.get(config.model_type, []))
    sparse = config.get("num_experts", 0) > 0 and (index + 1) % config.get("decoder_sparse_step", 1) == 0
    return "sparse" if sparse and not is_dense else "dense"


def decoder_sparse_step_deepstack(config: Config, index: int) -> str:
    """Qwen3-VL-MoE: the same, and `deepstack_..` in the first `deepstack_layers` layers."""
    kind = decoder_sparse_step(config, index)
    return f"deepstack_{kind}" if index < config["deepstack_layers"] else kind


def first_k_dense_replace(config: Config, index: int) -> str:
    """DeepSeek: the first `first_k_dense_replace` layers are `dense`, all others `sparse`."""
    otherwise = FIRST_DENSE.get(config.model_type, 3)
    return "dense" if index < config.get("first_k_dense_replace", otherwise) else "sparse"


def mlp_layer_types(config: Config, index: int) -> str:
    """GLM-4.7-Flash: `mlp_layer_types`, or the first layer `dense` and all others `sparse`."""
    return listed_word(config, "mlp_layer_types", index, ("dense", "sparse")) or ("sparse" if index else "dense")


def mlp_layer_types_or_all_sparse(config: Config, index: int) -> str:
    """Mellum: `mlp_layer_types`, or all layers `sparse`."""
    return listed_word(config, "mlp_layer_types", index, ("dense", "sparse")) or "sparse"


def mlp_layer_types_or_prefix(config: Config, index: int) -> str:
    """Cohere 2 MoE: `mlp_layer_types`, or the first `first_k_dense_replace` layers `dense`, none where it is absent."""
    listed = listed_word(config, "mlp_layer_types", index, ("dense", "sparse"))
    return listed or ("dense" if index < config.get("first_k_dense_replace", 0) else "sparse")


def mlp_layer_types_or_first_k(config: Config, index: int) -> str:
    """K-EXAONE: `mlp_layer_types`, or as `first_k_dense_replace` has it."""
    return listed_word(config, "mlp_layer_types", index, ("dense", "sparse")) or first_k_dense_replace(config, index)


def num_dense_layers(config: Config, index: int) -> str:
    """Trinity: the first `num_dense_layers` layers are `dense`, all others `sparse`."""
    return "dense" if index < config.get("num_dense_layers", 1) else "sparse"


def moe_layer_interval(config: Config, index: int) -> str:
    """ERNIE 4.5: `sparse` every `moe_layer_interval` layers from `moe_layer_start_index` to `moe_layer_end_index`."""
    last = config.get("moe_layer_end_index", -1)
    is_inside = config.get("moe_layer_start_index", 1) <= index and (last == -1 or index <= last)
    return "sparse" if is_inside and (index + 1) % config.get("moe_layer_interval", 1) == 0 else "dense"


def linear_and_full_attention(config: Config, index: int) -> str:
    """Qwen3-Next: `linear_..` or `full_..` by `layer_types`, or full every `full_attention_interval` layers, and then
    `.._sparse` or `.._dense` as `decoder_sparse_step` has it.
    """
    return f"{_full_or_linear(config, index)}_{decoder_sparse_step(config, index)}"


def linear_and_full_attention_all_sparse(config: Config, index: int) -> str:
    """Qwen3.5: the same, and all layers `.._sparse`."""
    return f"{_full_or_linear(config, index)}_sparse"


def _full_or_linear(config: Config, index: int) -> str:
    word = layer_type(config, index, ("full_attention", "linear_attention"))
    is_full = (index + 1) % config.get("full_attention_interval", 4) == 0
    is_full = is_full if word is None else word == "full_attention"
    return "full" if is_full else "linear"


def every_second_linear(config: Config, index: int) -> str:
    """MiniMax-Text-01: `full` or `linear` by `layer_types`, or full every second layer, beginning with the first."""
    word = layer_type(config, index, ("full_attention", "linear_attention"))
    is_full = index % 2 == 0 if word is None else word == "full_attention"
    return "full" if is_full else "linear"


def kimi_linear_and_full(config: Config, index: int) -> str:
    """Kimi Linear: `full_..` by `layer_types`, or every fourth layer but the first, else `linear_..`, and then
    `.._sparse` or `.._dense` by `mlp_layer_types`, or as `first_k_dense_replace` has it.
    """
    word = layer_type(config, index, ("full_attention", "linear_attention"))
    is_full = index > 0 and index % 4 == 0 if word is None else word == "full_attention"
    return f"{'full' if is_full else 'linear'}_{mlp_layer_types_or_first_k(config, index)}"


def ling_linear_and_full(config: Config, index: int) -> str:
    """Ling 3.0: `full_..` by `layer_types`, or the last of every `layer_group_size` layers, else `linear_..`, and then
    `.._sparse` or `.._dense` by `mlp_layer_types`, or as `first_k_dense_replace` has it.
    """
    word = layer_type(config, index, ("full_attention", "linear_attention"))
    is_full = (index + 1) % config.get("layer_group_size", 6) == 0 if word is None else word == "full_attention"
    return f"{'full' if is_full else 'linear'}_{mlp_layer_types_or_first_k(config, index)}"


def granite_hybrid(config: Config, index: int) -> str:
    """Granite 4 (H): `full_..` or `linear_..` by `layer_types`, whose words may be older ones, else `linear_..`, and
    then `.._sparse`, or `.._dense` where there are no experts.
    """
    words = ("full_attention", "linear_attention", "attention", "mamba")
    is_full = layer_type(config, index, words) in {"full_attention", "attention"}
    return f"{'full' if is_full else 'linear'}_{'sparse' if config.get('num_experts', 8) else 'dense'}"


def nemotron_blocks(config: Config, index: int) -> str:
    """Nemotron-H: a block a layer, `linear`, `full`, `moe` or `mlp`, by `layer_types`, perhaps in older words."""
    kinds = {"linear_attention": "linear", "mamba": "linear", "full_attention": "full", "attention": "full"}
    kinds |= {"moe": "moe", "mlp": "mlp"}
    return kinds[layer_type(config, index, tuple(kinds)) or ("mamba", "moe", "attention", "mlp")[index % 4]]


def jamba_periods(config: Config, index: int) -> str:
    """Jamba: `full_..` every `attn_layer_period` layers, else `linear_..`, and then `.._sparse` every
    `expert_layer_period` layers, else `.._dense`, each from its offset on.
    """
    is_full = index % config.get("attn_layer_period", 8) == config.get("attn_layer_offset", 4)
    is_sparse = index % config.get("expert_layer_period", 2) == config.get("expert_layer_offset", 1)
    is_sparse = is_sparse and config.get("num_experts", 16) > 1
    return f"{'full' if is_full else 'linear'}_{'sparse' if is_sparse else 'dense'}"


def convolution_and_full_attention(config: Config, index: int) -> str:
    """LFM2: `convolution_..` or `full_..` by `layer_types`, and then `.._dense` in the first `num_dense_layers`, else
    `.._sparse`. Raises CheckpointError without `layer_types`.
    """
    word = layer_type(config, index, ("full_attention", "conv"))
    if word is None:
        raise CheckpointError(
            f"{config.where('layer_types')}: there is no layer_types; expected full_attention or conv for each layer."
        )
    kind = "dense" if index < config.get("num_dense_layers", 2) else "sparse"
    return f"{'convolution' if word == 'conv' else 'full'}_{kind}"


def moe_layers(config: Config, index: int) -> str:
    """Llama 4: `sparse` are those in `moe_layers`, or every `interleave_moe_layer_step`th."""
    listed = config.get("moe_layers")
    if listed is None:
        return "dense" if (index + 1) % config.get("interleave_moe_layer_step", 1) else "sparse"
    if not isinstance(listed, list) or any(type(layer) is not int for layer in listed):
        raise CheckpointError(
            f"{config.where('moe_layers')}: moe_layers is {shown(listed)}; expected a list of layer numbers."
        )
    return "sparse" if index in listed else "dense"


LAYER_RULES: dict[str, Callable[[Config, int], str]] = {
    rule.__name__: rule
    for rule in (
        uniform,
        all_sparse,
        decoder_sparse_step,
        decoder_sparse_step_deepstack,
        first_k_dense_replace,
        mlp_layer_types,
        mlp_layer_types_or_all_sparse,
        mlp_layer_types_or_prefix,
        mlp_layer_types_or_first_k,
        num_dense_layers,
        moe_layer_interval,
        linear_and_full_attention,
        linear_and_full_attention_all_sparse,
        every_second_linear,
        kimi_linear_and_full,
        ling_linear_and_full,
        granite_hybrid,
        nemotron_blocks,
        jamba_periods,
        convolution_and_full_attention,
        moe_layers,
    )
}


def layer_type(
    config: Config, index: int, expected: tuple[str, ...] = ("full_attention", "sliding_attention")
) -> str | None:
    """What `layer_types` calls a layer; None where there is no such list. Raises CheckpointError for other names."""
    return listed_word(config, "layer_types", index, expected)


def listed_word(config: Config, field: str, index: int, expected: tuple[str, ...]) -> str | None:
    """What a list of config.json says of a layer; None where there is none. Raises CheckpointError for other words."""
    words = config.get(field)
    if words is None:
        return None
    word = words[index] if isinstance(words, list) and index < len(words) else None
    if word not in expected:
        raise CheckpointError(
            f"{config.where(field)}: {field} gives layer {index} as {shown(word)}; expected "
            f"{' or '.join(expected)} for each layer."
        )
    return str(word)
