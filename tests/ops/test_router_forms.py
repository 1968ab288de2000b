"""Every form of the router against a loop over tokens and experts, one fp32 number at a time, bit for bit.

Taken as given are torch's exp, tanh, softmax and sigmoid. 13 experts, 5 of them per token; ties are planted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeparity.numerics import cpu
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis
from moeparity.ops.kernels.router import router
from tests.numerics import cuda_scalar
from tests.ops.plain import BF16, FP32, assert_bits, random
from tests.ops.scalar import F32, ROUND, in_turn

EXPERTS, TOP_K = 13, 5
NAMES = {"bf16": BF16, "fp16": torch.float16, "fp32": FP32}
PARAMETERS: dict[str, Any] = {
    "experts": EXPERTS,
    "top_k": TOP_K,
    "score": "softmax",
    "renormalize": True,
    "groups": 1,
    "top_groups": 1,
    "scale": 1.0,
    "shared": False,
}
AT: dict[str, Any] = {
    "timing": "before_topk",
    "normalizer": "sum",
    "softmax": "native",
    "math": "torch",
    "denominator": "native",
    "sigmoid": "native",
    "scores": "fp32",
    "rank_on": "scores",
    "correction": "fp32",
    "choice": "fp32",
    "chosen": "scores",
    "group_score": "top2_sum",
    "group_mask": "neg_inf",
    "tie_break": "lowest_index",
    "slots": "sorted",
    "renormalize": "divide",
    "renormalize_order": "sequential",
    "renormalize_eps": 0.0,
    "renormalize_eps_at": "end",
    "total": "fp32",
    "quotient": "fp32",
    "scaling": "weights",
    "weights": "fp32",
}
SITES = ("scores", "correction", "choice", "total", "quotient", "weights")


def lanes_of_4(terms: Sequence[F32]) -> F32:
    return in_turn([in_turn(terms[lane::4]) for lane in range(4)])


def butterfly(terms: Sequence[F32]) -> F32:
    """As a warp adds: neighbours first, idle lanes hold zeros."""
    lanes = [*terms, *[F32(0)] * (-len(terms) % 16)]
    while len(lanes) > 1:
        lanes = [a + b for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
    return lanes[0]


SUMS = {"sequential": in_turn, "lanes(4) | sequential": lanes_of_4, "fold_lo": butterfly}


def one_by_one(function: Callable[[float], float]) -> Callable[[Tensor], Tensor]:
    """On every number of a tensor."""
    return lambda x: torch.tensor([function(value) for value in x.flatten().tolist()]).view(x.shape)


MATH: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "torch": (torch.exp, torch.tanh),
    "cuda": (one_by_one(cuda_scalar.expf), one_by_one(cuda_scalar.tanhf)),
    "cuda_fast": (one_by_one(cuda_scalar.fast_expf), one_by_one(math.tanh)),
    "triton": (one_by_one(cuda_scalar.triton_exp), torch.tanh),
}
"""exp and tanh; tanh.approx is taken to be correctly rounded, as math.tanh is when it is stored in fp32."""


QUOTIENTS = {"triton": lambda a, b: F32(cuda_scalar.div_full(float(a), float(b)))}


def from_torch(logits: Tensor, p: dict[str, Any], at: dict[str, Any]) -> Tensor:
    """What is taken from torch, as fp32, of all logits [N, n] at once: its vectors and their rest may round in two
    ways.
    """
    exp, tanh = MATH[at["math"]]
    if p["score"] == "softmax" and at["softmax"] == "native" and logits.dtype == NAMES[at["scores"]]:
        return logits.softmax(-1).float()
    logits = logits.float()
    if p["score"] == "softmax":
        exponents = logits - logits.amax(-1, keepdim=True)
        return logits.softmax(-1) if at["softmax"] == "native" else exp(exponents)
    if at["sigmoid"] == "native":
        return logits.sigmoid()
    return exp(-logits) if at["sigmoid"] == "exp" else tanh(0.5 * logits)


def scored(row: Sequence[F32], p: dict[str, Any], at: dict[str, Any]) -> list[F32]:
    """The scores of one token, from what is taken for it."""
    divided = QUOTIENTS.get(at["math"], F32.__truediv__)
    if at["softmax" if p["score"] == "softmax" else "sigmoid"] == "native":
        row_scores = list(row)
    elif p["score"] == "softmax":
        total = SUMS[at["denominator"]](row)
        inverse = at["softmax"] == "reciprocal"
        row_scores = [x * divided(F32(1), total) if inverse else divided(x, total) for x in row]
    elif at["sigmoid"] == "exp":
        row_scores = [divided(F32(1), F32(1) + x) for x in row]
    else:
        row_scores = [F32(0.5) * x + F32(0.5) for x in row]
    return [ROUND[at["scores"]](x) for x in row_scores]


def best(values: Sequence[float] | Sequence[F32], k: int, tie_break: str) -> list[int]:
    sign = 1 if tie_break == "lowest_index" else -1
    return sorted(range(len(values)), key=lambda i: (-float(values[i]), sign * i))[:k]


def in_groups(choice: list[F32], p: dict[str, Any], at: dict[str, Any]) -> list[F32]:
    size = len(choice) // p["groups"]
    if p["groups"] == 1:
        return choice
    counted = {"top2_sum": 2, "max": 1, "topk_share_sum": p["top_k"] // p["top_groups"]}[at["group_score"]]
    totals = [in_turn(sorted(choice[g * size : (g + 1) * size], reverse=True)[:counted]) for g in range(p["groups"])]
    groups_kept = best(totals, p["top_groups"], at["tie_break"])
    mask = F32(0) if at["group_mask"] == "zero" else F32(-np.inf)
    return [c if i // size in groups_kept else mask for i, c in enumerate(choice)]


def numbers(x: Tensor) -> list[list[F32]]:
    return [[F32(value) for value in row] for row in x.numpy()]


def after_topk(logits: Tensor, p: dict[str, Any], at: dict[str, Any]) -> tuple[list[list[int]], list[list[F32]]]:
    ids = [best(row, p["top_k"], at["tie_break"]) for row in logits.float().tolist()]
    rows = numbers(from_torch(logits.gather(1, torch.tensor(ids)), p, at))
    return ids, [[ROUND[at["weights"]](w * F32(p["scale"])) for w in scored(row, p, at)] for row in rows]


def routed(
    logits: Sequence[F32], scores: list[F32], bias: Sequence[F32], p: dict[str, Any], at: dict[str, Any]
) -> tuple[list[int], list[F32]]:
    choice, rounded = scores, []
    if bias:
        rounded = [ROUND[at["correction"]](b) for b in bias]
        choice = [ROUND[at["choice"]](s + b) for s, b in zip(scores, rounded, strict=True)]
    ranked = list(logits) if at["rank_on"] == "logits" else in_groups(choice, p, at)
    ids = best(ranked, p["top_k"], at["tie_break"])
    scale = F32(p["scale"] if at["scaling"] == "weights" else 1.0)
    weights = [scores[i] for i in ids]
    if bias and at["chosen"] == "unbiased":
        weights = [ROUND[at["scores"]](choice[i] - rounded[i]) for i in ids]
    if p["renormalize"]:
        eps = F32(at["renormalize_eps"])
        add_up = SUMS[at["renormalize_order"]]
        total = in_turn([eps, *weights]) if at["renormalize_eps_at"] == "start" else add_up(weights) + eps
        total = ROUND[at["total"]](total)
        divided = QUOTIENTS.get(at["math"], F32.__truediv__)
        form = {
            "divide": lambda w: ROUND[at["quotient"]](divided(w, total)) * scale,
            "reciprocal": lambda w: ROUND[at["quotient"]](w * divided(F32(1), total)) * scale,
            "scale_first": lambda w: divided(w * scale, total),
            "scale_over_sum": lambda w: w * divided(scale, total),
        }[at["renormalize"]]
        weights = [form(w) for w in weights]
    else:
        weights = [w * scale for w in weights]
    return ids, [ROUND[at["weights"]](w) for w in weights]


def compared(p: dict[str, Any], at: dict[str, Any], *, bias: bool = False, logits: torch.dtype = FP32) -> Tensor:
    """Compare ids and weights with the loop's; returns the weights in fp32, with the ids below them."""
    p, at = PARAMETERS | p, AT | at
    experts = p["experts"]
    gate_logits = (random(3, 7, experts, dtype=FP32) * 2).to(logits)
    gate_logits[1], gate_logits[2] = (gate_logits[1] * 2).round() / 2, gate_logits[2] / 30000
    # A few levels, and differences that bf16 does not keep.
    correction = (random(experts, dtype=FP32, seed=3) * 1.5).round() / 4 - 0.75
    correction += random(experts, dtype=FP32, seed=4) / 10000
    torch_at = at | {site: NAMES[at[site]] for site in SITES}
    ids, weights = router(gate_logits, w={"bias": correction} if bias else {}, p=p, at=torch_at)
    flat = gate_logits.flatten(0, 1)
    if at["timing"] == "after_topk":
        expected_ids, expected = after_topk(flat, p, at)
    else:
        biases = [F32(b) for b in correction.numpy()] if bias else []
        scores = [scored(row, p, at) for row in numbers(from_torch(flat, p, at))]
        routes_there = [routed(row, s, biases, p, at) for row, s in zip(numbers(flat.float()), scores, strict=True)]
        expected_ids, expected = [ids for ids, _ in routes_there], [w for _, w in routes_there]
    assert ids.flatten(0, 1).tolist() == expected_ids
    assert_bits(weights.flatten(0, 1), torch.tensor(np.array(expected, np.float32)).to(NAMES[at["weights"]]))
    return torch.cat((weights.float(), ids.float()), dim=-1)


