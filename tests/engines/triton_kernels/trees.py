"""Kernels as Triton's PTX for sm_90: the tree inside a tile, contraction, Triton's own exponential.

A sum over a tile is a tree over the elements of a thread, the lanes of a warp, the warps: how many elements a thread
has at a time goes by their size and by what the compiler knows of their alignment. Exponentials are Triton's: a
product with log2(e) and one `ex2.approx`, which is by an H200's table, as `sqrt.approx` and `div.full` are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from moeparity.numerics import cuda
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis
from moeparity.ops.kernels.norm import rms_norm
from moeparity.ops.norm.launches import Launch, sglang_mean
from tests.engines.cuda.compared import plan_values
from tests.engines.triton_kernels import attention, by_inductor, moe, rows
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

HALF_TILE = "fold_lo(8) | fold_hi(32) | fold_hi(4) | sequential"
"""Of 16-bit rows: eight neighbours a thread, 32 lanes, 4 warps, then the tiles of 1024."""
WIDE_TILE = "fold_lo(4) | halves(256) | fold_hi(32) | fold_hi(4) | sequential"
"""Of fp32 rows: a thread has four neighbours of each half of a tile."""
ROOT = {"rsqrt": "sqrt_rcp", "mean": "div_full"}
GATES = ((128, 8), (64, 8), (8, 2), (60, 4))
"""Experts and how many of them a token has, of SGLang's router."""


def norm_case(program: str, count: int, width: int) -> Case:
    """As in the interpreter, in the order that the profiles state."""
    case = rows.norm_case(program, count, width, BF16)
    at = rows.norm_at(BF16, order="vllm.batch_invariant", **ROOT)
    return replace(
        case,
        ours=lambda: _normed(case, at),
        other_outputs=lambda: _normed(case, {**at, "order": "sequential"}),
        says="`order: vllm.batch_invariant`",
        recorded=(Seen(op="rms_norm", at=at, blind=tuple(ROOT)),),
        blind="root and quotient",
    )


def root_case(program: str, count: int, width: int) -> Case:
    """Rows of fp32 whose squares have exact sums: root and quotient show."""
    case = rows.norm_case(program, count, width, FP32)
    exact = by_inductor.exact_rows(count, width, seed=width).float()
    case = replace(case, arguments={**case.arguments, "x": exact})
    at = rows.norm_at(FP32, order="sequential", **ROOT)
    return replace(
        case,
        ours=lambda: _normed(case, at),
        other_outputs=lambda: _normed(case, {**at, "rsqrt": "sqrt_div"}),
        says="`rsqrt: sqrt_rcp`, `mean: div_full`",
        recorded=(Seen(op="rms_norm", at=at, operands=FP32, blind=("order",)),),
        blind="the order of the squares",
    )


def _normed(case: Case, at: Mapping[str, Any]) -> Outputs:
    x, weight = case.arguments["x"], case.arguments["weight"]
    return {"output": rms_norm(x, w={"weight": weight}, p={"eps": rows.EPS, "heads": None}, at=at)}


def mean_case(program: str, count: int, width: int) -> Case:
    """Of squares in fp32."""
    case = rows.mean_case(program, count, width)
    x = case.arguments["x"]
    order = sglang_mean(Launch(hidden=width, rows=count, dtype="fp32"))

    def mean(text: str) -> Outputs:
        total = sum_axis(x, parse(text), -1, accumulate=FP32).unsqueeze(-1)
        return {"output": cuda.div_full(total, torch.full_like(total, width))}

    return replace(
        case,
        ours=lambda: mean(order),
        other_outputs=lambda: mean(rows.TILES),
        says="`order: sglang.batch_invariant_mean`",
        recorded=(
            Seen(
                op="rms_norm",
                at={"statistic": "mean_square", "order": "sglang.batch_invariant_mean", "mean": "div_full"},
                operands=FP32,
                blind=("mean",) if width & (width - 1) == 0 else (),
            ),
        ),
        blind="",
    )


def _sums(logits: Tensor, order: str) -> Tensor:
    x = logits.float()
    return sum_axis(cuda.triton_exp(x - x.amax(-1, keepdim=True)), parse(order), -1, accumulate=FP32)


def log_case(program: str, name: str, kind: str, count: int, vocabulary: int, dtype: torch.dtype) -> Case:
    """The kernel's own logarithm of our sums, so that what is compared are the sums."""
    stored = kind == "log_softmax" and dtype == BF16
    order, second_order = (
        (HALF_TILE, WIDE_TILE) if dtype == BF16 else (WIDE_TILE, "fold_lo(4) | fold_hi(256) | sequential")
    )
    logits = (3 * random(count, vocabulary, dtype=FP32, seed=vocabulary)).to(dtype)
    ids = logits.float().argmax(-1, keepdim=True)
    sums = torch.cat([_sums(logits, order), _sums(logits, second_order)])

    def shifted(outputs: Outputs, which: int) -> Outputs:
        x = logits.float()
        logs = outputs["logs"][which * count : (which + 1) * count].unsqueeze(-1)
        below = x - x.amax(-1, keepdim=True)
        # Rows rounded to bf16 tell nothing of the sum's order, but of where they are rounded.
        output = ((below.to(BF16).float() if stored and which else below) - logs).to(BF16 if stored else FP32)
        return {"output": output.gather(-1, ids) if kind == "logprobs" else output}

    at = {"order": order, "form": "shifted", "block": 0}
    return Case(
        program=program,
        kernel=name,
        kind=kind,
        shapes=f"{count} x {vocabulary} {'bf16' if dtype == BF16 else 'fp32'}",
        arguments={"logits": logits, "sums": sums, **({"ids": ids} if kind == "logprobs" else {})},
        ours=lambda outputs: shifted(outputs, 0),
        other_outputs=lambda outputs: shifted(outputs, 1),
        says="x - max - log sum in fp32, one rounding to bf16" if stored else f"`order: {order}`",
        recorded=(Seen(op="log_probs", at=at, operands=dtype, blind=("order",) if stored else ()),),
        blind="the logarithm, which is the kernel's own on both sides",
        by_logs=True,
    )


