"""Our kernels, as their attributes state torchtitan 0.3.0's modules, against these modules on CPU, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.ops.kernels.attention import attention
from moeparity.ops.kernels.linear import gate
from moeparity.ops.kernels.norm import rms_norm
from moeparity.ops.kernels.rope import rope, rotary
from tests.engines import titan
from tests.engines.live import Found, ask
from tests.ops.plain import BF16, FP32, assert_bits, random
from tests.verified import record

pytestmark = pytest.mark.live
LIVE = "torchtitan 0.3.0"

B, T, SEEDS, EPS = 2, 19, (0, 1, 2), 1e-6
HEADS, TURNED, MODEL = (6, 2), 32, 40
DTYPES = {"bf16": BF16, "fp32": FP32}
NAMES = {
    "gate": "router.gate.weight",
    **{
        f"expert.{name}": f"routed_experts.inner_experts.{name}_{axes}"
        for name, axes in (("w1", "EFD"), ("w2", "EDF"), ("w3", "EFD"))
    },
    **{f"shared.{name}": f"shared_experts.{name}.weight" for name in ("w1", "w2", "w3")},
}


def moe_case(router: str, dtype: str, seed: int) -> dict[str, Any]:
    return {
        "kind": "moe",
        "x": random(B, T, titan.HIDDEN, dtype=DTYPES[dtype], seed=seed + 50),
        "weights": titan.weights(NAMES, DTYPES[dtype], seed),
        "bias": random(titan.EXPERTS, dtype=FP32, seed=seed + 60) / 4,
        "router": titan.router_arguments(router),
    }


def combine_case(k: int, dtype: str, seed: int) -> dict[str, Any]:
    ids = random(B * T, titan.EXPERTS, dtype=FP32, seed=seed).argsort(-1)[:, :k].contiguous()
    rows, weights = random(B * T, k, 1001, dtype=DTYPES[dtype], seed=seed), random(B * T, k, dtype=FP32, seed=9)
    return {"kind": "combine", "rows": rows, "ids": ids, "weights": weights.sigmoid(), "experts": titan.EXPERTS}


def rope_case(form: str, dtype: str, seed: int) -> dict[str, Any]:
    q, k = (random(B, T, heads, TURNED, dtype=DTYPES[dtype], seed=seed + heads) for heads in HEADS)
    return {"kind": "rope", "q": q, "k": k, "form": form, "length": T}


def attention_case(form: str, dtype: str, seed: int) -> dict[str, Any]:
    h, g = HEADS
    shapes = {
        "qkv_linear.wq.weight": (h * TURNED, MODEL),
        "qkv_linear.wk.weight": (g * TURNED, MODEL),
        "qkv_linear.wv.weight": (g * TURNED, MODEL),
        "wo.weight": (MODEL, h * TURNED),
    }
    weights = {name: random(*shape, dtype=FP32, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    weights |= {f"{port}_norm.weight": random(TURNED, dtype=FP32, seed=seed + i) * 3 for i, port in enumerate("qk")}
    return {
        "kind": "attention",
        "x": random(B, T, MODEL, dtype=DTYPES[dtype], seed=seed + 70),
        "weights": {name: (x / 3).to(DTYPES[dtype]) for name, x in weights.items()},
        "form": form,
        "heads": HEADS,
        "eps": EPS,
    }


SETTINGS = [(dtype, seed) for dtype in DTYPES for seed in SEEDS]
CASES = {f"moe_case {of} {dtype} {seed}": moe_case(of, dtype, seed) for of in titan.ROUTERS for dtype, seed in SETTINGS}
CASES |= {
    f"combine_case {k} {dtype} {seed}": combine_case(k, dtype, seed) for k in (1, 2, 5, 8) for dtype, seed in SETTINGS
}
for form in ("complex", "cos_sin"):
    CASES |= {f"rope_case {form} {dtype} {seed}": rope_case(form, dtype, seed) for dtype, seed in SETTINGS}
    CASES |= {f"attention_case {form} {dtype} {seed}": attention_case(form, dtype, seed) for dtype, seed in SETTINGS}


def names(make: Any) -> list[str]:
    return [name for name in CASES if name.startswith(make.__name__)]


@pytest.fixture(scope="module")
def live_outputs() -> Found:
    return ask("live_torchtitan", ("torchtitan-0.3.0", "triton"), CASES)


@pytest.mark.parametrize("name", names(moe_case))
def test_moe_layer(live_outputs: Found, name: str) -> None:
    """Gate in fp32, fp32 scores; experts in torch's grouped GEMM, always bf16; rows weighted, rounded to bf16 and added
    in fp32 (on CPU: scatter_add on CUDA is another kernel); the shared expert added to the rounded sum.
    """
    case, live = CASES[name], live_outputs[name]
    x, weights_by_port = case["x"], {port: case["weights"][name_there] for port, name_there in NAMES.items()}
    in_fp32, of = {"inputs": FP32, "output": FP32}, name.removeprefix("moe_case ").rsplit(" ", 2)[0]
    ids, weights = titan.route(gate(x, w={"weight": weights_by_port["gate"]}, p={}, at=in_fp32), of, case["bias"])
    assert torch.equal(ids, live["ids"])
    assert_bits(weights, live["weights"])
    bf16 = {port: w.to(BF16) if port.startswith("expert") else w for port, w in weights_by_port.items()}
    # Rows of a model in fp32 are bf16 ones too.
    grouped = titan.experts_at(BF16, implementation="grouped", score_site="combine")
    rows = titan.rows_of(x, ids, None, bf16, grouped).to(x.dtype)
    routed = titan.combined(rows, ids, weights, weighted=x.dtype, leaves="expert", order="sequential")
    assert_bits(routed, live["routed"])
    assert_bits(titan.with_shared(routed, x, weights_by_port), live["output"])
    record("gate", in_fp32, LIVE, operands=x.dtype)
    titan.record_layer(of, x, grouped, LIVE)


@pytest.mark.parametrize("name", names(combine_case))
def test_combine(live_outputs: Found, name: str) -> None:
    """C18: rows weighted and rounded, added in fp32 in ascending order of experts, rounded; up to 8 slots."""
    case = CASES[name]
    rows, ids, weights = (case[key].unsqueeze(0) for key in ("rows", "ids", "weights"))
    at: dict[str, Any] = {"weighted": rows.dtype, "order": "sequential"}
    ours = titan.combined(rows, ids, weights, leaves="expert", **at)
    assert_bits(ours.squeeze(0), live_outputs[name]["output"])
    full = titan.combine_at(rows.dtype, "combine", leaves="expert", **at)
    record("combine", full, LIVE, operands=rows.dtype)
    if rows.shape[2] > 2:
        fp32 = rows.dtype == FP32
        wrong_choices: dict[str, Any] = {"leaves": "slot"} if fp32 else {"leaves": "expert", "accumulate": BF16}
        assert not torch.equal(titan.combined(rows, ids, weights, **at, **wrong_choices), ours), "C16, or another order"


def table(form: str, cache: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [1, T, D] of torchtitan's table, both halves alike."""
    if form == "cos_sin":
        cos, sin = cache.chunk(2, dim=-1)
        return cos.unsqueeze(0), sin.unsqueeze(0)
    return torch.cat((cache.real, cache.real), -1).unsqueeze(0), torch.cat((cache.imag, cache.imag), -1).unsqueeze(0)


