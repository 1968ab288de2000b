"""vLLM's functions as Inductor writes them for an H100, run as PTX: what `vllm serve` computes between GEMMs.

Sums of squares are exact in any order in these rows: how Inductor cuts a row goes by how many registers its kernel has
on a GPU, which is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from moeparity.ops.kernels import elementwise, rope
from moeparity.ops.kernels.norm import rms_norm
from tests.engines.cuda.claims import Claim
from tests.engines.cuda.compared import plan_values
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

EPS = 1e-6
BLIND = ("order", "rsqrt", "tensor", "blocks", "eps", "offset", "layout")
"""Not told: what exact sums cannot show, the root, which is assumed, and what the model says."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """An op with the values of a plan, and what it gives with any values."""

    op: str
    at: Mapping[str, Any]
    outputs: Callable[[Mapping[str, Any]], list[Tensor]]
    further: Mapping[str, Any] = field(default_factory=dict)
    """Sites on its edges, and what another node does for it: of these the case's other form is the control."""

    def shown(self) -> Seen:
        """Those of the values of which another one gives other bits, and what is told beside."""
        values_told = Claim(self.op, self.at, self.outputs).values_told(None)
        in_effect = {name: value for name, value in values_told.items() if name not in BLIND}
        active = {name: value for name, value in self.at.items() if name not in in_effect}
        return Seen(op=self.op, at={**in_effect, **active, **self.further}, blind=tuple(active))


def exact_rows(*shape: int, seed: int) -> Tensor:
    """Eighths up to 2 in bf16, and a few up to 40: squares of two such added have exact sums."""
    g = torch.Generator().manual_seed(seed)
    small = torch.randint(-16, 17, shape, generator=g).float() / 8
    few = torch.rand(shape, generator=g) < (1 / 16 if shape[-1] <= 2048 else 1 / 64)
    return torch.where(few, torch.randint(-40, 41, shape, generator=g).float(), small).to(BF16)


def weight(width: int) -> Tensor:
    """Around 1; every tenth is less than fp16 holds."""
    w = 1 + random(width, dtype=FP32, seed=1) / 8
    w[::10] *= 2.0**-20
    return w.to(BF16)


def values(op: str, model: str = "qwen3_moe", name: str = "") -> dict[str, Any]:
    """What the profile has in effect at such a node, on an H200."""
    stated = {"order": "sequential", "rsqrt": "approx", "mean": "div_full"} if op == "rms_norm" else {}
    return {**plan_values("vllm", model, op, name), **stated}


def normed(x: Tensor, w: Tensor, at: Mapping[str, Any]) -> Tensor:
    choices = {"tensor": 1, **at}
    return rms_norm(x, w={"weight": w}, p={"eps": EPS, "heads": None}, at=choices)


def case(kernel: str, kind: str, shapes: str, inputs: Mapping[str, Any], nodes: list[Node], **fields: Any) -> Case:
    return Case(
        program="live_inductor",
        kernel=kernel,
        kind=kind,
        shapes=shapes,
        arguments=inputs,
        nodes=tuple(node.shown for node in nodes),
        **fields,
    )


def norm_case(*shape: int) -> Case:
    """A norm alone: the first of a model, and those of heads and of MLA's latents."""
    x, w, at = exact_rows(*shape, seed=shape[-1]), weight(shape[-1]), values("rms_norm")
    return case(
        "rms_norm", "rms_norm", " x ".join(map(str, shape)), {"x": x, "weight": w, "eps": EPS},
        [Node(op="rms_norm", at=at, outputs=lambda v: [normed(x, w, v)])],
        ours=lambda: {"output": normed(x, w, at)},
        other_outputs=lambda: {"output": normed(x, w, {**at, "normalized": BF16})},
        says="one rounding, behind the weight", blind="the order of the squares",
    )  # fmt: skip


def root_case(*shape: int) -> Case:
    """A norm of fp32 rows, whose output shows the root, with the approximate instructions of an H200.

    The sum is divided by `div.full`, which is a product with a reciprocal by table.
    """
    x, w = exact_rows(*shape, seed=shape[-1]).float(), weight(shape[-1]).float()
    root = {"rsqrt": "approx", "mean": "div_full"}
    shown = (root if shape[-1] & (shape[-1] - 1) else {"rsqrt": "approx"}) | {"statistic": "mean_square"}
    at = {**values("rms_norm"), "output": FP32, **root}
    return case(
        "rms_norm", "rms_norm", f"{' x '.join(map(str, shape))} fp32, an H200's root",
        {"x": x, "weight": w, "eps": EPS}, [],
        recorded=(Seen(op="rms_norm", at=shown, operands=FP32, blind=("statistic",)),),
        ours=lambda: {"output": normed(x, w, at)},
        other_outputs=lambda: {"output": normed(x, w, {**at, "rsqrt": "ieee"})},
        says="`rsqrt: approx`, `mean: div_full`", blind="the order of the squares",
    )  # fmt: skip


