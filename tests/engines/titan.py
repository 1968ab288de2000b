"""What the tests of both torchtitan versions share: how its modules are stated in our attributes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.ops.kernels.combine import combine
from moeparity.ops.kernels.elementwise import shared_add, swiglu
from moeparity.ops.kernels.experts import experts
from moeparity.ops.kernels.router import router
from tests.ops.plain import BF16, FP32, random
from tests.verified import record

EXPERTS, TOP_K, HIDDEN, SCALE = 12, 5, 40, 2.5
WIDTH = 96
"""Rows of whole vectors: in the rest of one, torch's fp32 silu on CPU is another function."""
ROUTERS: dict[str, dict[str, Any]] = {
    "sigmoid, groups": {"score": "sigmoid", "renormalize": True, "groups": 4, "top_groups": 2, "scale": SCALE},
    "sigmoid": {"score": "sigmoid", "renormalize": True, "groups": 1, "top_groups": 1, "scale": SCALE},
    "softmax": {"score": "softmax", "renormalize": False, "groups": 1, "top_groups": 1, "scale": 1.0},
    "softmax, renormalized": {"score": "softmax", "renormalize": True, "groups": 1, "top_groups": 1, "scale": 1.0},
}
"""Parameters of `router`, by name of the case."""


def router_arguments(name: str) -> dict[str, Any]:
    """torchtitan's names for them, the same in both versions."""
    p = ROUTERS[name]
    groups = {"num_expert_groups": p["groups"], "num_limited_groups": p["top_groups"]} if p["groups"] > 1 else {}
    scale = {"route_norm": p["renormalize"], "route_scale": p["scale"]}
    return {"top_k": TOP_K, "score_func": p["score"], **scale, **groups}


def one_term(*shape: int, seed: int) -> Tensor:
    """One power of two in each row of the last axis, so that no GEMM's order is seen."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(0, shape[-1], (*shape[:-1], 1), generator=generator)
    sign = torch.randint(0, 2, at.shape, generator=generator) * 2 - 1
    return torch.zeros(shape).scatter(-1, at, sign * 2.0 ** torch.randint(-3, 2, at.shape, generator=generator))


def weights(names: dict[str, str], dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Weights of a layer under torchtitan's names: random in bf16; in fp32 with one term each, since torch's fp32 GEMM
    may add up a row in another order where other rows are beside it.
    """
    shapes = {"w1": (WIDTH, HIDDEN), "w2": (HIDDEN, WIDTH), "w3": (WIDTH, HIDDEN)}
    by_name = {}
    for i, (port, name) in enumerate(names.items()):
        port_shape = (EXPERTS, HIDDEN) if port == "gate" else shapes[port[-2:]]
        shape = (EXPERTS, *port_shape) if port.startswith("expert") else port_shape
        dense = dtype == BF16 or port == "gate"
        by_name[name] = (random(*shape, dtype=FP32, seed=seed + i) / 6 if dense else one_term(*shape, seed=i)).to(dtype)
    return by_name


ROUTING: dict[str, Any] = {
    "timing": "before_topk",
    "softmax": "native",
    "math": "torch",
    "denominator": "native",
    "sigmoid": "native",
    "scores": FP32,
    "rank_on": "scores",
    "correction": FP32,
    "choice": FP32,
    "chosen": "scores",
    "group_score": "top2_sum",
    "group_mask": "neg_inf",
    "tie_break": "torch_topk",
    "slots": "unsorted",
    "renormalize": "divide",
    "renormalize_order": "native",
    "renormalize_eps": 1e-20,
    "renormalize_eps_at": "end",
    "total": FP32,
    "quotient": FP32,
    "scaling": "weights",
    "weights": FP32,
}
"""torch's own softmax, top-k unsorted, sum + 1e-20, all in fp32; the bias for the choice only."""


def route(logits: Tensor, name: str, bias: Tensor) -> tuple[Tensor, Tensor]:
    p = {"experts": EXPERTS, "top_k": TOP_K, "shared": True, **ROUTERS[name]}
    return router(logits, w={"bias": bias}, p=p, at=ROUTING)


def experts_at(dtype: torch.dtype, **at: Any) -> dict[str, Any]:
    """Everything in one dtype."""
    sites = dict.fromkeys(("projections", "activation", "product", "output"), dtype)
    placed = {"tensor": 1, "blocks": 0, "parallel": "row", "tf32": "no"}
    return {**sites, **placed, "gate_up": "split", **at}


def rows_of(
    x: Tensor, ids: Tensor, scores: Tensor | None, weights_by_port: dict[str, Tensor], at: dict[str, Any]
) -> Tensor:
    """The experts' rows [B, T, K, H]."""
    gate_up = torch.cat((weights_by_port["expert.w1"], weights_by_port["expert.w3"]), dim=1)
    return experts(x, ids, scores, w={"gate_up": gate_up, "down": weights_by_port["expert.w2"]}, p={}, at=at)


def combine_at(dtype: torch.dtype, score_site: str, **at: Any) -> dict[str, Any]:
    """What is not given is in fp32 and by slot."""
    base = {"weighted": FP32, "accumulate": FP32, "leaves": "slot", "output": dtype, "partial": dtype}
    return {**base, "expert": 1, "scaling": "weights", "score_site": score_site, **at}


def combined(rows: Tensor, ids: Tensor, scores: Tensor | None, **at: Any) -> Tensor:
    """The routed sum [B, T, H]."""
    p = {"experts": EXPERTS, "top_k": rows.shape[-2], "scale": SCALE}
    site = "input" if scores is None else "combine"
    return combine(rows, ids, scores, w={}, p=p, at=combine_at(rows.dtype, site, **at))


def with_shared(routed: Tensor, x: Tensor, weights_by_port: dict[str, Tensor]) -> Tensor:
    dtype = x.dtype
    gate, up = (F.linear(x, weights_by_port[f"shared.{name}"]) for name in ("w1", "w3"))
    hidden = swiglu(gate, up, w={}, p={}, at={"activation": dtype, "output": dtype, "tensor": 1, "blocks": 0})
    shared = F.linear(hidden, weights_by_port["shared.w2"])
    return shared_add(routed, shared, w={}, p={"scale": SCALE}, at={"output": dtype, "scaling": "weights"})


def record_layer(name: str, x: Tensor, experts: dict[str, Any], against: str) -> None:
    """All of the layer but its gate and its combine; grouped GEMMs are given bf16 whatever x is."""
    rows = experts["projections"]
    record("router", ROUTING, against, operands=x.dtype, p=ROUTERS[name])
    record("experts", experts, against, operands=rows)
    record("swiglu", {"activation": x.dtype, "output": x.dtype}, against, operands=x.dtype)
    record("shared_add", {"shared": "add", "scaling": "weights", "output": x.dtype}, against, operands=x.dtype)
