"""Megatron-LM's router in the released package, and its fused functions as Inductor compiles them; our attributes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.engines import inputs, ours
from tests.engines.function import At, Case, Engine, Function, Outputs
from tests.engines.megatron.functions import (
    CORE,
    DEEPSEEK,
    MOE,
    RECIPROCAL,
    SIGMOID,
    SOFTMAX,
    UNGROUPED,
    scores,
    unfused,
)
from tests.ops.plain import BF16, FP32


def mapped(case: Case, at: At) -> Outputs:
    """Routing weights [T, E], and who was chosen."""
    outputs = ours.routed(case, at)
    weights = torch.zeros_like(case["x"]).scatter(1, outputs["ids"], outputs["weights"])
    return {"map": torch.zeros_like(case["x"]).bool().scatter(1, outputs["ids"], 1), "weights": weights}


def released(case: Case, **at: Any) -> At:
    """Every step rounded to the dtype of the logits, but for the bias."""
    dtype = case["x"].dtype
    rounded = dict.fromkeys(("scores", "total", "quotient", "weights"), dtype)
    return ours.router_at(case, **{"slots": "sorted", **rounded, **at})


RELEASED = tuple(
    Function(
        "router",
        f"topk_routing_with_score_function, {name}",
        f"{MOE}/moe_utils.py",
        inputs.routes(p, p["score"] == "sigmoid", (FP32, BF16), timing=at.get("timing", "before_topk"), grad=True),
        mapped,
        partial(released, **at),
        others,
        p=lambda case: case["p"],
    )
    for name, p, at, others in (
        ("softmax after top-k", SOFTMAX, {"timing": "after_topk"}, ({"router:timing": "before_topk"},)),
        ("softmax before top-k", {**SOFTMAX, "renormalize": False}, {}, ({"router:softmax": "reciprocal"},)),
        ("sigmoid and bias", UNGROUPED, SIGMOID, ({"router:scores": FP32}, {"router:total": FP32}, RECIPROCAL)),
        ("sigmoid, groups and bias", DEEPSEEK, SIGMOID, ({"router:scores": FP32}, {"router:group_score": "max"})),
    )
)

CORE_0_16 = Engine("megatron-core 0.16.1", "megatron.live", ("megatron-core", "triton"), RELEASED)
INDUCTOR = "Inductor's C++ for CPU: what it fuses, its Triton for GPUs shares"


def fused_at(case: Case) -> At:
    """silu, up and the routing weight, and one rounding."""
    return {
        "experts": {
            "activation": FP32,
            "product": FP32,
            "logistic": "native",
            "score_site": "activation",
            "scored": case["x"].dtype,
        }
    }


COMPILED = Engine(
    "Megatron-LM d98e8a64dd, Inductor",
    "megatron.live_compiled",
    ("megatron-lm", "triton"),
    (
        Function(
            "swiglu",
            "swiglu, compiled",
            f"{CORE}/fusions/fused_bias_swiglu.py",
            inputs.gated(),
            ours.swiglu,
            partial(ours.swiglu_at, activation=FP32),
            ({"swiglu:activation": BF16},),
            assumed=INDUCTOR,
        ),
        Function(
            "weighted_swiglu",
            "weighted_swiglu, compiled",
            f"{CORE}/fusions/fused_bias_swiglu.py",
            scores(inputs.gated()),
            unfused,
            fused_at,
            ({"experts:activation": BF16}, {"experts:product": BF16}),
            assumed=INDUCTOR,
        ),
    ),
)