def root_cases() -> Iterator[Case]:
    """Widths that divide a sum exactly, and others; and silu, whose rows are fp32 too."""
    yield from map(root_case, (400, 30, 90, 90, 90), (2048, 7168, 1536, 512, 2112))
    yield logistic_case(9, 2048)


def add_norm_case(*shape: int) -> Case:
    """The norm of a residual stream: of the sum before it is rounded."""
    x, residual, w = exact_rows(*shape, seed=3), exact_rows(*shape, seed=4), weight(shape[-1])
    at, add = values("rms_norm"), values("add")

    def run(v: Mapping[str, Any], stored: torch.dtype = FP32) -> Tensor:
        return normed(elementwise.add(x, residual, w={}, p={}, at={"output": stored}), w, v)

    def added(v: Mapping[str, Any]) -> list[Tensor]:
        return [elementwise.add(x, residual, w={}, p={}, at=v)]

    return case(
        "fused_add_rms_norm", "add_norm", " x ".join(map(str, shape)),
        {"x": x, "residual": residual, "weight": w, "eps": EPS},
        [Node(op="rms_norm", at=at, outputs=lambda v: [run(v)]),
         Node(op="add", at=add, outputs=added, further={"output->rms_norm": "fp32"})],
        ours=lambda: {"output": run(at), "residual": added(add)[0]}, other_outputs=lambda: {"output": run(at, BF16)},
        says="the norm is of the unrounded sum", blind="the order of the squares",
    )  # fmt: skip


def gated_case(tokens: int, width: int) -> Case:
    """SiluAndMul, of dense layers and shared experts."""
    x = (random(tokens, 2 * width, dtype=FP32, seed=width) * 4).to(BF16)
    at = values("swiglu", "deepseek_v3")

    def run(v: Mapping[str, Any]) -> list[Tensor]:
        gate, up = x.chunk(2, -1)
        return [elementwise.swiglu(gate, up, w={}, p={}, at=v)]

    return case(
        "SiluAndMul", "swiglu", f"{tokens} x {width}", {"x": x}, [Node(op="swiglu", at=at, outputs=run)],
        ours=lambda: {"output": run(at)[0]}, other_outputs=lambda: {"output": run({**at, "activation": BF16})[0]},
        says=f"one rounding, `logistic: {at['logistic']}`", blind="exponential and quotient",
    )  # fmt: skip


def logistic_case(tokens: int, width: int) -> Case:
    """SiluAndMul of fp32 rows, whose output shows exponential and quotient."""
    x = random(tokens, 2 * width, dtype=FP32, seed=width) * 6
    at = {"activation": FP32, "output": FP32, "logistic": values("swiglu", "deepseek_v3")["logistic"]}

    def run(logistic: str) -> Outputs:
        gate, up = x.chunk(2, -1)
        return {"output": elementwise.swiglu(gate, up, w={}, p={}, at={**at, "logistic": logistic})}

    return case(
        "SiluAndMul", "swiglu", f"{tokens} x {width} fp32", {"x": x}, [],
        recorded=(Seen(op="swiglu", at=at, operands=FP32),),
        ours=lambda: run(at["logistic"]), other_outputs=lambda: run("cuda"),
        says=f"`logistic: {at['logistic']}`",
    )  # fmt: skip


def turned(x: Tensor, cos: Tensor, sin: Tensor, v: Mapping[str, Any], interleaved: bool) -> Tensor:
    """x [T, heads, dim] by the node `rope`."""
    tables = (torch.cat([half, half], -1)[None] for half in (cos, sin))
    p = {"interleaved": interleaved, "partial": False}
    at = {**v, "layout": "pairs" if interleaved else "halves"}
    q, _ = rope.rope(x[None], x[None], *tables, w={}, p=p, at=at)
    return q[0].transpose(0, 1).contiguous()


