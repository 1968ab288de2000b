"""gpt-oss's experts, looped, grouped and cut over ranks, against one slot at a time, every rounding written out.

The numbers are coarse, so that every GEMM is exact in fp32, whatever its order. Taken as given is torch's sigmoid,
which in fp32 depends on where in a vector a value lies; rounded to 16 bits it does not.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.ops.experts import EXPERTS as OP
from moeparity.ops.kernels.experts import experts
from tests.ops.plain import BF16, FP16, FP32, assert_bits, random, times
from tests.ops.test_experts import EXPERTS, HIDDEN, ONE, WIDTH, B, K, T, X, coarse, gemm, routes

P: dict[str, Any] = {"glu": "clamped", "alpha": 1.702, "limit": 7.0, "interleaved": True}
SITES = ("unbiased", "biased", "gain", "sigmoid", "shifted", "activation", "product", "output")
BASE: dict[str, Any] = {
    "implementation": "loop",
    "gate_up": "fused",
    "score_site": "combine",
    "projections": BF16,
    **dict.fromkeys(SITES, BF16),
    "tf32": "no",
    "parallel": "row",
    "tensor": 1,
    "blocks": 0,
}
GATE, UP = coarse(EXPERTS, WIDTH, HIDDEN, seed=1), coarse(EXPERTS, WIDTH, HIDDEN, seed=2)
# More bits than bf16 has beside such sums.
GATE_BIAS, UP_BIAS, DOWN_BIAS = (
    (coarse(EXPERTS, n, seed=seed, dtype=FP32) / 16 + 2.0**-7).to(BF16)
    for n, seed in ((WIDTH, 5), (WIDTH, 6), (HIDDEN, 8))
)


def interleaved(gate: Tensor, up: Tensor) -> Tensor:
    """[E, N, ..] twice -> [E, 2N, ..], as they lie in a file whose last axis is that of the outputs."""
    return torch.stack((gate, up), dim=2).flatten(1, 2)


def weights(*, alternating: bool = True) -> dict[str, Tensor]:
    def join(gate: Tensor, up: Tensor) -> Tensor:
        return interleaved(gate, up) if alternating else torch.cat((gate, up), dim=1)

    gate_up = join(GATE, UP)
    if alternating:
        gate_up = gate_up.transpose(1, 2).contiguous().transpose(1, 2)
    return {"gate_up": gate_up, "gate_up_bias": join(GATE_BIAS, UP_BIAS), "down": ONE, "down_bias": DOWN_BIAS}


def plus(a: Tensor, b: Tensor | float, dtype: torch.dtype) -> Tensor:
    return (a.double() + (b.double() if isinstance(b, Tensor) else b)).float().to(dtype)


def biased(x: Tensor, weight: Tensor, bias: Tensor, before: torch.dtype, after: torch.dtype) -> Tensor:
    return plus(gemm(x, weight, before), bias, after)


def row(x: Tensor, expert: int, score: Tensor | None, at: dict[str, Any]) -> Tensor:
    """One slot's row [H] of one token x [H]."""
    x = x.to(at["projections"])
    gate = biased(x, GATE[expert], GATE_BIAS[expert], at["unbiased"], at["biased"])
    up = biased(x, UP[expert], UP_BIAS[expert], at["unbiased"], at["biased"])
    gate = torch.where(gate > P["limit"], torch.tensor(P["limit"], dtype=gate.dtype), gate)
    up = torch.where(up.abs() > P["limit"], torch.sign(up) * P["limit"], up)
    gain = times(gate, torch.tensor(P["alpha"], dtype=FP32), at["gain"])
    share = torch.sigmoid(gain.float()).to(at["sigmoid"])
    hidden = times(plus(up, 1.0, at["shifted"]), times(gate, share, at["activation"]), at["product"])
    if score is None:
        return biased(hidden, ONE[expert], DOWN_BIAS[expert], at["unbiased"], at["output"])
    return times(biased(hidden, ONE[expert], DOWN_BIAS[expert], at["unbiased"], FP32), score, at["output"])


def by_hand(ids: Tensor, at: dict[str, Any], scores: Tensor | None = None) -> Tensor:
    rows = [
        row(X[b, t], int(ids[b, t, k]), None if scores is None else scores[b, t, k], at)
        for b, t, k in itertools.product(*map(range, ids.shape))
    ]
    return torch.stack(rows).view(*ids.shape, HIDDEN)


