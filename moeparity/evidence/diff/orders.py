"""Whether rounding order alone could explain where a difference begins: the op is run again in other orders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeparity.evidence.diff.flow import Origin
from moeparity.evidence.diff.report import LegalOrders
from moeparity.evidence.diff.side import Side
from moeparity.evidence.envelope.band import band
from moeparity.evidence.trace.records import Call
from moeparity.numerics.gemm import gemm

DRAWS = 8
"""Orders that are drawn of each side."""
PRODUCTS = 1 << 26
"""Products that a draw of a GEMM adds up at most: fewer rows are looked at, since orders written out are slow."""
LARGEST = 1 << 24
"""Elements of a value that is run again."""


@dataclass(frozen=True, slots=True)
class Sum:
    """An op that adds up, on recorded inputs: `draw` gives its output in another order, by a seed, `exact` in fp64."""

    draw: Callable[[int], Tensor]
    exact: Callable[[], Tensor]


def legal_orders(a: Side, b: Side, origin: Origin) -> LegalOrders:
    """The verdict on where a difference begins; `not told` where it can't be drawn or was not kept whole."""
    if origin.kind != "op" or len(origin.ops_a) != 1 or len(origin.ops_b) != 1:
        return _not_told("it is no single op on both sides")
    outputs = a.tensor(origin.pair.a), b.tensor(origin.pair.b)
    if outputs[0] is None or outputs[1] is None:
        return _not_told("whole values were not kept")
    ours, theirs = (_as_rows(out) for out in (outputs[0], outputs[1]))
    if ours.shape != theirs.shape or not ours.is_floating_point():
        return _not_told("the outputs have other shapes")
    if ours.numel() > LARGEST:
        return _not_told("the values are too large to run again here")
    differing = (ours != theirs).any(-1).nonzero().reshape(-1)
    sums = [summing(side, call, differing) for side, call in ((a, origin.ops_a[0]), (b, origin.ops_b[0]))]
    if isinstance(sums[0], str):
        return _not_told(sums[0])
    return _banded(ours, theirs, sums[0], sums[1], differing)


def _as_rows(out: Tensor) -> Tensor:
    return out.reshape(-1, out.shape[-1]) if out.dim() else out.reshape(1, 1)


def _banded(ours: Tensor, theirs: Tensor, one: Sum, other: Sum | str, differing: Tensor) -> LegalOrders:
    exact = one.exact()
    rows = differing[: len(exact)]
    ours, theirs = ours[rows], theirs[rows]
    first = band(ours, theirs, [one.draw(seed).to(ours.dtype) for seed in range(DRAWS)], len(rows))
    verdict: Any = "inside" if first.inside else "outside"
    if first.inside and isinstance(other, Sum):
        second = band(theirs, ours, [other.draw(seed).to(theirs.dtype) for seed in range(DRAWS)], len(rows))
        verdict = "inside" if second.inside else "inside one way"
    return LegalOrders(
        verdict=verdict, elements=first.elements, differing=first.differing, outside=first.outside,
        furthest=first.furthest, error_a=_error(ours, exact), error_b=_error(theirs, exact),
    )  # fmt: skip


def _error(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm().clamp_min(torch.finfo(torch.float64).tiny))


def summing(side: Side, call: Call, rows: Tensor) -> Sum | str:
    """An op's sum at some rows of its output, on the inputs it was recorded with; a reason where it can't be run."""
    maker = _MAKERS.get(call.name.removeprefix("aten.").partition(".")[0])
    if maker is None:
        return f"{call.name} is no sum whose orders are drawn here"
    tensors = {slot: side.tensor(number) for slot, number in call.inputs.items()}
    if any(tensor is None for tensor in tensors.values()):
        return "whole inputs were not kept"
    kept = {slot: tensor for slot, tensor in tensors.items() if tensor is not None}
    if any(not tensor.is_floating_point() for tensor in kept.values()):
        return "its inputs are no floating-point numbers"
    out = side.value(next(iter(call.outputs.values()))).dtype
    return maker(kept, call.scalars, rows, getattr(torch, out))


