"""TransformerEngine's torch paths that are run here, and our attributes for them."""

from __future__ import annotations

from typing import Any

from tests.engines import inputs, ours
from tests.engines.function import Engine, Function
from tests.engines.megatron import builds
from tests.engines.megatron import functions as megatron
from tests.ops.plain import BF16, FP32

TESTED = "torch code of its tests, to which its kernel is held"


def router(name: str, p: dict[str, Any], at: dict[str, Any], *others: dict[str, Any], biased: bool = False) -> Function:
    """Scores in fp32, weights in the dtype of the logits."""
    timing = at.get("timing", "before_topk")
    return Function(
        "router",
        f"topk_score_function_pytorch, {name}",
        "tests/pytorch/test_fused_router.py",
        inputs.routes(p, biased, (FP32, BF16), timing=timing),
        builds.mapped,
        lambda case: ours.router_at(case, **{"slots": "sorted", "weights": case["x"].dtype, **at}),
        others,
        p=lambda case: case["p"],
        assumed=TESTED,
    )


ROUTERS = (
    router("softmax after top-k", megatron.SOFTMAX, {"timing": "after_topk"}, {"router:timing": "before_topk"}),
    router("sigmoid and bias", megatron.UNGROUPED, megatron.SIGMOID, megatron.RECIPROCAL, {"router:scores": BF16},
           {"router:total": BF16}, biased=True),
    router("sigmoid, groups and bias", megatron.DEEPSEEK, megatron.SIGMOID, megatron.RECIPROCAL,
           {"router:group_score": "max"}, biased=True),
)  # fmt: skip
PAIRS = inputs.ropes(("default", "theta 1e6"), interleaved=True)
HALVES = {
    **inputs.ropes(("default", "theta 1e6"), interleaved=False),
    **{f"half, {label}": case for label, case in inputs.ropes(("default",), interleaved=False, dim=32).items()},
}

FUNCTIONS = (
    *ROUTERS,
    *(
        Function(
            "rotary",
            f"apply_rotary_pos_emb, fused=False{of}",
            "transformer_engine/pytorch/attention/rope.py",
            cases,
            megatron.rotary,
            ours.rotary_at,
            ({"rope:products": FP32}, {"rotary:output": FP32}),
            p=ours.rotary_p,
        )
        for of, cases in (("", HALVES), (", interleaved", PAIRS))
    ),
)

ENGINE = Engine("TransformerEngine d0067d0da6", "transformer_engine.live", ("transformer-engine-source",), FUNCTIONS)
