"""What functions of other projects are given: several shapes, in bf16 and fp32, of numbers that tell choices apart."""

from __future__ import annotations

from typing import Any

import torch

from tests.engines import titan
from tests.engines.function import Case
from tests.ops.plain import BF16, FP32, random

DTYPES = {"bf16": BF16, "fp32": FP32}
SHAPES = ((1, 64), (7, 96), (19, 1000), (3, 2048), (5, 4096))
"""Rows and columns: one row, a rest that fills no vector, widths of models."""
EPS = 1e-5


def norms(residual: bool, **case: Any) -> dict[str, Case]:
    """Rows of several sizes, one of them small enough for eps to count, one of zeros; a weight away from 1."""
    cases: dict[str, Case] = {}
    for label, dtype in DTYPES.items():
        for seed, (rows, columns) in enumerate(SHAPES):
            x = random(rows, columns, dtype=FP32, seed=seed) * torch.logspace(-3, 2, rows).unsqueeze(-1)
            x[-1, ::2] = -0.0
            cases[f"{label} {rows}x{columns}"] = {
                "x": x.to(dtype),
                "weight": random(columns, dtype=FP32, seed=seed + 30).to(dtype) * 3,
                "residual": random(rows, columns, dtype=dtype, seed=seed + 60) if residual else None,
                "eps": EPS,
                **case,
            }
    return cases


def gated(**case: Any) -> dict[str, Case]:
    """Gate and up side by side, of whole vectors: in the rest of one, torch's fp32 silu on CPU is another function."""
    return {
        f"{label} {rows}x{columns}": {"x": random(rows, 2 * columns, dtype=FP32, seed=rows).to(dtype) * 4, **case}
        for label, dtype in DTYPES.items()
        for rows, columns in ((1, 64), (7, 96), (19, 768), (5, 2048))
    }


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta 1e6": {"rope_type": "default", "rope_theta": 1000000.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, mscale": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 40.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
    },
}


def ropes(names: tuple[str, ...], interleaved: bool, dim: int = 64, head: int = 64) -> dict[str, Case]:
    """Heads of which `dim` columns are turned, 33 tokens and one."""
    return {
        f"{label} {name} {tokens}": {
            "x": random(tokens, 6, head, dtype=dtype, seed=1),
            "k": random(tokens, 2, head, dtype=dtype, seed=2),
            "rope": ROPES[name],
            "length": 64,
            "interleaved": interleaved,
            "dim": dim,
        }
        for label, dtype in DTYPES.items()
        for name in names
        for tokens in (33, 1)
    }


def routes(p: dict[str, Any], biased: bool, dtypes: tuple[torch.dtype, ...] = (FP32,), **case: Any) -> dict[str, Case]:
    """Logits of 16 and 64 experts, of a few whole numbers' ties with bf16; a correction bias that reorders them."""
    cases: dict[str, Case] = {}
    for dtype in dtypes:
        for tokens, experts in ((1, 16), (33, 16), (65, 64)):
            cases[f"{dtype} {tokens}x{experts}"] = {
                "x": random(tokens, experts, dtype=FP32, seed=tokens).to(dtype) * 2,
                "bias": random(experts, dtype=FP32, seed=experts) / 3 if biased else None,
                "p": p,
                **case,
            }
    return cases


def slots(**case: Any) -> dict[str, Case]:
    """Rows of 2, 5 and 8 slots with experts in no order, and weights in fp32."""
    cases: dict[str, Case] = {}
    for label, dtype in DTYPES.items():
        for tokens, k in ((1, 8), (19, 2), (19, 5), (19, 8)):
            cases[f"{label} {tokens} top-{k}"] = {
                "x": random(tokens, k, 1001, dtype=dtype, seed=k),
                "ids": random(tokens, 16, dtype=FP32, seed=k).argsort(-1)[:, :k].contiguous(),
                "weights": random(tokens, k, dtype=FP32, seed=9).sigmoid(),
                "experts": 16,
                **case,
            }
    return cases


def logits(
    temperatures: tuple[float, ...], dtypes: tuple[torch.dtype, ...] = (BF16, FP32), chosen: bool = False, **case: Any
) -> dict[str, Case]:
    """Rows of 7, 1000 and 4099 logits; with `chosen`, more rows and a token of each."""
    cases: dict[str, Case] = {}
    for dtype in dtypes:
        for temperature in temperatures:
            for tokens, vocabulary in ((1, 4099), (6, 1000), (3, 7), *(((70, 1000), (33, 4099)) if chosen else ())):
                x = random(tokens, vocabulary, dtype=FP32, seed=vocabulary).to(dtype) * 5
                ids = torch.arange(tokens) * 7 % vocabulary
                cases[f"{dtype} {temperature} {tokens}x{vocabulary}"] = {
                    "x": x,
                    "temperature": temperature,
                    **({"ids": ids} if chosen else {}),
                    **case,
                }
    return cases


def layers(**case: Any) -> dict[str, Case]:
    """Experts of one layer, some without a token, one of them hit once; weights in fp32."""
    cases: dict[str, Case] = {}
    for label, dtype in DTYPES.items():
        for tokens, k in ((1, 4), (19, 4), (19, 1)):
            ids = random(tokens, 12, dtype=FP32, seed=k).argsort(-1)[:, :k].contiguous()
            stacks = {"gate_up": (12, 2 * 96, 40), "down": (12, 40, 96)}
            weights = {n: _expert_weight(*shape, dtype=dtype, seed=i) for i, (n, shape) in enumerate(stacks.items())}
            cases[f"{label} {tokens} top-{k}"] = {
                "x": random(tokens, 40, dtype=dtype, seed=tokens),
                "ids": ids,
                "weights": random(tokens, k, dtype=FP32, seed=9).sigmoid(),
                **weights,
                **case,
            }
    return cases


def _expert_weight(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """In fp32 one term for each output: torch's fp32 GEMM may add up a row in another order beside others."""
    if dtype == FP32:
        return titan.one_term(*shape, seed=seed)
    return (random(*shape, dtype=FP32, seed=seed) / 6).to(dtype)


def heads(**case: Any) -> dict[str, Case]:
    return {
        f"{label} {tokens}x{hidden}": {
            "x": random(tokens, hidden, dtype=dtype, seed=hidden),
            "weight": random(300, hidden, dtype=dtype, seed=3) / 8,
            **case,
        }
        for label, dtype in DTYPES.items()
        for tokens, hidden in ((1, 64), (9, 256), (17, 96))
    }


def scaled(**case: Any) -> dict[str, Case]:
    """A routed sum and a shared expert's output, of whole vectors."""
    return {
        f"{label} {rows}": {
            "x": random(rows, 512, dtype=dtype, seed=1),
            "shared": random(rows, 512, dtype=dtype, seed=2),
            # Exact in bf16, to which torch's add on CPU rounds its alpha.
            "scale": 2.827 if dtype == FP32 else 2.5,
            **case,
        }
        for label, dtype in DTYPES.items()
        for rows in (1, 9)
    }