@pytest.mark.parametrize("implementation", ["loop", "grouped"])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32])
@pytest.mark.parametrize("site", SITES)
def test_sites(site: str, dtype: torch.dtype, implementation: str) -> None:
    # What an fp32 sigmoid makes of one value is torch's own: it is rounded before anything sees it.
    at = BASE | {"implementation": implementation, site: dtype}
    at |= {"sigmoid": BF16} if site != "sigmoid" or dtype == FP32 else {}
    assert_bits(experts(X, routes(K), None, w=weights(), p=P, at=at), by_hand(routes(K), at))


def test_every_site_matters() -> None:
    """In numbers with full mantissas."""
    x, w = random(B, T, HIDDEN, dtype=FP32), weights()
    w = {name: random(*stack.shape, dtype=FP32, seed=i) for i, (name, stack) in enumerate(w.items())}
    wide = BASE | dict.fromkeys(("projections", *SITES), FP32)
    plain = experts(x, routes(K), None, w=w, p=P, at=wide)
    for site in SITES[:-1]:
        assert not torch.equal(plain.to(BF16), experts(x, routes(K), None, w=w, p=P, at=wide | {site: BF16}).to(BF16))
    for name, value in (("alpha", 1.0), ("limit", 1.0), ("glu", "swiglu"), ("interleaved", False)):
        assert not torch.allclose(plain, experts(x, routes(K), None, w=w, p=P | {name: value}, at=wide))


@pytest.mark.parametrize("implementation", ["loop", "grouped"])
@pytest.mark.parametrize("unbiased", [BF16, FP32])
def test_the_score_in_the_epilogue_comes_after_the_bias(implementation: str, unbiased: torch.dtype) -> None:
    at = BASE | {"implementation": implementation, "score_site": "epilogue", "unbiased": unbiased}
    scores = random(B, T, K, dtype=FP32, seed=5)
    assert_bits(experts(X, routes(K), scores, w=weights(), p=P, at=at), by_hand(routes(K), at, scores))


@pytest.mark.parametrize("implementation", ["loop", "grouped"])
@pytest.mark.parametrize("alternating", [True, False])
@pytest.mark.parametrize("gate_up", ["fused", "split"])
def test_layouts(gate_up: str, alternating: bool, implementation: str) -> None:
    at, p = BASE | {"gate_up": gate_up, "implementation": implementation}, P | {"interleaved": alternating}
    w = weights(alternating=alternating)
    assert_bits(experts(X, routes(K), None, w=w, p=p, at=at), by_hand(routes(K), at))


@pytest.mark.parametrize("alternating", [True, False])
@pytest.mark.parametrize("parallel", ["row", "column"])
def test_ranks(parallel: str, alternating: bool) -> None:
    """Row-wise the first rank adds the down projection's bias (vLLM zeroes it on the others, read)."""
    at = BASE | {"tensor": 4, "parallel": parallel, "partial": FP32, "unbiased": FP32}
    w, p = weights(alternating=alternating), P | {"interleaved": alternating}
    ours = experts(X, routes(K), None, w=w, p=p, at=at)
    if parallel == "column":
        assert_bits(ours, by_hand(routes(K), at))
        return
    assert ours.shape == (B, 4, T, K, HIDDEN)
    biases = DOWN_BIAS[routes(K)].float()
    first = experts(X, routes(K), None, w=w | {"down_bias": torch.zeros_like(DOWN_BIAS)}, p=p, at=at)
    assert torch.equal(ours[:, 1:], first[:, 1:])
    assert torch.equal(ours[:, 0], first[:, 0] + biases)
    # One term in every sum over the width: the parts add up exactly, but for the bias's one rounding.
    assert torch.equal(ours.double().sum(1).float(), by_hand(routes(K), at | {"output": FP32}))


def test_a_score_before_the_bias_is_refused() -> None:
    shapes = {"gate": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH), "down_bias": (HIDDEN,), "ids": (K,)}
    values = {a.name: a.default for a in OP.attributes}
    assert OP.refusals.values is not None
    refusal = OP.refusals.values(shapes, values | {"score_site": "activation"})
    assert refusal is not None
    assert refusal[0] == "score_site"
    assert "bias" in refusal[1]
