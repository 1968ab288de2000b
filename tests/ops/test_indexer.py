"""The indexer of sparse attention: what it chooses, against a loop, transformers' own module, and of equal scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.attention_forms import visible_keys
from moeparity.ops.kernels.indexer import indexer
from tests.hf.compare import LIVE
from tests.small_models import SMALL
from tests.verified import record

SITES = dict.fromkeys(("scores", "weights", "total"), torch.float32)
DEFAULTS: dict[str, Any] = {**SITES, "tie_break": "torch_topk", "allocated": 0}
HEADS, WIDTH, KEYS, TOP_K = 3, 24, 13, 4


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def chosen(
    q: torch.Tensor, k: torch.Tensor, of_heads: torch.Tensor, mask: torch.Tensor | None = None, **at: Any
) -> torch.Tensor:
    mask = torch.ones(len(k), k.shape[2], dtype=torch.bool) if mask is None else mask
    return indexer(q, k, of_heads, mask, w={}, p={"top_k": at.pop("top_k", TOP_K)}, at=DEFAULTS | at)


def test_against_a_loop_over_queries_in_fp64() -> None:
    """Of a step that stands behind five keys, with padding in front; places of keys, best first, and -1 for none."""
    q, k, weights = drawn(2, HEADS, 8, WIDTH), drawn(2, 1, KEYS, WIDTH, seed=1), drawn(2, 8, HEADS, seed=2)
    mask = torch.ones(2, KEYS, dtype=torch.bool)
    mask[1, :4] = False
    sites = dict.fromkeys(SITES, torch.float64)
    ours = chosen(q.double(), k.double(), weights.double(), mask, top_k=7, **sites)
    assert ours.dtype == torch.int64
    assert ours.shape == (2, 8, 7)
    for b in range(2):
        for t in range(8):
            visible = [s for s in range(KEYS) if s <= t + 5 and mask[b, s]]
            scores = {
                s: sum(
                    float(weights[b, t, h].double() * (q[b, h, t].double() @ k[b, 0, s].double()).clamp(min=0))
                    for h in range(HEADS)
                )
                for s in visible
            }
            best = sorted(visible, key=lambda s: -scores[s])[:7]
            picked = [s for s in ours[b, t].tolist() if s >= 0]
            assert [scores[s] for s in picked] == pytest.approx([scores[s] for s in best], abs=1e-12)
            assert len(set(picked)) == len(picked) == min(7, len(visible))
            assert (ours[b, t] == -1).sum() == 7 - len(picked)


@pytest.mark.parametrize(
    ("tie_break", "expected"), [("lowest_index", [0, 1, 2, 3]), ("highest_index", [12, 11, 10, 9])]
)
def test_of_equal_scores(tie_break: str, expected: list[int]) -> None:
    """Queries that no key meets at a sharp angle: relu makes every score 0."""
    k = drawn(1, 1, KEYS, WIDTH).abs()
    q, weights = -drawn(1, HEADS, 1, WIDTH, seed=1).abs(), drawn(1, 1, HEADS)
    assert chosen(q, k, weights, tie_break=tie_break).tolist() == [[expected]]
    assert chosen(q, k, weights).tolist() == [[torch.zeros(1, KEYS).topk(TOP_K)[1][0].tolist()]]


def test_a_static_cache_ranks_its_free_places_too() -> None:
    q, k, weights = -drawn(1, HEADS, 1, WIDTH).abs(), drawn(1, 1, KEYS, WIDTH).abs(), drawn(1, 1, HEADS)
    total = torch.cat((torch.zeros(1, KEYS), torch.full((1, 40 - KEYS), -torch.inf)), 1)
    assert chosen(q, k, weights, allocated=40).tolist() == [[total.topk(TOP_K)[1][0].tolist()]]
    assert chosen(q, k, weights, top_k=20, allocated=40)[0, 0].sort().values.tolist() == [-1] * 7 + [*range(KEYS)]
    with pytest.raises(RefusedError, match="13 tokens do not fit into 12 places"):
        chosen(q, k, weights, allocated=12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("length", [1, 3, KEYS])
def test_the_module_of_transformers(dtype: torch.dtype, length: int) -> None:
    """Whose indices of keys that a query sees are the same in the same order."""
    config: Any = AutoConfig.for_model(**SMALL["deepseek_v32"])
    config.layer_types = ["indexed_attention"] * config.num_hidden_layers
    torch.manual_seed(3)
    live = DeepseekV32Indexer(config, 0).to(dtype)
    x, low = drawn(2, length, config.hidden_size, dtype=dtype), drawn(2, length, config.q_lora_rank, dtype=dtype)
    table = torch.ones(2, length, 16, dtype=dtype), torch.zeros(2, length, 16, dtype=dtype)
    causal = visible_keys(torch.ones(2, length, dtype=torch.bool), length, 0)[:, 0].expand(2, -1, -1)
    q = live.wq_b(low).view(2, length, HEADS, WIDTH).transpose(1, 2)
    with torch.no_grad():
        theirs = live(x, low, table, causal, torch.arange(length)[None]).long()
        ours = chosen(q, live.k_norm(live.wk(x)).unsqueeze(1), live.weights_proj(x))
    hidden = ~causal.gather(-1, theirs)
    assert torch.equal(ours[..., : theirs.shape[-1]], theirs.masked_fill(hidden, -1))
    assert (ours[..., theirs.shape[-1] :] == -1).all()
    record("indexer", dict.fromkeys(SITES, "fp32") | {"tie_break": "torch_topk"}, LIVE)
