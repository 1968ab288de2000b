"""Kernels that go row by row: norms, means, log-softmax, log-probabilities, softmax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis
from moeparity.ops.kernels import exponentials
from moeparity.ops.kernels import log_probs as kernel
from moeparity.ops.kernels.norm import rms_norm
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

TILES = "blocks(1024) | sequential(zero)"
"""A tile's numbers from left to right, as the interpreter is made to add them, then the tiles onto +0."""
TREE = "the tree within a tile of 1024"
EPS = 1e-6


def norm_at(dtype: torch.dtype, **at: Any) -> dict[str, Any]:
    """RMSNorm as the Triton kernels of both engines have it."""
    fixed = {"statistic": "mean_square", "mean": "divide", "rsqrt": "sqrt_div", "eps": "config", "offset": 0.0}
    sites = {"square": FP32, "scaled": FP32, "weight": FP32, "normalized": FP32, "output": dtype}
    return {**sites, **fixed, "order": TILES, "association": "x_rstd_first", **at}


def norm_case(program: str, rows: int, width: int, dtype: torch.dtype) -> Case:
    x = random(rows, width, dtype=dtype, seed=width) * 3
    weight = random(width, dtype=dtype, seed=1)

    def normed(**at: Any) -> Outputs:
        return {"output": rms_norm(x, w={"weight": weight}, p={"eps": EPS, "heads": None}, at=norm_at(dtype, **at))}

    return Case(
        program=program,
        kernel="_rms_norm_kernel",
        kind="rms_norm",
        shapes=f"{rows} x {width} {'bf16' if dtype == BF16 else 'fp32'}",
        arguments={"x": x, "weight": weight, "eps": EPS},
        ours=normed,
        other_outputs=(lambda: normed(normalized=BF16)) if dtype == BF16 else (lambda: normed(order="sequential")),
        says="tiles of 1024 left to right, mean by division, 1 / sqrt, one rounding behind the weight",
        recorded=(Seen(op="rms_norm", at=norm_at(dtype), blind=("order", "mean", "rsqrt"), operands=dtype),),
        blind=TREE,
    )


def mean_case(program: str, rows: int, width: int) -> Case:
    x = random(rows, width, dtype=FP32, seed=width).square()

    def mean(order: str = TILES) -> Outputs:
        total = sum_axis(x, parse(order), -1, accumulate=FP32).unsqueeze(-1)
        return {"output": total / torch.full_like(total, width)}

    return Case(
        program=program,
        kernel="mean_kernel",
        kind="mean",
        shapes=f"{rows} x {width} fp32",
        arguments={"x": x},
        ours=mean,
        other_outputs=lambda: mean("reverse"),
        says="tiles of 1024 left to right, then one division",
        recorded=(Seen(op="rms_norm", at={"mean": "divide"}, operands=FP32),),
        blind=TREE,
    )


def log_at(**at: Any) -> dict[str, Any]:
    """`shifted` log-softmax in fp32, the maximum first, at temperature 1."""
    plain = {"form": "shifted", "block": 0, "temperature": 1.0, "inputs": FP32, "scaled": FP32, "output": FP32}
    return {**plain, "soft_cap": 0.0, "division": "divide", "order": TILES, "parallel": "gathered", **at}


def logits_of(rows: int, vocabulary: int, dtype: torch.dtype = FP32) -> Tensor:
    """With one row whose logits are all alike but one far below, and one with a logit of -inf."""
    logits = 4 * random(rows, vocabulary, dtype=FP32, seed=vocabulary)
    logits[0], logits[0, -1], logits[-1, 1] = 1.5, -90.0, -torch.inf
    return logits.to(dtype)


def log_softmax(x: Tensor, **at: Any) -> Tensor:
    return kernel.log_probs(x, w={}, p={}, at=log_at(**at))


def log_softmax_case(program: str, name: str, rows: int, vocabulary: int) -> Case:
    logits = logits_of(rows, vocabulary)
    return Case(
        program=program,
        kernel=name,
        kind="log_softmax",
        shapes=f"{rows} x {vocabulary} fp32",
        arguments={"logits": logits},
        ours=lambda: {"output": log_softmax(logits)},
        other_outputs=lambda: {"output": log_softmax(logits, form="minus_logsumexp")},
        says="(x - max) - log sum, the maximum of all first; tiles of 1024 left to right",
        recorded=(Seen(op="log_probs", at=log_at(), blind=("order", "parallel"), operands=FP32),),
        blind=f"{TREE}; exp and log, torch's on both sides",
    )


