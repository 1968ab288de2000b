"""Routers that rank experts by their logits, of which only the chosen ones are scored: Kolibri's, and sparsemixer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.kolibri1.modeling_kolibri1 import Kolibri1TopKRouter
from transformers.models.llama4.modeling_llama4 import Llama4Router
from transformers.models.phimoe.modeling_phimoe import sparsemixer

from moeparity.numerics.bits import same_bits
from moeparity.ops.kernels.router import router, selection
from tests.hf.compare import DTYPES, LIVE
from tests.small_models import SMALL
from tests.verified import record

EXPERTS, JITTER = 12, 0.3
SPARSE = {"top_k": 2, "score": "sparsemixer", "renormalize": False, "groups": 1, "scale": 1.0, "jitter": JITTER}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mixed(logits: torch.Tensor, dtype: torch.dtype, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    at = {"scores": dtype, "tie_break": "lowest_index", "slots": "sorted", "weights": dtype}
    return router(logits, **more, w={}, p=SPARSE, at=at)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_sparsemixer_of_transformers(dtype: torch.dtype) -> None:
    """Also where logits tie, and where the best is negative."""
    logits = drawn(3, 40, EXPERTS).to(dtype)
    logits[0, :5] = -logits[0, :5].abs()
    logits[1, :5, ::2] = 1.5
    weights, ids = sparsemixer(logits.flatten(0, 1), JITTER, training=False)
    ours = mixed(logits, dtype)
    assert torch.equal(ours[0].flatten(0, 1), ids)
    assert same_bits(ours[1].flatten(0, 1), weights)
    record("router", {"scores": str(dtype)[6:].replace("bfloat16", "bf16").replace("float32", "fp32")}, LIVE, p=SPARSE)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_llama_4_scores_all_experts_and_ranks_their_logits(dtype: str) -> None:
    config = AutoConfig.for_model(**{**SMALL["llama4"], "num_local_experts": EXPERTS})
    theirs, x = Llama4Router(config).to(DTYPES[dtype]), drawn(40, 64, seed=3).to(DTYPES[dtype])
    with torch.no_grad():
        theirs.weight.copy_(drawn(EXPERTS, 64, seed=4) * 8)
        scores, logits = theirs(x)
    p = {"top_k": 1, "score": "sigmoid", "renormalize": False, "groups": 1, "scale": 1.0, "ranks_logits": True}
    at = {"scores": torch.float32, "sigmoid": "native", "tie_break": "torch_topk", "slots": "sorted"}
    ids, weights = router(logits[None], w={}, p=p, at=at | {"weights": logits.dtype})
    assert torch.equal(ids[0, :, 0], logits.argmax(-1))
    assert same_bits(weights[0], scores.gather(1, ids[0]))
    record("router", {"sigmoid": "native", "scores": "fp32", "weights": dtype}, LIVE, p=p)


def test_sparsemixer_against_a_loop() -> None:
    logits = drawn(1, 40, EXPERTS).double()
    ids, weights = mixed(logits, torch.float64)
    for row, experts, shares in zip(logits[0].tolist(), ids[0].tolist(), weights[0].tolist(), strict=True):
        remaining = set(range(EXPERTS))
        for expert, share in zip(experts, shares, strict=True):
            assert expert == max(remaining, key=row.__getitem__)
            near = [e for e in remaining if (row[expert] - row[e]) / max(abs(row[e]), row[expert]) <= 2 * JITTER]
            powers = torch.tensor([row[e] - row[expert] for e in near], dtype=torch.float64).exp()
            assert share == pytest.approx(1 / float(powers.sum()), rel=1e-12)
            remaining.remove(expert)


def test_sparsemixer_of_experts_that_are_replayed() -> None:
    """Its own choice in any order changes nothing; another expert's weight is its softmax among those near it."""
    logits = drawn(1, 9, EXPERTS)
    ids, weights = mixed(logits, torch.float32)
    again = mixed(logits, torch.float32, replayed=ids.flip(-1))
    assert torch.equal(again[0], ids)
    assert same_bits(again[1], weights)
    worst = torch.stack((ids[..., 0], logits.argmin(-1)), -1)
    forced = mixed(logits, torch.float32, replayed=worst)
    assert torch.equal(forced[0], worst)
    assert same_bits(forced[1][..., 0], weights[..., 0])
    assert (forced[1][..., 1] > 0).all()


@pytest.mark.parametrize("renormalize", [True, False])
def test_the_router_of_kolibri(renormalize: bool) -> None:
    """A bias that chooses other experts, and is in no weight."""
    live = Kolibri1TopKRouter(AutoConfig.for_model(**SMALL["kolibri1"], norm_topk_prob=renormalize))
    x, bias = drawn(1, 33, 64), drawn(16, seed=3)
    live.load_state_dict({"weight": drawn(16, 64, seed=2) / 8, "e_score_correction_bias": bias})
    sites = dict.fromkeys(("scores", "correction", "choice", "total", "weights"), torch.float32)
    at = {**sites, "sigmoid": "native", "tie_break": "torch_topk", "slots": "sorted", "renormalize": "divide"}
    at |= {"renormalize_order": "native", "renormalize_eps": 0.0, "renormalize_eps_at": "end"}
    p = {"top_k": 4, "score": "sigmoid", "by_logits": True, "renormalize": renormalize, "groups": 1, "scale": 1.0}
    with torch.no_grad():
        logits, weights, ids = live(x)
        ours = router(logits[None], w={"bias": bias}, p=p, at=at)
    assert torch.equal(ours[0][0], ids)
    assert same_bits(ours[1][0], weights)
    assert not torch.equal(logits.topk(4)[1], ids)
    assert torch.equal(selection(logits[None], w={"bias": bias}, p=p, at=at)[0][0], logits + bias)
