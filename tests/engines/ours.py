"""Our kernels in the shape in which functions of other projects are compared with them: a case and attributes in,
named tensors out.

A case is a dict: `x` is the operand whose dtype is the case's, other keys are what the function takes beside it. Rows
are [T, C]; our kernels take [1, T, C].
"""

from __future__ import annotations

from typing import Any

import torch

from moeparity.numerics.joined_steps import call
from moeparity.ops.kernels import combine as combines
from moeparity.ops.kernels import elementwise, glu, rope, router
from moeparity.ops.kernels import experts as expert
from moeparity.ops.kernels import linear as linears
from moeparity.ops.kernels import log_probs as reported
from moeparity.ops.kernels.norm import rms_norm
from tests.engines import titan
from tests.engines.function import At, Case, Outputs
from tests.ops.plain import FP32

NORM: dict[str, Any] = {
    "square": FP32,
    "scaled": FP32,
    "weight": FP32,
    "normalized": FP32,
    "association": "x_rstd_first",
    "statistic": "mean_square",
    "order": "native",
    "mean": "native",
    "rsqrt": "native",
    "offset": 0.0,
    "eps": "config",
}
"""Of a norm in fp32 from end to end: torch's mean, its rsqrt, and one rounding behind the weight."""


def norm_at(case: Case, **at: Any) -> At:
    values = {**NORM, "output": case["x"].dtype, **at}
    if values["normalized"] != FP32:
        del values["association"]
    residual: At = {} if case.get("residual") is None else {"add": {"output": case["x"].dtype}}
    return {"rms_norm": values, **residual}


def cast_first(case: Case) -> At:
    """Rounded to the dtype of the weight, which is then multiplied in it."""
    return norm_at(case, normalized=case["weight"].dtype)


def norm(case: Case, at: At) -> Outputs:
    """Of the sum in fp32 where there is a residual, as the edge of a fused addition hands it over."""
    x, residual, p = case["x"], case["residual"], {"eps": case["eps"], "heads": None}
    choices = {k: v for k, v in at["rms_norm"].items() if k != "read"}
    if residual is None:
        return {"output": rms_norm(x, w={"weight": case["weight"]}, p=p, at=choices)}
    summed = elementwise.add(x, residual, w={}, p={}, at={"output": at["rms_norm"].get("read", FP32)})
    output = rms_norm(summed, w={"weight": case["weight"]}, p=p, at=choices)
    return {"output": output, "residual": elementwise.add(x, residual, w={}, p={}, at=at["add"])}


def swiglu_at(case: Case, **at: Any) -> At:
    dtype = case["x"].dtype
    return {"swiglu": {"activation": dtype, "output": dtype, "logistic": "native", "tensor": 1, "blocks": 0, **at}}


def swiglu(case: Case, at: At) -> Outputs:
    gate, up = case["x"].chunk(2, -1)
    return {"output": elementwise.swiglu(gate, up, w={}, p={}, at=at["swiglu"])}


def clamped_at(case: Case) -> At:
    sites = dict.fromkeys(("gain", "sigmoid", "shifted", "activation", "product"), case["x"].dtype)
    return {"experts": {**sites, "logistic": "native"}}


def clamped(case: Case, at: At) -> Outputs:
    """gpt-oss's, gate and up alternating."""
    x, p = case["x"], {"limit": case["limit"], "alpha": case["alpha"]}
    return {"output": glu.clamped(x[..., ::2], x[..., 1::2], p, at["experts"], call)}


def rotary_at(case: Case, table: torch.dtype | None = None, **at: Any) -> At:
    """cos and sin in `table`, by default the model's dtype, products and sum in the model's."""
    dtype = case["x"].dtype
    sites = {"products": dtype, "contraction": "none", "output": dtype, "layout": "pairs", **at}
    return {"rotary": {"output": table or dtype}, "rope": sites}


