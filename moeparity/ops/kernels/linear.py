"""Kernels of `linear`, `gate` and `lm_head`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from moeparity.numerics import rounding
from moeparity.numerics.blocks import PlaceError
from moeparity.numerics.gemm import FormError, gemm
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.joined_steps import JoinedGemm, Kernel, Steps
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import add
from moeparity.numerics.tensor_core.planned_order import planned_order
from moeparity.ops.adapter import UNMERGED
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels import adapter as adapters
from moeparity.ops.kernels import placement
from moeparity.ops.kernels.adapter import Adapter
from moeparity.ops.kernels.pieces import each, gathered, parts, stacked
from moeparity.ops.kernels.placement import Gemm
from moeparity.ops.kernels.quantised import NONE, FileScales, in_8_bits
from moeparity.ops.linear import ROW, way
from moeparity.ops.placement import cut
from moeparity.ops.quantised import rounds_operands


def linear(
    x: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    steps: Steps | None = None,
) -> torch.Tensor:
    """x [B, T, K] -> [B, T, N], or [B, T, heads, N / heads], or if cut row-wise partial sums [B, ranks, T, N]."""
    how_cut = way(at, p) if "parallel" in at else "whole"
    if how_cut == "column" and p["heads"] is not None:
        # Several ranks may hold the same head; they compute the same values.
        at = {**at, **{name: min(at[name], p["heads"]) for name in ("tensor", "blocks")}}
    # With a plain tensor as weight torch makes a GEMM for each sequence where the strides of x are not those of rows,
    # even of one token each; with a parameter, as in transformers, one of all rows.
    x = x.reshape(-1, x.shape[-1]).view(x.shape)
    product = _product(at, "partial" if how_cut == "row" else "output", steps)
    lora = adapters.adapter_of(w, p, "weight")
    if lora is not None:
        w = {**w, "weight": adapters.in_weight(w["weight"], lora, p, at)}
    out = placement.linear(x, w, way=how_cut, at=at, gemm=product)
    if lora is not None and at["adapter"] == UNMERGED:
        out = add(out, _beside(x, lora, how_cut, at), at["adapter_sum"])
    return out if p["heads"] is None else out.view(*out.shape[:-1], p["heads"], -1)


def _beside(x: torch.Tensor, lora: Adapter, way_cut: str, at: Mapping[str, Any]) -> torch.Tensor:
    """What an adapter adds to the result of `linear`, in the pieces of this: B is cut along its outputs, A along its
    inputs, each with its weight.
    """
    pieces = 1 if way_cut == "whole" else cut(at)
    if pieces == 1:
        return adapters.beside(x, lora, at)
    if way_cut == ROW:
        of_ranks = zip(parts(x, pieces, -1), parts(lora.a, pieces, 1), strict=True)
        return stacked(each(adapters.beside, ((x_r, lora._replace(a=a), at) for x_r, a in of_ranks), pieces))
    operands = ((x, lora._replace(b=b), at) for b in parts(lora.b, pieces, 0))
    return gathered(each(adapters.beside, operands, pieces), pieces)


def gate(
    x: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    steps: Steps | None = None,
) -> torch.Tensor:
    """x [B, T, K] -> router logits [B, T, E]; the GEMM sees [B * T, K]."""
    flat = x.reshape(-1, x.shape[-1])
    return _product(at, "output", steps)(flat, w["weight"], w.get("bias"), NONE).view(*x.shape[:-1], -1)


def lm_head(
    x: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    steps: Steps | None = None,
) -> torch.Tensor:
    """x [B, T, H] -> logits [B, T, V]."""
    return placement.linear(x, w, way="column", at=at, gemm=_product(at, "output", steps))


def _product(at: Mapping[str, Any], output: str, steps: Steps | None) -> Gemm:
    """The GEMM in the form and roundings of a node, on all rows or step by step (`steps`). output: the name of the site
    of its result.
    """
    gemm = partial(gemm_of(at), inputs=at["inputs"], output=at[output])

    def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scales: FileScales) -> torch.Tensor:
        alone = with_scales(gemm, at, scales)
        if steps is None:
            return alone(x, weight, bias)
        rows = x.reshape(-1, x.shape[-1])[steps.places]
        key = ("gemm", output, *at.items())
        joined = JoinedGemm(alone=alone, blocks=in_blocks(at, alone), weight=weight, bias=bias, key=key)
        return joined.in_steps(rows, steps.sizes)[steps.back].view(*x.shape[:-1], -1)

    return product


def with_scales(gemm: Callable[..., torch.Tensor], at: Mapping[str, Any], scales: FileScales) -> Kernel:
    """A GEMM in the form of a node, told of the checkpoint's scales if its operands are on grids."""
    return partial(gemm, scales=scales) if rounds_operands(at) else gemm


def in_blocks(at: Mapping[str, Any], kernel: Kernel) -> Kernel | None:
    """The GEMM of a node's blocks of rows, in place of each step's own; None where plans of the steps' rows differ."""
    return None if planned_order(str(at.get("order", NATIVE))) is not None else kernel


@contextmanager
def places_tried() -> Iterator[None]:
    """Raises RefusedError of `rows` if a row's place within its block changes bits on this machine."""
    try:
        yield
    except PlaceError as error:
        raise RefusedError("rows", str(error)) from None


@contextmanager
def refused_as(attribute: str) -> Iterator[None]:
    """Raises RefusedError of `attribute` if an order does not fit the widths of a call."""
    try:
        yield
    except FormError as error:
        raise RefusedError(attribute, error.reason) from None


def gemm_of(at: Mapping[str, Any], order: str = "order") -> Callable[..., torch.Tensor]:
    """`numerics.gemm.gemm` in the form that a node asks for, with operands rounded to TF32 if it asks for that.

    The call takes x, weight and bias, and the dtypes `inputs` and `output` by name. For a node without a form it is
    torch's own kernel. `order` is the name that its order has on the node. Raises RefusedError for blocks in which a
    row's place changes bits on this machine, and for an order that does not fit a call.
    """
    return in_8_bits(_gemm_of(at, order), at) if rounds_operands(at) else _gemm_of(at, order)


def _gemm_of(at: Mapping[str, Any], order: str) -> Callable[..., torch.Tensor]:
    """The same for operands as they come."""
    splits = {"partials": at["split"], "splits_order": at["splits_order"]} if at.get("splits", 1) > 1 else {}
    form = {name: at[name] for name in ("order", "rows", "splits") if name in at} | splits
    by_blocks, in_tf32 = at.get("rows", ALL) != ALL, at.get("tf32") == "yes"
    # A shortcut, since a loop over experts calls this for every expert in every step.
    if not by_blocks and not in_tf32 and not splits and form.get("order", NATIVE) == NATIVE:
        return rounding.linear

    def product(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        inputs: torch.dtype,
        output: torch.dtype,
    ) -> torch.Tensor:
        if not by_blocks:
            with refused_as(order):
                return gemm(x, weight, bias, inputs=inputs, output=output, in_tf32=in_tf32, **form)
        with places_tried():
            return gemm(x, weight, bias, inputs=inputs, output=output, in_tf32=in_tf32, **form)

    return product