def logprobs_case(rows: int, vocabulary: int, dtype: torch.dtype) -> Case:
    logits = logits_of(rows, vocabulary, dtype)
    ids = torch.randint(0, vocabulary, (rows, 5), generator=torch.Generator().manual_seed(rows))

    def chosen(**at: Any) -> Outputs:
        return {"output": log_softmax(logits, **at).gather(-1, ids)}

    return Case(
        program="live_vllm",
        kernel="_topk_log_softmax_kernel",
        kind="logprobs",
        shapes=f"{rows} x {vocabulary} {'bf16' if dtype == BF16 else 'fp32'}",
        arguments={"logits": logits, "ids": ids},
        ours=chosen,
        other_outputs=lambda: chosen(form="minus_logsumexp"),
        says="logits to fp32, (x - max) - log sum, tiles of 1024 left to right",
        recorded=(Seen(op="log_probs", at=log_at(), blind=("order", "parallel"), operands=dtype),),
        blind=f"{TREE}; exp and log, torch's on both sides",
    )


def temperature_case(rows: int, vocabulary: int) -> Case:
    logits, temperatures = logits_of(rows, vocabulary), torch.tensor([0.7, 1.0, 0.0, 1.3])[:rows]

    def divided(reciprocal: bool = False) -> Outputs:
        scaled = [
            x if t in {0.0, 1.0} else x * (1 / temperatures[i]) if reciprocal else x / temperatures[i]
            for i, (x, t) in enumerate(zip(logits, temperatures.tolist(), strict=True))
        ]
        return {"output": torch.stack(scaled)}

    at = {"division": "divide", "scaled": FP32, "form": "shifted", "temperature": 0.7}
    return Case(
        program="live_vllm",
        kernel="_temperature_kernel",
        kind="temperature",
        shapes=f"{rows} x {vocabulary} fp32",
        arguments={"logits": logits, "temperatures": temperatures},
        ours=divided,
        other_outputs=lambda: divided(reciprocal=True),
        says="logits divided by the temperature in fp32, stored; 0 and 1 left as they are",
        recorded=(Seen(op="log_probs", at=at, blind=("form", "temperature"), operands=FP32),),
        blind="a GPU's division, `div.full` for Triton's `/`",
    )


def softmax_case(rows: int, width: int) -> Case:
    x = logits_of(rows, width)
    at = {"softmax": "divide", "exp": "exact", "denominator": TILES}
    return Case(
        program="live_vllm",
        kernel="_softmax_kernel",
        kind="softmax",
        shapes=f"{rows} x {width} fp32",
        arguments={"x": x},
        ours=lambda: {"output": exponentials.softmax(x, FP32, at)},
        other_outputs=lambda: {"output": exponentials.softmax(x, FP32, {**at, "softmax": "reciprocal"})},
        says="exp(x - max) over its sum, tiles of 1024 left to right",
        blind=f"{TREE}; exp, rounded correctly on both sides",
    )


def one_tile_case(rows: int, width: int) -> Case:
    """x / rms, then the weight: a row is one tile."""
    x, weight = random(rows, width, dtype=BF16, seed=width) * 3, random(width, dtype=BF16, seed=1)

    def normed() -> Outputs:
        mean = sum_axis(x.float().square(), parse("sequential"), -1, accumulate=FP32).unsqueeze(-1) / width
        return {"output": (x.float() / (mean + EPS).sqrt() * weight.float()).to(BF16)}

    def by_reciprocal() -> Outputs:
        at = norm_at(BF16, order="sequential")
        return {"output": rms_norm(x, w={"weight": weight}, p={"eps": EPS, "heads": None}, at=at)}

    return Case(
        program="live_sglang",
        kernel="fused_rmsnorm_kernel",
        kind="one_tile_norm",
        shapes=f"{rows} x {width} bf16",
        arguments={"x": x, "weight": weight, "eps": EPS},
        ours=normed,
        other_outputs=by_reciprocal,
        says="x / sqrt(mean + eps), times the weight: a division, which no value of `rms_norm` is (Grok's norm)",
        blind="the tree of a row",
    )


def cases() -> Iterator[Case]:
    """Shapes on both sides of a tile, and with a tail."""
    for program in ("live_vllm", "live_sglang"):
        for rows, width in ((3, 2880), (2, 1024), (40, 130)):
            yield norm_case(program, rows, width, BF16)
            yield mean_case(program, rows, width)
        yield norm_case(program, 2, 2500, FP32)
    for rows, vocabulary in ((3, 5003), (2, 1024), (4, 700)):
        yield log_softmax_case("live_vllm", "_softmax_kernel (LOG)", rows, vocabulary)
        yield log_softmax_case("live_sglang", "_log_softmax_kernel", rows, vocabulary)
        yield softmax_case(rows, vocabulary)
        yield logprobs_case(rows, vocabulary, FP32)
        yield logprobs_case(rows, vocabulary, BF16)
    yield temperature_case(4, 9000)
    yield one_tile_case(40, 2880)