def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, form: str) -> tuple[Tensor, Tensor]:
    """cos, sin, products and sum in fp32, one rounding; complex numbers are pairs that stay in their places."""
    p = {"interleaved": form == "complex", "partial": False}
    return rope(q, k, cos, sin, w={}, p=p, at=turned_at(q.dtype))


def turned_at(dtype: torch.dtype) -> dict[str, Any]:
    return {"products": FP32, "contraction": "none", "output": dtype, "layout": "pairs"}


@pytest.mark.parametrize("name", names(rope_case))
def test_rope(live_outputs: Found, name: str) -> None:
    """Heads of whole vectors: in the rest of one, torch's complex product on CPU may be contracted by its compiler."""
    case, live = CASES[name], live_outputs[name]
    cos, sin = table(case["form"], live["cache"])
    for ours, theirs in zip(turned(case["q"], case["k"], cos, sin, case["form"]), (live["q"], live["k"]), strict=True):
        assert_bits(ours.transpose(1, 2), theirs)
    p = {"interleaved": case["form"] == "complex", "partial": False}
    record("rope", turned_at(case["q"].dtype), LIVE, operands=case["q"].dtype, p=p)


def test_table_of_cos_and_sin(live_outputs: Found) -> None:
    """The complex table is torch.polar's, which on CPU has another cosine than torch.cos: a unit in the last place."""
    rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    p = {"dim": TURNED, "rope": rope_parameters, "max_positions": T}
    ours = rotary(torch.arange(T).unsqueeze(0), w={}, p=p, at={"output": FP32})
    for form in ("cos_sin", "complex"):
        theirs = table(form, live_outputs[f"rope_case {form} fp32 0"]["cache"])
        for a, b in zip(ours, theirs, strict=True):
            if form == "cos_sin":
                assert_bits(a, b)
            else:
                assert (a - b).abs().max() <= 2.0**-24


@pytest.mark.parametrize("name", names(attention_case))
def test_attention(live_outputs: Found, name: str) -> None:
    """Qwen3's: projections, RMSNorm per head (torch's: one rounding, after the weight), rope, sdpa, projection."""
    case, live = CASES[name], live_outputs[name]
    x, w, form = case["x"], case["weights"], case["form"]
    q, k, v = (F.linear(x, w[f"qkv_linear.w{port}.weight"]).view(B, T, -1, TURNED) for port in "qkv")
    sites = {"square": FP32, "scaled": FP32, "weight": FP32, "normalized": FP32, "output": x.dtype}
    native = {"statistic": "mean_square", "order": "native", "mean": "native", "rsqrt": "native", "offset": 0.0}
    at = {**sites, **native, "association": "x_rstd_first", "eps": "config"}
    q, k = (
        rms_norm(y, w={"weight": w[f"{port}_norm.weight"]}, p={"eps": EPS, "heads": None}, at=at)
        for port, y in (("q", q), ("k", k))
    )
    cos, sin = (y.expand(B, -1, -1) for y in table(form, live["cache"]))
    q, k = turned(q, k, cos, sin, form)
    how = {"implementation": "sdpa", "kv_layout": "projected", "output": x.dtype, "tensor": 1, "blocks": 0}
    mask = torch.ones(B, T, dtype=torch.bool)
    heads = attention(q, k, v.transpose(1, 2), mask, w={}, p={"window": None}, at=how)
    assert_bits(F.linear(heads, w["wo.weight"]), live["output"])
    record("rms_norm", at, LIVE, operands=x.dtype)
    record("attention", how, LIVE, operands=x.dtype)
