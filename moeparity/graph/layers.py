"""Named rules that say what kind a layer is, from config.json fields and its index."""

from __future__ import annotations

from collections.abc import Callable

from moeparity.graph.config import Config


def uniform(config: Config, index: int) -> str:
    """All layers are `dense`."""
    return "dense"


def all_sparse(config: Config, index: int) -> str:
    """All layers are `sparse`."""
    return "sparse"


def decoder_sparse_step(config: Config, index: int) -> str:
    """Qwen: `sparse` every `decoder_sparse_step` layers, except those in `mlp_only_layers`."""
    listed_dense = index in config.get("mlp_only_layers", [])
    sparse = config.get("num_experts", 0) > 0 and (index + 1) % config.get("decoder_sparse_step", 1) == 0
    return "sparse" if sparse and not listed_dense else "dense"


def first_k_dense_replace(config: Config, index: int) -> str:
    """DeepSeek: the first `first_k_dense_replace` layers are `dense`, all others `sparse`."""
    return "dense" if index < config.get("first_k_dense_replace", 3) else "sparse"


LAYER_RULES: dict[str, Callable[[Config, int], str]] = {
    rule.__name__: rule for rule in (uniform, all_sparse, decoder_sparse_step, first_k_dense_replace)
}