def angles(tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    """cos and sin in bf16, as vLLM keeps them."""
    of = torch.arange(1, tokens + 1).float()[:, None] * 37 / 10000 ** (torch.arange(0, dim, 2).float() / dim)
    return of.cos().to(BF16), of.sin().to(BF16)


def rotary_case(tokens: int, heads: int, dim: int, *, interleaved: bool) -> Case:
    """q as a projection stores it: products of two numbers of bf16 are exact, and whether one is contracted is moot."""
    cos, sin = angles(tokens, dim)
    x = random(tokens, heads, dim, dtype=BF16, seed=dim)
    at = values("rope", "deepseek_v3" if interleaved else "qwen3_moe")

    def run(v: Mapping[str, Any]) -> list[Tensor]:
        return [turned(x, cos, sin, v, interleaved)]

    return case(
        "ApplyRotaryEmb", "rotary", f"{tokens} x {heads} x {dim}, {'pairs' if interleaved else 'halves'}",
        {"x": x, "cos": cos, "sin": sin, "interleaved": interleaved}, [Node(op="rope", at=at, outputs=run)],
        ours=lambda: {"output": run(at)[0]}, other_outputs=lambda: {"output": run({**at, "products": BF16})[0]},
        says="one rounding", blind="contraction, which products of two numbers of bf16 do not show",
    )  # fmt: skip


def head_norm_case(tokens: int, heads: tuple[int, int], dim: int) -> Case:
    """Qwen3's attention between its projection and the cache: norms of heads, then the rotary embedding."""
    (cos, sin), ones = angles(tokens, dim), torch.ones(dim, dtype=BF16)
    q_weight, k_weight = ones, weight(dim)
    q, k, v = (exact_rows(tokens, count, dim, seed=count) for count in (*heads, heads[1]))
    # What is turned nearly cancels, so that the roundings of its products are what is left.
    first, second = q.chunk(2, -1)
    second.copy_((first.float() * (cos / sin).float().clamp(-8, 8)[:, None] * 8).round().clamp(-320, 320) / 8)
    norm, at = values("rms_norm", name="q_norm"), values("rope")

    def run(n: Mapping[str, Any], r: Mapping[str, Any], handed: torch.dtype = FP32) -> list[Tensor]:
        halves = (normed(x, w, {**n, "output": handed}) for x, w in ((q, q_weight), (k, k_weight)))
        return [turned(x, cos, sin, r, interleaved=False).flatten(1) for x in halves]

    def by_name(outputs: list[Tensor]) -> Outputs:
        return dict(zip(("q", "k"), outputs, strict=True))

    inner = {name: value for name, value in norm.items() if name != "output"}
    return case(
        "RMSNorm of heads, ApplyRotaryEmb", "head_norm", f"{tokens} x {heads[0]} + {heads[1]} x {dim}",
        {"qkv": torch.cat([x.flatten(1) for x in (q, k, v)], -1), "cos": cos, "sin": sin, "q_weight": q_weight,
         "k_weight": k_weight, "heads": heads, "eps": EPS},
        [Node(op="rms_norm", at=inner, outputs=lambda v: run(v, at), further={"output->rope": "fp32"}),
         Node(op="rope", at=at, outputs=lambda v: run(norm, v))],
        ours=lambda: by_name(run(norm, at)), other_outputs=lambda: by_name(run(norm, at, BF16)),
        says=f"the norm goes into the rotary embedding unrounded, `contraction: {at['contraction']}`",
        blind="the order of the squares",
    )  # fmt: skip


def shared_case(tokens: int, width: int, scale: float) -> Case:
    """DeepSeek-V3's routed and shared experts on one rank, and the residual's norm behind them.

    With 2.5, the model's scale, products are exact and it shows whether the sum is stored; with another one the sums
    nearly cancel, and it shows whether the product is contracted.
    """
    x, shared, residual = (random(tokens, width, dtype=BF16, seed=i) for i in (1, 2, 3))
    contracted = scale != 2.5
    if contracted:
        shared, residual = -(x.float() * scale).to(BF16), residual / 2**12
    add, at = values("add"), {"output": BF16, "scaling": "shared_fma", "shared": "add"}

    def run(v: Mapping[str, Any], a: Mapping[str, Any] = add, handed: torch.dtype = FP32) -> list[Tensor]:
        summed = elementwise.shared_add(x[None], shared[None], w={}, p={"scale": scale}, at={**v, "output": handed})
        return [elementwise.add(residual[None], summed, w={}, p={}, at=a)[0]]

    nodes = [Node(op="add", at=add, outputs=lambda v: run(at, v))]
    if contracted:
        nodes.append(Node(op="router", at={}, outputs=lambda _: run(at), further={"scaling": "shared_fma"}))
    return case(
        "routed scale, shared expert's sum, fused_add_rms_norm", "shared_add", f"{tokens} x {width}, scale {scale}",
        {"x": x, "shared": shared, "residual": residual, "weight": weight(width), "scale": scale, "eps": EPS}, nodes,
        ours=lambda: {"residual": run(at)[0]},
        other_outputs=lambda: {"residual": run({**at, "scaling": "shared_add"} if contracted else at,
                                        handed=FP32 if contracted else BF16)[0]},
        says="one fma" if contracted else "the sum goes into the residual unrounded",
    )  # fmt: skip


def cases() -> Iterator[Case]:
    """Widths of Qwen3-30B-A3B and DeepSeek-V3."""
    for shape in ((400, 2048), (30, 7168), (90, 1536), (90, 512), (50, 32, 128)):
        yield norm_case(*shape)
    yield add_norm_case(400, 2048)
    yield add_norm_case(30, 7168)
    yield gated_case(9, 2048)
    yield rotary_case(9, 4, 128, interleaved=False)
    yield rotary_case(9, 4, 64, interleaved=True)
    yield head_norm_case(40, (32, 4), 128)
    yield shared_case(40, 2048, 2.5)
    yield shared_case(40, 2048, 2.827)