def _not_told(reason: str) -> LegalOrders:
    return LegalOrders(verdict="not told", reason=reason)


def _gemm(x: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor, out: torch.dtype) -> Sum:
    """x [M, K], weight [N, K]."""
    most = max(1, PRODUCTS // max(1, weight.numel()))
    x = x.reshape(-1, x.shape[-1])[rows[:most]]

    def draw(seed: int) -> Tensor:
        return gemm(x, weight, bias, inputs=x.dtype, output=out, order=f"unordered({seed})")

    def exact() -> Tensor:
        return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())

    return Sum(draw, exact)


_Tensors = Mapping[str, Tensor]


def _mm(tensors: _Tensors, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype) -> Sum | str:
    return _gemm(tensors["0"], tensors["1"].t(), None, rows, out)


def _addmm(tensors: _Tensors, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype) -> Sum | str:
    if tensors["0"].dim() != 1 or any(scalars.get(name, 1) != 1 for name in ("alpha", "beta")):
        return "a form of addmm whose orders are not drawn here"
    return _gemm(tensors["1"], tensors["2"].t(), tensors["0"], rows, out)


def _linear(tensors: _Tensors, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype) -> Sum | str:
    return _gemm(tensors["0"], tensors["1"], tensors.get("2"), rows, out)


def _bmm(tensors: _Tensors, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype) -> Sum | str:
    """All batches: their rows lie behind each other."""
    x, y = tensors["0"], tensors["1"]
    most = max(1, PRODUCTS // max(1, y[0].numel()))
    rows = rows[:most]
    batch, row = rows // x.shape[1], rows % x.shape[1]

    def draw(seed: int) -> Tensor:
        parts = [
            gemm(x[b, r].unsqueeze(0), y[b].t(), None, inputs=x.dtype, output=out, order=f"unordered({seed})")
            for b, r in zip(batch.tolist(), row.tolist(), strict=True)
        ]
        return torch.cat(parts)

    def exact() -> Tensor:
        return torch.cat(
            [x[b, r].double().unsqueeze(0) @ y[b].double() for b, r in zip(batch.tolist(), row.tolist(), strict=True)]
        )

    return Sum(draw, exact)


def _mean(tensors: _Tensors, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype) -> Sum | str:
    return _reduced(tensors["0"], scalars, rows, out, mean=True)


def _sum(tensors: _Tensors, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype) -> Sum | str:
    return _reduced(tensors["0"], scalars, rows, out, mean=False)


def _reduced(x: Tensor, scalars: Mapping[str, Any], rows: Tensor, out: torch.dtype, *, mean: bool) -> Sum | str:
    """A sum over the last axis, or its mean."""
    axes = scalars.get("1", scalars.get("dim"))
    axes = [axes] if isinstance(axes, int) else list(axes) if isinstance(axes, Sequence) else None
    if axes is None or [axis % x.dim() for axis in axes] != [x.dim() - 1]:
        return "a sum over other axes than the last, whose orders are not drawn here"
    keeps = bool(scalars.get("2", scalars.get("keepdim", False)))
    flat = x.reshape(-1, x.shape[-1])
    width = 1 if keeps else x.shape[-2] if x.dim() > 1 else 1
    ones = torch.ones(1, x.shape[-1], dtype=x.dtype)

    def shaped(totals: Tensor) -> Tensor:
        totals = totals / x.shape[-1] if mean else totals
        return totals.reshape(-1, width)[rows]

    def draw(seed: int) -> Tensor:
        accumulate = torch.promote_types(x.dtype, torch.float32)
        totals = gemm(flat, ones, None, inputs=x.dtype, output=accumulate, order=f"unordered({seed})")
        return shaped(totals).to(out)

    return Sum(draw, lambda: shaped(flat.double().sum(-1)))


_Maker = Callable[[_Tensors, Mapping[str, Any], Tensor, torch.dtype], Sum | str]
_MAKERS: Mapping[str, _Maker] = {
    "mm": _mm, "addmm": _addmm, "linear": _linear, "bmm": _bmm, "mean": _mean, "sum": _sum,
}  # fmt: skip
