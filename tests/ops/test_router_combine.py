"""Every attribute value of the router and the combine against loops over tokens and slots, bit for bit.

Taken as given are torch's softmax, sigmoid and the sum of a row; every rounding is written out.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from moeparity.ops.kernels.combine import combine
from moeparity.ops.kernels.router import router
from tests.ops.plain import BF16, DTYPES, FP32, assert_bits, plus, random, times

EXPERTS, TOP_K = 12, 5
ORDERS = ("sequential", "reverse", "fold_hi", "fold_lo")
PARAMETERS: dict[str, Any] = {
    "top_k": TOP_K,
    "score": "softmax",
    "renormalize": True,
    "groups": 1,
    "top_groups": 1,
    "scale": 1.0,
}
SETTINGS: dict[str, Any] = {
    "softmax": "native",
    "math": "torch",
    "sigmoid": "native",
    "scores": FP32,
    "correction": FP32,
    "choice": FP32,
    "chosen": "scores",
    "group_score": "top2_sum",
    "group_mask": "neg_inf",
    "tie_break": "torch_topk",
    "slots": "sorted",
    "renormalize": "divide",
    "renormalize_order": "native",
    "renormalize_eps": 0.0,
    "renormalize_eps_at": "end",
    "total": FP32,
    "weights": BF16,
}


def best(scores: list[float], k: int) -> list[int]:
    """The k greatest, descending; the lowest index first among equals."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


def chosen(scores: list[float], bias: list[float] | None, p: dict[str, Any]) -> list[int]:
    choice = scores if bias is None else [plus32(s, b) for s, b in zip(scores, bias, strict=True)]
    size = len(choice) // p["groups"]
    if p["groups"] > 1:
        members = [range(g * size, (g + 1) * size) for g in range(p["groups"])]
        totals = [plus32(*sorted((choice[i] for i in group), reverse=True)[:2]) for group in members]
        members_kept = {i for g in best(totals, p["top_groups"]) for i in members[g]}
        choice = [c if i in members_kept else -torch.inf for i, c in enumerate(choice)]
    return best(choice, p["top_k"])


def plus32(a: float, b: float) -> float:
    return torch.tensor(a + b, dtype=torch.float64).float().item()


def weighted(scores: Tensor, ids: Tensor, p: dict[str, Any], at: dict[str, Any]) -> Tensor:
    """The routing weights [N, K] of the given ids, in their slots."""
    weights = torch.stack([row[i] for row, i in zip(scores, ids, strict=True)]).float()
    if p["renormalize"]:
        total = plus(weights.sum(-1, keepdim=True), torch.tensor(at["renormalize_eps"], dtype=FP32), FP32)
        if at["renormalize"] == "reciprocal":
            weights = times(weights, (1.0 / total.double()).float(), FP32)
        else:
            weights = (weights.double() / total.double()).float()
    return times(weights, torch.tensor(p["scale"], dtype=FP32), at["weights"])


def check(logits: Tensor, bias: Tensor | None, p: dict[str, Any], at: dict[str, Any]) -> Tensor:
    """Compare ids and weights with the loops; returns the ids."""
    ids, weights = router(logits, w={} if bias is None else {"bias": bias}, p=p, at=at)
    assert ids.shape == weights.shape == (*logits.shape[:2], p["top_k"])
    flat = logits.flatten(0, 1).float()
    scores = (flat.softmax(-1) if p["score"] == "softmax" else flat.sigmoid()).to(at["scores"])
    expected = [chosen(row, None if bias is None else bias.tolist(), p) for row in scores.tolist()]
    if at["slots"] == "unsorted":
        assert [sorted(row) for row in ids.flatten(0, 1).tolist()] == [sorted(row) for row in expected]
    else:
        assert ids.flatten(0, 1).tolist() == expected
    assert_bits(weights.flatten(0, 1), weighted(scores, ids.flatten(0, 1), p, at))
    return ids


@pytest.mark.parametrize("renormalize", [None, "divide", "reciprocal"])
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("weights", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_weights(renormalize: str | None, score: str, weights: torch.dtype, scale: float) -> None:
    p = PARAMETERS | {"score": score, "renormalize": renormalize is not None, "scale": scale}
    for eps in (0.0, 1e-20, 0.125):
        at = SETTINGS | {"weights": weights, "renormalize": renormalize or "divide", "renormalize_eps": eps}
        check(random(3, 7, EXPERTS, dtype=FP32), None, p, at)


@pytest.mark.parametrize("scores", DTYPES)
@pytest.mark.parametrize("logits", DTYPES)
def test_the_lowest_expert_wins_a_tie(scores: torch.dtype, logits: torch.dtype) -> None:
    tied = (random(3, 7, EXPERTS, dtype=FP32) * 2).round().to(logits)
    ids = check(tied, None, PARAMETERS, SETTINGS | {"scores": scores, "tie_break": "lowest_index"})
    assert len({len(set(row)) for row in tied.flatten(0, 1).tolist()} & {EXPERTS}) == 0, "there must be ties"
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("slots", ["sorted", "unsorted"])
@pytest.mark.parametrize("scores", DTYPES)
def test_selection_by_torch(slots: str, scores: torch.dtype) -> None:
    """Scores far enough apart to differ in 16 bits too."""
    order = torch.stack([torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(i)) for i in range(21)])
    logits = (order.float() / 4).view(3, 7, EXPERTS)
    check(logits, None, PARAMETERS, SETTINGS | {"scores": scores, "slots": slots})