def rotary(case: Case, at: At) -> Outputs:
    """cache: cos and sin side by side [T, dim], in the dtype of x; q and k [T, heads, D]."""
    x, k, dim = case["x"], case["k"], case["dim"]
    of = {"dim": dim, "rope": case["rope"], "max_positions": case["length"]}
    cos, sin = rope.rotary(torch.arange(len(x)).unsqueeze(0), w={}, p=of, at=at["rotary"])
    p = {"interleaved": case["interleaved"], "partial": dim < x.shape[-1]}
    turned = rope.rope(x.unsqueeze(0), k.unsqueeze(0), cos, sin, w={}, p=p, at=at["rope"])
    q, k = (y.squeeze(0).transpose(0, 1) for y in turned)
    cache = torch.cat((cos[0, :, : dim // 2], sin[0, :, : dim // 2]), -1)
    return {"cache": cache.to(x.dtype), "q": q, "k": k}


def rotary_p(case: Case) -> dict[str, Any]:
    return {"interleaved": case["interleaved"], "partial": case["dim"] < case["x"].shape[-1]}


def router_at(case: Case, **at: Any) -> At:
    """torch's own functions, sums and ties, all in fp32."""
    return {"router": {**titan.ROUTING, "renormalize_eps": 0.0, **at}}


def routed(case: Case, at: At) -> Outputs:
    """ids and weights [T, K] of logits x [T, E]."""
    x, bias, p = case["x"], case["bias"], {"experts": case["x"].shape[-1], "shared": False, **case["p"]}
    w = {} if bias is None else {"bias": bias}
    ids, weights = router.router(x.unsqueeze(0), w=w, p=p, at=at["router"])
    return {"ids": ids.squeeze(0), "weights": weights.squeeze(0)}


def combine_at(case: Case, **at: Any) -> At:
    dtype = case["x"].dtype
    return {"combine": titan.combine_at(dtype, "combine", order="sequential", **at)}


def combined(case: Case, at: At) -> Outputs:
    """The sum [T, H] of rows x [T, K, H]."""
    rows, ids, weights = (case[name].unsqueeze(0) for name in ("x", "ids", "weights"))
    p = {"experts": case["experts"], "top_k": rows.shape[-2], "scale": 1.0}
    return {"output": combines.combine(rows, ids, weights, w={}, p=p, at=at["combine"]).squeeze(0)}


LOG_PROBS: dict[str, Any] = {
    "form": "log_softmax",
    "temperature": 1.0,
    "inputs": FP32,
    "division": "divide",
    "scaled": FP32,
    "order": "native",
    "block": 0,
    "tensor": 1,
    "parallel": "vocabulary",
    "soft_cap": 0.0,
    "output": FP32,
}


def log_probs_at(case: Case, **at: Any) -> At:
    return {"log_probs": {**LOG_PROBS, "temperature": case["temperature"], **at}}


def log_probs(case: Case, at: At) -> Outputs:
    """Of logits x [T, V] all log-probabilities, or those of the tokens `ids` [T]."""
    log_probs_out = reported.log_probs(case["x"], w={}, p={}, at=at["log_probs"])
    return {
        "output": log_probs_out
        if "ids" not in case
        else log_probs_out.gather(-1, case["ids"].unsqueeze(-1)).squeeze(-1)
    }


def experts_at(case: Case, order: str, **at: Any) -> At:
    """A loop over the experts, everything in the model's dtype; weights meet the rows in the combine, in fp32."""
    loop = {"implementation": "loop", "score_site": "combine", "gate_up": "fused"}
    return {
        "experts": titan.experts_at(case["x"].dtype, **{**loop, **at}),
        "combine": titan.combine_at(case["x"].dtype, "combine", order=order),
    }


def experts(case: Case, at: At) -> Outputs:
    """Rows and their sum [T, H] of x [T, H]."""
    x, ids, scores = (case[name].unsqueeze(0) for name in ("x", "ids", "weights"))
    w = {"gate_up": case["gate_up"], "down": case["down"]}
    rows = expert.experts(x, ids, scores, w=w, p={}, at=at["experts"])
    p = {"experts": len(case["down"]), "top_k": ids.shape[-1], "scale": 1.0}
    return {"output": combines.combine(rows, ids, scores, w={}, p=p, at=at["combine"]).squeeze(0)}


GEMM: dict[str, Any] = {"tf32": "no", "order": "native", "rows": "all", "splits": 1, "tensor": 1, "blocks": 0}


def head_at(case: Case, inputs: torch.dtype, output: torch.dtype) -> At:
    return {"lm_head": {**GEMM, "inputs": inputs, "output": output}}


def head(case: Case, at: At) -> Outputs:
    """Logits [T, V] of x [T, H] and weight [V, H]."""
    logits = linears.lm_head(case["x"].unsqueeze(0), w={"weight": case["weight"]}, p={}, at=at["lm_head"])
    return {"output": logits.squeeze(0)}


def shared_add_at(case: Case, scaling: str) -> At:
    return {"shared_add": {"output": case["x"].dtype, "scaling": scaling, "shared": "add"}}


def shared_add(case: Case, at: At) -> Outputs:
    """The routed sum x [T, H], scaled where `scaling` says, and the shared expert."""
    x, scaling, scale = case["x"], at["shared_add"]["scaling"], case["scale"]
    routed = (x.float() * scale).to(x.dtype) if scaling == "output" else x
    operands = (routed.unsqueeze(0), case["shared"].unsqueeze(0))
    return {"output": elementwise.shared_add(*operands, w={}, p={"scale": scale}, at=at["shared_add"]).squeeze(0)}
