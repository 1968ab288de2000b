"""Modules of Llama 4 in transformers beside the ops that stand for them: norm, softmax of scores, experts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama4.modeling_llama4 import (
    Llama4TextExperts,
    Llama4TextL2Norm,
    eager_attention_forward,
)

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.attention import attention
from moeparity.ops.kernels.experts import experts
from moeparity.ops.kernels.exponentials import softmax
from moeparity.ops.kernels.unweighted_norm import unweighted_norm
from tests.hf.compare import DTYPES, LIVE
from tests.small_models import SMALL
from tests.verified import record

TWO = pytest.mark.parametrize("dtype", ["bf16", "fp32"])


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@TWO
def test_norm_without_a_weight(dtype: str) -> None:
    x, p = drawn(2, 5, 3, 101).to(DTYPES[dtype]), {"eps": 1e-3}
    at: dict[str, Any] = {"output": x.dtype, "eps": "config"}
    ours = unweighted_norm(x, w={}, p=p, at=at)
    assert same_bits(ours, Llama4TextL2Norm(1e-3)(x))
    assert not same_bits(ours, unweighted_norm(x, w={}, p=p, at=at | {"eps": 1e-5}))
    wide = x.double()
    truth = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt()
    assert torch.allclose(unweighted_norm(x, w={}, p=p, at=at | {"output": torch.float64}), truth, rtol=1e-12)
    record("unweighted_norm", {"output": dtype, "eps": "config"}, LIVE)


@TWO
def test_softmax_of_the_scores_dtype(dtype: str) -> None:
    tokens, heads, groups, width = 150, 4, 2, 16
    q, k, v = (drawn(2, n, tokens, width, seed=i).to(DTYPES[dtype]) for i, n in enumerate((heads, groups, groups)))
    causal = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    hidden = torch.zeros(tokens, tokens, dtype=q.dtype).masked_fill(~causal, torch.finfo(q.dtype).min)
    module: Any = SimpleNamespace(num_key_value_groups=heads // groups, training=False)
    theirs, _ = eager_attention_forward(module, q, k, v, hidden[None, None], width**-0.5)
    at: dict[str, Any] = {"implementation": "eager", "softmax": "of_scores", "tf32": "no", "kv_layout": "projected"}
    at |= dict.fromkeys(("scores", "probabilities", "output"), q.dtype) | {"tensor": 1, "blocks": 0}
    mask = torch.ones(2, tokens, dtype=torch.bool)
    ours = attention(q, k, v, mask, w={}, p={"window": None}, at=at)
    assert same_bits(ours, theirs.flatten(2))
    sites = dict.fromkeys(("scores", "probabilities", "output"), dtype)
    record("attention", {"implementation": "eager", "softmax": "of_scores", **sites}, LIVE)


def test_two_softmaxes_of_16_bits() -> None:
    """torch's own for them, and that for fp32, rounded: few of many numbers differ."""
    scores = (drawn(20_000, 100) * 3).to(torch.bfloat16)
    ours, native = (softmax(scores, torch.float32, {"softmax": form}) for form in ("of_scores", "native"))
    assert same_bits(ours, torch.softmax(scores, -1))
    assert 0 < int((ours != native.to(torch.bfloat16)).sum()) < scores.numel() / 10_000


@TWO
def test_all_experts_for_all_tokens(dtype: str) -> None:
    config: Any = AutoConfig.for_model(**{**SMALL["llama4"], "num_local_experts": 8})
    theirs = Llama4TextExperts(config).to(DTYPES[dtype])
    x, scores = drawn(1, 19, 64, seed=1).to(DTYPES[dtype]), drawn(1, 19, 1, seed=2).sigmoid().to(DTYPES[dtype])
    ids = torch.randint(0, 8, (1, 19, 1), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        theirs.gate_up_proj.copy_(drawn(8, 64, 80, seed=4) / 8)
        theirs.down_proj.copy_(drawn(8, 40, 64, seed=5) / 6)
        of_all = torch.zeros(19, 8, dtype=x.dtype).scatter_(1, ids[0], scores[0])
        routed = theirs(x[0].repeat(8, 1) * of_all.t().reshape(-1, 1)).view(8, 19, 64)
    w = {"gate_up": theirs.gate_up_proj.detach().mT, "down": theirs.down_proj.detach().mT}
    sites = ("projections", "activation", "product", "scored", "output")
    at: dict[str, Any] = {"implementation": "batched", "gate_up": "fused", "tf32": "no", "parallel": "row"}
    at |= dict.fromkeys(sites, x.dtype) | {"tensor": 1, "blocks": 0}
    ours = experts(x, ids, scores, w=w, p={"scored_at": "input"}, at=at)
    assert same_bits(ours[0, :, 0], routed.gather(0, ids.view(1, 19, 1).expand(1, 19, 64))[0])
    assert not routed.masked_fill(of_all.t()[..., None] != 0, 0).any(), "zeros in, zeros out"
    stated = {"implementation": "batched", "gate_up": "fused", **dict.fromkeys(sites, dtype)}
    record("experts", stated, LIVE, p={"scored_at": "input"})
