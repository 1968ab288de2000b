"""Weights that vLLM 0.33.0 has tuned tiles of on Hopper: batch-invariant in bf16, it compiles no model that has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TUNED: Final = frozenset(
    {
        *((12288, 2048), (2048, 6144), (4096, 2048), (151936, 2048), (2048, 2048), (24576, 4096), (4096, 12288)),
        *((6144, 4096), (4096, 4096), (151936, 4096), (28672, 4096), (4096, 14336), (128256, 4096)),
    }
)
"""Rows and columns: vllm/model_executor/determinism/batch_invariant_configs.py:103-298, the shapes of Hopper."""


def shapes(
    *, hidden: int, heads: int, kv_heads: int, head_dim: int, inner: int | None, tensor: int
) -> list[tuple[int, int]]:
    """Rows and columns of the weights of qkv, o, gate_up and down on one of `tensor` ranks, as vLLM counts them
    (vllm/config/vllm.py:808 _uses_breakable_cudagraph_for_batch_invariance).
    """
    ours, keys = heads // tensor, max(1, kv_heads // tensor)
    attention = [((ours + 2 * keys) * head_dim, hidden), (hidden, ours * head_dim)]
    return attention if inner is None else [*attention, (2 * inner // tensor, hidden), (hidden, inner // tensor)]


def is_tuned(sizes: Mapping[str, int], tensor: int) -> bool | None:
    """Whether one of a graph's weights is, by its sizes; None where these do not say it."""
    # Both are a configuration's intermediate_size: that of experts has it where a graph has no other.
    inner = sizes.get("intermediate", sizes.get("expert_width"))
    # Latent attention: heads of the latent's width, and one head of keys.
    latent = {"kv_heads": 1, "head_dim": sizes.get("latent", 0) + sizes.get("rope", 0)} if "latent" in sizes else {}
    widths = {name: ({**sizes, **latent}).get(name, 0) for name in ("hidden", "heads", "kv_heads", "head_dim")}
    if not all(widths.values()):
        return None
    return not TUNED.isdisjoint(shapes(**widths, inner=inner, tensor=tensor))