def changes(p: dict[str, Any], at: dict[str, Any], **options: Any) -> bool:
    """As the loop has it, which `both` asserts; whether it is something else than what the defaults give."""
    return not torch.equal(compared(p, at, **options), compared(p, {}, **options))


@pytest.mark.parametrize("order", SUMS)
@pytest.mark.parametrize("form", ["divide", "reciprocal"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_softmax(form: str, order: str, renormalize: bool) -> None:
    """A2.5 (vLLM) is `reciprocal`, A2.8 (SGLang) `divide`."""
    assert changes({"renormalize": renormalize}, {"softmax": form, "denominator": order})


@pytest.mark.parametrize("order", SUMS)
def test_renormalisation_order(order: str) -> None:
    weights = compared({}, {"renormalize_order": order})
    assert order == "sequential" or not torch.equal(weights, compared({}, {}))


@pytest.mark.parametrize("form", ["exp", "tanh"])
def test_sigmoid(form: str) -> None:
    """torch's own kernel on CPU is the form by exp, so that only the other one differs from it."""
    weights = compared({"score": "sigmoid"}, {"sigmoid": form}, bias=True)
    assert torch.equal(weights, compared({"score": "sigmoid"}, {}, bias=True)) == (form == "exp")


@pytest.mark.parametrize("whose", ["cuda", "cuda_fast", "triton"])
@pytest.mark.parametrize(
    ("p", "at"),
    [({}, {"softmax": "reciprocal", "denominator": "fold_lo"}),
     ({}, {"softmax": "divide", "denominator": "sequential"}),
     ({"score": "sigmoid"}, {"sigmoid": "exp"}), ({"score": "sigmoid"}, {"sigmoid": "tanh"})],
)  # fmt: skip
def test_a_gpus_exp_and_tanh(whose: str, p: dict[str, Any], at: dict[str, Any]) -> None:
    """tanh.approx, correctly rounded, is torch's own here."""
    same = torch.equal(compared(p, at | {"math": whose}), compared(p, at))
    assert not same or (whose, at.get("sigmoid")) in {("cuda_fast", "tanh"), ("triton", "tanh")}


def test_weights_from_which_the_bias_is_subtracted_again() -> None:
    p = {"score": "sigmoid"}
    assert not torch.equal(compared(p, {"chosen": "unbiased"}, bias=True), compared(p, {}, bias=True))
    assert torch.equal(compared(p, {"chosen": "unbiased"}), compared(p, {}))


@pytest.mark.parametrize("form", ["reciprocal", "scale_first", "scale_over_sum"])
@pytest.mark.parametrize("eps", [0.0, 1e-20, 1e-2])
@pytest.mark.parametrize("at", ["end", "start"])
def test_renormalisation(form: str, eps: float, at: str) -> None:
    choices = {"renormalize_eps": eps, "renormalize_eps_at": at}
    p = {"score": "sigmoid", "scale": 2.5}
    assert not torch.equal(compared(p, choices | {"renormalize": form}), compared(p, choices))


def test_eps_as_the_start_of_the_sum() -> None:
    at = {"renormalize_eps": 1e-2}
    assert not torch.equal(compared({}, at), compared({}, at | {"renormalize_eps_at": "start"}))


@pytest.mark.parametrize("timing", ["before_topk", "after_topk"])
@pytest.mark.parametrize("scores", ["bf16", "fp32"])
@pytest.mark.parametrize("weights", ["bf16", "fp32"])
def test_softmax_over_the_chosen_logits(timing: str, scores: str, weights: str) -> None:
    """A2.10 (Megatron-LM) and A2.4 (gpt-oss, whose scores are bf16): top-k on the logits first."""
    at = {"timing": timing, "scores": scores, "weights": weights}
    assert changes({}, at, logits=BF16) == (at != {"timing": "before_topk", "scores": "fp32", "weights": "fp32"})
    if timing == "after_topk":
        assert changes({}, {"timing": timing})
        assert changes({}, {"timing": timing, "softmax": "reciprocal", "denominator": "sequential", "scores": scores})


@pytest.mark.parametrize("scores", ["bf16", "fp32"])
def test_what_is_taken_from_logsumexp(scores: str) -> None:
    """exp(x - logsumexp(x)) of the chosen, step by step in the dtype of the scores, as vLLM's CPURouter has it."""
    logits = random(3, 7, EXPERTS, dtype=BF16)
    values, chosen = logits.to(NAMES[scores]).topk(TOP_K, dim=-1)
    powers = (values - logits.to(NAMES[scores]).logsumexp(-1, keepdim=True)).exp()
    p, at = PARAMETERS | {"renormalize": False}, AT | {site: NAMES[AT[site]] for site in SITES}
    at |= {"normalizer": "logsumexp", "rank_on": "logits", "tie_break": "torch_topk", "scores": NAMES[scores]}
    ids, weights = router(logits, w={}, p=p, at=at)
    assert torch.equal(ids, chosen)
    assert_bits(weights, powers.float())
    assert not torch.equal(weights, router(logits, w={}, p=p, at=at | {"normalizer": "sum"})[1])


def test_softmax_of_16_bits_is_torchs_own() -> None:
    """Which is another one than that of fp32, rounded. The row was served by vLLM 0.32.0 on an AMD EPYC (gpt_oss), the
    weights are those that it recorded; the last one lies next to a border: divided by the sum it is 0.09521484375.
    """
    p, at = PARAMETERS | {"experts": 4, "top_k": 4}, AT | {"timing": "after_topk", "scores": BF16, "weights": FP32}
    row = torch.tensor([[[2.46875, 1.984375, 1.8984375, 1.0]]], dtype=BF16)
    assert router(row, w={}, p=p, at=at)[1].flatten().tolist() == [0.4140625, 0.255859375, 0.234375, 0.095703125]
    logits = torch.randn(1, 1 << 20, 4, generator=torch.Generator().manual_seed(0)).to(BF16).sort(descending=True)[0]
    weights = router(logits, w={}, p=p, at=at)[1].to(BF16)
    assert torch.equal(weights, logits.softmax(-1))
    assert not torch.equal(weights, logits.float().softmax(-1).to(BF16))


def test_softmax_of_4_numbers_of_bf16_step_by_step() -> None:
    """The C library's exp, added one after the other, times the reciprocal of the sum."""
    if torch.backends.cpu.get_cpu_capability() != "AVX2":
        pytest.skip("torch's softmax of bf16 was looked at with AVX2 only")
    logits = torch.randn(1 << 20, 4, generator=torch.Generator().manual_seed(0)).to(BF16)
    powers = cpu.expf(logits.float() - logits.float().amax(-1, keepdim=True))
    total = sum_axis(powers, parse("sequential"), -1, accumulate=FP32).unsqueeze(-1)
    assert torch.equal((powers * (1 / total)).to(BF16), logits.softmax(-1))
    assert not torch.equal((powers / total).to(BF16), logits.softmax(-1))


def test_ranked_on_logits() -> None:
    """Scores that saturate in bf16 are equal where their logits are not."""
    scores = compared({}, {"scores": "bf16"})
    assert not torch.equal(compared({}, {"rank_on": "logits", "scores": "bf16"}), scores)


@pytest.mark.parametrize("tie_break", ["lowest_index", "highest_index"])
@pytest.mark.parametrize("logits", [BF16, FP32])
def test_ties(tie_break: str, logits: torch.dtype) -> None:
    weights = compared({}, {"tie_break": tie_break, "scores": "bf16"}, logits=logits)
    assert torch.equal(weights, compared({}, {"scores": "bf16"}, logits=logits)) == (tie_break == "lowest_index")


GROUPED = {"experts": 12, "score": "sigmoid", "groups": 4, "top_groups": 2, "top_k": 4, "scale": 2.5}


@pytest.mark.parametrize("mask", ["neg_inf", "zero"])
@pytest.mark.parametrize("score", ["top2_sum", "max", "topk_share_sum"])
def test_groups(score: str, mask: str) -> None:
    """Half of the biased scores are negative, so that a mask of 0 lets experts of other groups in."""
    p = GROUPED | ({"top_k": 6} if score == "topk_share_sum" else {})
    weights = compared(p, {"group_score": score, "group_mask": mask}, bias=True)
    default = score == "top2_sum" and mask == "neg_inf"
    assert torch.equal(weights, compared(p, {}, bias=True)) == default


@pytest.mark.parametrize(
    ("tie_break", "group_ids"), [("lowest_index", (0, 1, 2, 3)), ("highest_index", (15, 14, 13, 12))]
)
def test_ties_of_groups(tie_break: str, group_ids: tuple[int, ...]) -> None:
    """Of 8 groups that count the same torch.topk keeps the last ones here, vLLM and SGLang the first."""
    p = PARAMETERS | GROUPED | {"experts": 16, "groups": 8}
    at = AT | {site: NAMES[AT[site]] for site in SITES} | {"tie_break": tie_break}
    ids, _ = router(torch.zeros(1, 3, 16), w={}, p=p, at=at)
    assert ids[0].tolist() == [list(group_ids)] * 3


@pytest.mark.parametrize("site", SITES)
def test_sites(site: str) -> None:
    p = {"score": "sigmoid", "scale": 2.5}
    for dtype in ("bf16", "fp16", "fp32"):
        compared(p, {site: dtype, "renormalize_eps": 1e-2}, bias=True)
    narrow = compared(p, {site: "bf16"}, bias=True)
    assert not torch.equal(narrow, compared(p, {}, bias=True))


@pytest.mark.parametrize("form", ["divide", "reciprocal"])
@pytest.mark.parametrize("scale", [2.5, 2.827])
@pytest.mark.parametrize("quotient", ["bf16", "fp16"])
def test_the_quotient_is_rounded_before_it_is_scaled(form: str, scale: float, quotient: str) -> None:
    """In bf16 throughout it is what transformers' DeepSeek-V3 does under autocast: tests/hf/test_autocast.py."""
    p, at = {"score": "sigmoid", "scale": scale}, {"renormalize": form, "quotient": quotient}
    narrow = {"scores": "bf16", "total": "bf16", "weights": "bf16"}
    assert not torch.equal(compared(p, at | narrow, bias=True), compared(p, narrow | {"renormalize": form}, bias=True))


@pytest.mark.parametrize("scaling", ["accumulator", "output", "shared_add", "shared_fma"])
def test_weights_are_not_scaled_where_something_else_is(scaling: str) -> None:
    assert changes({"score": "sigmoid", "scale": 2.5}, {"scaling": scaling}, bias=True)


A2: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "A2.5 vLLM topk_softmax": (
        {"scale": 2.5},
        {"softmax": "reciprocal", "denominator": "fold_lo", "renormalize": "scale_over_sum"},
    ),
    "A2.6 vLLM topk_sigmoid": (
        {"score": "sigmoid", "scale": 2.5},
        {"sigmoid": "exp", "renormalize": "scale_over_sum"},
    ),
    "A2.7a vLLM grouped_topk, one group": (
        {"score": "sigmoid", "scale": 2.5},
        {"sigmoid": "tanh", "renormalize": "scale_over_sum", "renormalize_order": "fold_lo", "renormalize_eps": 1e-20},
    ),
    "A2.7b vLLM grouped_topk, DeepSeek-V3": (
        GROUPED,
        {"sigmoid": "tanh", "renormalize": "scale_first", "renormalize_eps": 1e-20},
    ),
    "A2.7c vLLM grouped_topk, generic": (
        GROUPED,
        {
            "sigmoid": "tanh",
            "scores": "bf16",
            "renormalize": "scale_over_sum",
            "renormalize_eps": 1e-20,
            "renormalize_eps_at": "start",
        },
    ),
    "A2.8 SGLang moe_fused_gate": (
        {},
        {"softmax": "divide", "denominator": "fold_lo", "rank_on": "logits", "renormalize_order": "fold_lo"},
    ),
    "A2.9 TensorRT-LLM routing": (GROUPED, {"sigmoid": "tanh", "weights": "bf16"}),
    "A2.10 Megatron-LM": ({}, {"timing": "after_topk", "weights": "bf16"}),
    "A2.10 Megatron-LM, sigmoid and groups": (
        GROUPED | {"top_k": 6},
        {"group_score": "topk_share_sum", "renormalize_eps": 1e-20, "weights": "bf16"},
    ),
}


@pytest.mark.parametrize("name", A2)
def test_an_engines_router(name: str) -> None:
    p, at = A2[name]
    assert changes(p, at, bias=p.get("score") == "sigmoid", logits=BF16)


def in_fp32_and_fp64(scale: float) -> tuple[list[Tensor], Tensor]:
    """Weights of `scale_first` with a sum in fp32, with one in fp64, and of the latter what doubles give, rounded."""
    p, at = PARAMETERS | {"score": "sigmoid", "scale": scale}, AT | {"renormalize": "scale_first"}
    logits = random(3, 7, EXPERTS, dtype=FP32)
    in_both = []
    for total in (FP32, torch.float64):
        torch_at = at | {site: NAMES[at[site]] for site in SITES} | {"total": total}
        ids, weights = router(logits, w={}, p=p, at=torch_at)
        in_both.append(weights)
    chosen = logits.sigmoid().gather(-1, ids)
    summed = sum_axis(chosen, parse("sequential"), -1, accumulate=FP32).double().unsqueeze(-1)
    return in_both, (chosen.double() * scale / summed).float()


def test_a_division_in_fp64_is_one_in_fp32() -> None:
    """vLLM's grouped_topk divides by a double: the quotient of two fp32 numbers rounds to the same fp32 number."""
    in_both, _ = in_fp32_and_fp64(scale=2.0)
    assert_bits(*in_both)


def test_a_scale_in_fp64_leaves_one_rounding() -> None:
    """TensorRT-LLM's noaux_tc multiplies by a double and divides by one: not even the product is rounded to fp32."""
    (narrow, wide), expected = in_fp32_and_fp64(scale=2.5)
    assert_bits(wide, expected)
    assert not torch.equal(narrow, wide)