def sum_cases() -> Iterator[Case]:
    """Sums over slots: whether a product goes into its addition unrounded."""
    for k, hidden in ((8, 1104), (2, 256)):
        case = moe.weighted_sum_case(6, k, hidden, FP32)
        yield _contracted(case, case.arguments["rows"], case.arguments["weights"])
    for program in ("live_vllm", "live_sglang"):
        case = moe.gather_case(program, 9, 8, 1024, absent=False, dtype=FP32)
        yield _contracted(case, case.arguments["rows"][case.arguments["places"].long()], case.arguments["weights"])
    for case in (moe.sum_reduce_case(5, 8, 2112, 1.0), moe.sum_reduce_case(5, 6, 704, 2.5), moe.ranks_case(8, 1504)):
        yield replace(case, blind="")


def _contracted(case: Case, values: Tensor, weights: Tensor) -> Case:
    def summed(order: str) -> Outputs:
        return {"output": moe.combined(values, weights, order=order, output=FP32)}

    at = moe.combine_at(score_site="combine", order="sequential(fma, zero)", output=FP32)
    return replace(
        case,
        ours=lambda: summed("sequential(fma, zero)"),
        other_outputs=lambda: summed("sequential(zero)"),
        says="one fma for each slot, ascending, from +0; one rounding",
        recorded=(Seen(op="combine", at=at, operands=FP32, blind=("expert",)),),
        blind="",
    )


def merge_case(program: str, tokens: int, heads: int) -> Case:
    """With Triton's exponential and quotient, and the first product contracted into the sum."""
    case = attention.merge_case(program, tokens, heads, FP32)
    a, b, lse_a, lse_b = (case.arguments[name] for name in ("a", "b", "lse_a", "lse_b"))
    highest = torch.maximum(lse_a, lse_b)
    powers = [cuda.triton_exp(lse - highest) for lse in (lse_a, lse_b)]
    share_a, share_b = (cuda.div_full(power, powers[0] + powers[1]).t().unsqueeze(-1) for power in powers)
    return replace(
        case,
        ours=lambda: {"output": fma(a, share_a, b * share_b)},
        other_outputs=lambda: {"output": a * share_a + b * share_b},
        says=f"{case.says}; the first product goes into the sum unrounded",
        blind="",
    )


def gate_case(count: int, k: int, denominator: str, renormalized: str) -> Case:
    """SGLang's router of bf16 logits: a row is one warp's; a lane has eight experts, or one if 16 divides no row."""
    case = moe.gate_case(60, count, k, BF16, score="softmax")

    orders = {"denominator": denominator, "renormalize_order": renormalized, "math": "triton"}
    (node,) = case.recorded
    blind = tuple(name for name in node.blind if name not in orders)
    return replace(
        case,
        ours=lambda: case.ours(**orders),
        other_outputs=lambda: case.ours(**{**orders, "denominator": "fold_lo"}),
        says=f"`denominator: {denominator}`, `renormalize_order: {renormalized}`, `math: triton`",
        recorded=(replace(node, at={**node.at, **orders}, blind=blind),),
        blind="",
    )


def cases() -> Iterator[Case]:
    """Kernels without a tensor core."""
    for program in ("live_vllm", "live_sglang"):
        yield norm_case(program, 60, 2880)
        yield norm_case(program, 60, 1001)
        yield root_case(program, 60, 2112)
        yield mean_case(program, 20, 2880)
        yield mean_case(program, 20, 2112)
        yield merge_case(program, 5, 3)
    yield log_case("live_vllm", "_topk_log_softmax_kernel", "logprobs", 40, 5008, BF16)
    yield log_case("live_vllm", "_topk_log_softmax_kernel", "logprobs", 40, 5008, FP32)
    yield log_case("live_vllm", "_softmax_kernel (LOG)", "log_softmax", 3, 5008, FP32)
    yield log_case("live_sglang", "_log_softmax_kernel", "log_softmax", 3, 5008, FP32)
    yield log_case("live_sglang", "_log_softmax_kernel", "log_softmax", 20, 2064, BF16)
    yield from sum_cases()
    for experts, top_k in GATES:
        at = plan_values("sglang", "qwen3_moe", "router", sizes=(("experts", experts), ("top_k", top_k)))
        yield gate_case(experts, top_k, at["denominator"], at["renormalize_order"])