@pytest.mark.parametrize("slots", ["sorted", "unsorted"])
@pytest.mark.parametrize(("groups", "top_groups"), [(1, 1), (4, 2), (3, 2), (2, 1)])
def test_bias_and_groups_select_but_do_not_weigh(slots: str, groups: int, top_groups: int) -> None:
    p = PARAMETERS | {"score": "sigmoid", "groups": groups, "top_groups": top_groups, "scale": 2.5}
    bias = random(EXPERTS, dtype=FP32, seed=3) * 0.3
    at = SETTINGS | {"slots": slots, "weights": FP32}
    with_bias = check(random(3, 7, EXPERTS, dtype=BF16), bias, p, at)
    without = check(random(3, 7, EXPERTS, dtype=BF16), None, p, at)
    assert not torch.equal(with_bias.sort(-1)[0], without.sort(-1)[0])


def summed(leaves: list[Tensor], order: str, dtype: torch.dtype) -> Tensor:
    """Added to a zero accumulator along the order; the two halves of a fold, padded to 8 leaves with zeros, are added
    to it one after the other.
    """
    zero, pad = torch.zeros_like(leaves[0], dtype=dtype), torch.zeros_like(leaves[0])
    if order in ("sequential", "reverse"):
        for leaf in leaves if order == "sequential" else leaves[::-1]:
            zero = plus(zero, leaf, dtype)
        return zero
    a, b, c, d, e = leaves
    if order == "fold_hi":
        c, b, d = plus(c, pad, dtype), plus(b, pad, dtype), plus(d, pad, dtype)
        halves = plus(plus(a, e, dtype), c, dtype), plus(b, d, dtype)
    else:
        halves = plus(plus(a, b, dtype), plus(c, d, dtype), dtype), plus(e, pad, dtype)
    return plus(plus(zero, halves[0], dtype), halves[1], dtype)


@pytest.mark.parametrize(("weights", "product", "accumulate", "output"), list(itertools.product(DTYPES, repeat=4)))
@pytest.mark.parametrize("by", ["slot", "expert"])
def test_combine(
    weights: torch.dtype, product: torch.dtype, accumulate: torch.dtype, output: torch.dtype, by: str
) -> None:
    rows = random(3, 7, TOP_K, 37, dtype=BF16)
    ids = torch.stack([torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(i)) for i in range(21)])
    ids, routing = ids[:, :TOP_K].view(3, 7, TOP_K), random(3, 7, TOP_K, dtype=weights, seed=1)
    leaf = times(rows, routing.unsqueeze(-1), product)
    slots = ids.argsort(-1) if by == "expert" else torch.arange(TOP_K).expand(3, 7, -1)
    tokens = itertools.product(range(3), range(7))
    ordered = torch.stack([leaf[b, t, slots[b, t]] for b, t in tokens]).view_as(leaf)
    at = {
        "weighted": product,
        "accumulate": accumulate,
        "leaves": by,
        "output": output,
        "expert": 1,
        "scaling": "weights",
    }
    leaves = [ordered[..., i, :] for i in range(TOP_K)]
    expected = {order: summed(leaves, order, accumulate).to(output) for order in ORDERS}
    # torch's own sum accumulates in fp32; there is none that rounds every addition to 16 bits.
    torch_sum = (ordered if product == output else ordered.float()).flatten(0, 1).sum(1).to(output).view(3, 7, 37)
    expected["native"] = torch_sum if accumulate == FP32 else expected["sequential"]
    for order, total in expected.items():
        ours = combine(rows, ids if by == "expert" else None, routing, w={}, p={}, at=at | {"order": order})
        assert_bits(ours, total)


def test_combine_in_an_order_written_out() -> None:
    rows, routing = random(3, 7, TOP_K, 37, dtype=FP32), random(3, 7, TOP_K, dtype=FP32, seed=1)
    at = {"weighted": FP32, "accumulate": FP32, "leaves": "slot", "output": FP32, "expert": 1, "scaling": "weights"}
    leaf = times(rows, routing.unsqueeze(-1), FP32)
    zero = torch.zeros(3, 7, 37)
    around, contracted = zero, zero
    for i in (2, 1, 0, 4, 3):
        around = plus(around, leaf[..., i, :], FP32)
    for i in range(TOP_K):
        # The product is exact in fp64; the sum is rounded twice, which these numbers do not show.
        exact = rows[..., i, :].double() * routing[..., i, None].double() + contracted.double()
        contracted = exact.float()
    by_order = {
        order: combine(rows, None, routing, w={}, p={}, at=at | {"order": order})
        for order in ("rotate(2, -1)", "sequential(fma)", "sequential")
    }
    assert_bits(by_order["rotate(2, -1)"], around)
    assert_bits(by_order["sequential(fma)"], contracted)
    assert not torch.equal(by_order["sequential(fma)"], by_order["sequential"])
