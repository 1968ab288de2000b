"""vLLM's functions as Inductor compiles them on CPU, and our attributes: what its profile states of a server."""

from __future__ import annotations

from typing import Any

from moeparity.ops.kernels import rope
from tests.engines import inputs, ours
from tests.engines.flashinfer.functions import cache
from tests.engines.function import At, Case, Engine, Function, Outputs
from tests.ops.plain import BF16, FP32

INDUCTOR = "Inductor's C++ for CPU: what it fuses, its Triton for GPUs shares"


def in_bf16(cases: dict[str, Case]) -> dict[str, Case]:
    """Inductor adds squares in an order of its own, which 16 bits do not show, nor in which order factors meet."""
    return {label: case for label, case in cases.items() if case["x"].dtype == BF16}


def one_rounding(case: Case) -> At:
    """silu(gate) * up."""
    return ours.swiglu_at(case, activation=FP32)


def tables(case: Case) -> dict[str, Any]:
    """cos and sin as vLLM keeps them, in place of what makes them."""
    whole = {name: case[name] for name in ("x", "k", "interleaved")}
    cos, sin = cache(case).chunk(2, -1)
    return {**whole, "cos": cos.contiguous(), "sin": sin.contiguous()}


def rotary(case: Case, at: At) -> Outputs:
    x, k = (case[name].unsqueeze(0) for name in ("x", "k"))
    cos, sin = (case[name].repeat(1, 2).unsqueeze(0) for name in ("cos", "sin"))
    turned = rope.rope(x, k, cos, sin, w={}, p={"interleaved": case["interleaved"], "partial": False}, at=at["rope"])
    return {name: y.squeeze(0).transpose(0, 1) for name, y in zip(("q", "k"), turned, strict=True)}


def rotary_at(case: Case) -> At:
    return {"rope": {"products": FP32, "contraction": "none", "output": case["x"].dtype, "layout": "pairs"}}


FUNCTIONS = (
    *(
        Function(
            "rms_norm",
            f"{name}, compiled",
            "vllm/ir/ops/layernorm.py",
            in_bf16(inputs.norms(residual)),
            ours.norm,
            ours.norm_at,
            (
                {"rms_norm:normalized": BF16},
                *(({"rms_norm:read": BF16},) if residual else ()),
            ),
            blind=("order", "mean", "rsqrt", "association"),
            assumed=INDUCTOR,
        )
        for name, residual in (("rms_norm", False), ("fused_add_rms_norm", True))
    ),
    Function(
        "swiglu",
        "SiluAndMul.forward_native, compiled",
        "vllm/model_executor/layers/activation.py",
        inputs.gated(),
        ours.swiglu,
        one_rounding,
        ({"swiglu:activation": BF16},),
        assumed=INDUCTOR,
    ),
    Function(
        "rotary",
        "ApplyRotaryEmb.forward_static, compiled",
        "vllm/model_executor/layers/rotary_embedding/common.py",
        {label: tables(case) for label, case in inputs.ropes(("default",), interleaved=False).items()},
        rotary,
        rotary_at,
        ({"rope:products": BF16},),
        p=lambda case: {"interleaved": case["interleaved"], "partial": False},
        assumed=INDUCTOR,
    ),
    Function(
        "shared_add",
        "routed scale and shared expert's sum of MoERunner.forward, compiled",
        "vllm/model_executor/layers/fused_moe/runner/moe_runner.py",
        inputs.scaled(),
        ours.shared_add,
        lambda case: ours.shared_add_at(case, "shared_add"),
        ({"shared_add:scaling": "output"},),
        assumed=f"{INDUCTOR}; its lines, one rank",
    ),
)

COMPILED = Engine("vLLM 0.33.0, Inductor", "vllm.live_compiled", ("vllm",), FUNCTIONS)
