"""FlashInfer's Python references that are run here, and our attributes for them."""

from __future__ import annotations

from typing import Any

import torch

from moeparity.ops.kernels import rope
from tests.engines import inputs, ours
from tests.engines.function import At, Case, Engine, Function, Outputs
from tests.ops.plain import BF16, FP32

TRACE = "flashinfer/trace/templates"
DEEPSEEK = {"top_k": 6, "score": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": 2.5}
REFERENCE = "a reference of its kernel, not the kernel"
CAST = {"rms_norm:normalized": BF16}
ASSOCIATION = {"rms_norm:association": "weight_rstd_first"}
ORDER = {"rms_norm:order": "sequential"}


def norm(form: str, offset: float, residual: bool, *others: dict[str, Any]) -> Function:
    return Function(
        "rms_norm",
        f"_{form}_reference",
        f"{TRACE}/norm.py",
        # eps is theirs.
        {label: {**case, "eps": 1e-6} for label, case in inputs.norms(residual, form=form).items()},
        normalised,
        lambda case: ours.norm_at(case, offset=offset),
        (CAST, ASSOCIATION, ORDER, *others),
        assumed=REFERENCE,
    )


def normalised(case: Case, at: At) -> Outputs:
    """The norm alone."""
    return {"output": ours.norm(case, at)["output"]}


def rotary(
    name: str, of: str, names: tuple[str, ...], interleaved: bool, *, dim: int = 64, table: bool = False
) -> Function:
    """cos, sin and products in fp32; a cache may be in the model's dtype, and then there is one rounding at the end."""
    cases = inputs.ropes(names, interleaved, dim)
    at = (lambda case: ours.rotary_at(case, products=FP32)) if table else in_fp32
    return Function(
        "rotary",
        f"{name}{', interleaved' if interleaved else ''}{', half' if dim < 64 else ''}",
        f"{TRACE}/rope.py",
        {label: {**case, "rope_of": of, "cache": cache(case) if table else case["x"]} for label, case in cases.items()},
        lambda case, at: {key: x for key, x in ours.rotary(case, at).items() if key != "cache"},
        at,
        ({"rope:products": BF16}, {"rotary:output": FP32 if table else BF16}),
        p=ours.rotary_p,
        assumed=REFERENCE,
    )


def in_fp32(case: Case) -> At:
    return ours.rotary_at(case, table=FP32, products=FP32, output=FP32)


def cache(case: Case) -> torch.Tensor:
    """cos and sin side by side, as vLLM keeps them."""
    p = {"dim": case["dim"], "rope": case["rope"], "max_positions": case["length"]}
    tables = rope.rotary(torch.arange(len(case["x"])).unsqueeze(0), w={}, p=p, at={"output": case["x"].dtype})
    return torch.cat([table[0, :, : case["dim"] // 2] for table in tables], -1)


FUNCTIONS = (
    norm("rmsnorm", 0.0, False),
    norm("fused_add_rmsnorm", 0.0, True, {"rms_norm:read": BF16}),
    norm("gemma_rmsnorm", 1.0, False),
    norm("gemma_fused_add_rmsnorm", 1.0, True, {"rms_norm:read": BF16}),
    Function(
        "fused_norm",
        "_allreduce_fusion_reference, residual and norm",
        f"{TRACE}/comm.py",
        inputs.norms(residual=True),
        ours.norm,
        ours.norm_at,
        (CAST, ASSOCIATION, ORDER, {"rms_norm:read": BF16}),
        assumed=f"{REFERENCE}; one rank",
    ),
    Function(
        "swiglu",
        "_silu_and_mul_reference",
        f"{TRACE}/activation.py",
        inputs.gated(),
        ours.swiglu,
        ours.swiglu_at,
        ({"swiglu:activation": FP32},),
        assumed=REFERENCE,
    ),
    *(
        rotary(name, of, names, interleaved)
        for name, of, names in (
            ("_apply_rope_pos_ids_reference", "pos_ids", ("default", "theta 1e6")),
            ("_apply_llama31_rope_pos_ids_reference", "llama31", ("llama3",)),
        )
        for interleaved in (False, True)
    ),
    *(
        rotary("_apply_rope_with_cos_sin_cache_reference", "cache", ("default",), interleaved, dim=dim, table=True)
        for interleaved in (False, True)
        for dim in (64, 32)
    ),
    Function(
        "router",
        "_fused_topk_deepseek_reference",
        f"{TRACE}/sampling.py",
        inputs.routes(DEEPSEEK, biased=True),
        ours.routed,
        lambda case: ours.router_at(case, slots="sorted"),
        ({"router:renormalize": "reciprocal"}, {"router:renormalize": "scale_first"}, {"router:group_score": "max"}),
        p=lambda case: case["p"],
        assumed=REFERENCE,
    ),
)

ENGINE = Engine("FlashInfer 0.7.2.post1", "flashinfer.live", ("flashinfer",), FUNCTIONS)
