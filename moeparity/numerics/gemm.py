"""GEMMs by form: torch's own kernel on all rows or on blocks of rows, split-K over it, every output element as a sum in
a stated order, or the arithmetic of a GPU's tensor cores.

Letters: M rows (all axes of x but the last), N columns, K inputs, whose products each output element adds up.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

from moeparity.numerics.additions import of_order
from moeparity.numerics.blocks import in_blocks
from moeparity.numerics.dtypes import name_of, torch_dtype
from moeparity.numerics.gemm_forms import ALL, BIASED, ONE_ROW, ONEDNN, grain_of, refusal, spans
from moeparity.numerics.orders import NATIVE, Order, parse, tree
from moeparity.numerics.rounding import add, linear, rounded, tf32, working
from moeparity.numerics.summation import sum_axis, sum_tree
from moeparity.numerics.tensor_core.gemm_orders import TensorCoreOrder, multiplied, tensor_core_order
from moeparity.numerics.tensor_core.gemm_plans import PlanError
from moeparity.numerics.tensor_core.planned_order import PlannedOrder, planned_order
from moeparity.numerics.tensor_core.planned_product import planned_product
from moeparity.numerics.tensor_core.product import multiply_add
from moeparity.progress import through

AT_ONCE = 1 << 18
"""A step of a sum takes about so many values together, so that they stay in the caches."""
LEAST, WIDEST = 1 << 8, 1 << 11
"""But at least `LEAST` output elements, and at most `WIDEST` neighbours, whose inputs are copied side by side."""


class FormError(ValueError):
    """A GEMM cannot have the form that is asked for. reason: why, without the `attribute`."""

    def __init__(self, attribute: str, reason: str) -> None:
        self.attribute, self.reason = attribute, reason
        super().__init__(f"{attribute}: {reason}")


def gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    inputs: torch.dtype,
    output: torch.dtype,
    order: str = NATIVE,
    rows: int | str = ALL,
    splits: int = 1,
    partials: torch.dtype = torch.float32,
    splits_order: str = "sequential",
    in_tf32: bool = False,
) -> torch.Tensor:
    """`x @ weight.T + bias`: operands rounded to `inputs`, K added up as stated, result rounded to `output`.

    x [..., K], weight [N, K], bias [N] -> [..., N]. `native` with one split is `rounding.linear`, which adds the bias
    in the kernel, on all rows at once or on blocks of `rows` (`blocks.in_blocks`): then no bit depends on other rows.
    All other forms add the bias once, to the finished sum, in the accumulator's dtype, then rounded to `output`.

    order: an order over the K products of each output element. The accumulator is fp32 (fp64 if `inputs` or `output`
    is) and every step elementwise, so no bit depends on M, N or other rows. A product is rounded to the accumulator's
    dtype (exact for fp16, and for bf16 except in underflow and overflow), unless the order contracts it with `fma`. The
    accumulator starts as its first product, or from zero (`sequential(zero)`). `tensor_core(h100)` adds as that GPU's
    tensor cores do (gemm_orders.py), `cublaslt(...)` as the plan for M, N, K says (planned_order.py); fp64, and fp32
    unless it is rounded to TF32 (`in_tf32`), is torch's kernel.

    splits: above 1 it is split-K: each of `gemm_forms.spans` of K, on tensor cores whole multiples of 64, is a GEMM on
    operands copied to memory of their own, by torch's kernel or in `order`, its result rounded to `partials`. The parts
    are added in `splits_order`, every addition rounded to `partials`.

    Raises FormError with the reason of `gemm_forms.refusal`, and blocks.PlaceError.
    """
    if in_tf32:
        x, weight = tf32(rounded(x, inputs)), tf32(rounded(weight, inputs))
    core, format_ = _on_core(weight.shape[-1], order, splits, splits_order, inputs, in_tf32)
    accumulate = partials if splits > 1 else working(inputs, output)
    if splits > 1:
        form = {"inputs": inputs, "output": partials, "order": order, "rows": rows, "in_tf32": in_tf32}
        total = _split(x, weight, spans(weight.shape[-1], splits, grain_of(order)), splits_order, **form)
    elif isinstance(core, PlannedOrder) and format_ is not None:
        total = _planned(rounded(x, inputs), rounded(weight, inputs), bias, core, format_, output)
    elif isinstance(core, TensorCoreOrder) and format_ is not None:
        total = _on_tensor_core(rounded(x, inputs), rounded(weight, inputs), core, format_)
    elif core is not None or order == NATIVE or (order == ONEDNN and x.numel() > x.shape[-1]):
        return _native(x, weight, bias, inputs=inputs, output=output, rows=rows)
    else:
        written = ONE_ROW if order == ONEDNN else order
        total = _in_order(rounded(x, inputs), rounded(weight, inputs), written, accumulate)
    return rounded(total if bias is None else add(total, rounded(bias, accumulate), accumulate), output)


def _on_core(
    k: int, order: str, splits: int, splits_order: str, inputs: torch.dtype, in_tf32: bool
) -> tuple[TensorCoreOrder | PlannedOrder | None, str | None]:
    """The order of tensor cores, and the format of what they multiply. Raises FormError if K does not fit the form."""
    name = name_of(inputs) or str(inputs)
    fault = refusal(k, order, splits, splits_order, name, tf32=in_tf32)
    if fault is not None:
        raise FormError(*fault)
    return tensor_core_order(order) or planned_order(order), multiplied(name, tf32=in_tf32)


def _native(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    inputs: torch.dtype,
    output: torch.dtype,
    rows: int | str,
) -> torch.Tensor:
    """As `linear`; for blocks, operands are converted to the kernel's dtype once for all blocks."""
    if rows == ALL:
        return linear(x, weight, bias, inputs=inputs, output=output)
    step = inputs if inputs == output else working(inputs, output)
    flat = rounded(rounded(x, inputs), step).reshape(-1, x.shape[-1])
    weight, bias = rounded(rounded(weight, inputs), step), bias if bias is None else rounded(bias, step)

    def kernel(block: torch.Tensor) -> torch.Tensor:
        return linear(block, weight, bias, inputs=step, output=step)

    result = in_blocks(flat, int(rows), kernel, key=("linear", weight.shape, weight.stride(), bias is not None))
    return rounded(result, output).view(*x.shape[:-1], len(weight))


def _split(x: torch.Tensor, weight: torch.Tensor, cuts: list[slice], splits_order: str, **form: Any) -> torch.Tensor:
    """The parts of K, each a GEMM of that `form`, added in `splits_order`, every addition rounded like the parts."""

    def part(i: int) -> torch.Tensor:
        return gemm(_cut(x, cuts[i]), _cut(weight, cuts[i]), None, **form)

    return sum_tree(part, tree(parse(splits_order), len(cuts)), accumulate=form["output"])


def _on_tensor_core(x: torch.Tensor, weight: torch.Tensor, order: TensorCoreOrder, format_: str) -> torch.Tensor:
    """x [..., K], weight [N, K] -> fp32 [..., N]: each chain of dot-adds from zero, their sums added ascending."""
    rows, instruction = x.reshape(-1, x.shape[-1]), order.instruction(format_)
    chains = (multiply_add(instruction, rows[:, part], weight[:, part].t()) for part in order.parts(x.shape[-1]))
    total = reduce(torch.add, chains)
    return total.view(*x.shape[:-1], len(weight))


def _planned(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    order: PlannedOrder,
    format_: str,
    output: torch.dtype,
) -> torch.Tensor:
    """x [..., K], weight [N, K] -> fp32 [..., N], by the plan for the number of rows."""
    if bias is not None:
        raise FormError("order", BIASED)
    rows, (n, k) = x.reshape(-1, x.shape[-1]), weight.shape
    try:
        plan = order.plan(len(rows), (n, k, format_, name_of(output) or str(output)))
    except PlanError as error:
        raise FormError("order", str(error)) from None
    total = planned_product(order.instruction(format_), rows, weight, plan, output)
    return total.view(*x.shape[:-1], n)


def _cut(x: torch.Tensor, span: slice) -> torch.Tensor:
    """A part of the last axis, always copied, since a view's strides and alignment would change bits."""
    return x[..., span].clone(memory_format=torch.contiguous_format)


def matmul(a: torch.Tensor, b: torch.Tensor, order: str, *, start: torch.Tensor | None = None) -> torch.Tensor:
    """Batched `start + a @ b`, each output element's K products added in `order`, an order of the algebra.

    a [..., M, K], b [..., K, N], start [..., M, N], which the accumulator holds before the first product (None: that
    product) -> [..., M, N] in the accumulator's dtype, fp32, or fp64 where an operand is. Products as in `gemm`.
    """
    sum_order, accumulate = parse(order), working(a.dtype, b.dtype)
    left, right = a.flatten(0, -3), b.flatten(0, -3)
    begun = None if start is None else start.flatten(0, -3)
    together = _at_once(sum_order, a.shape[-1], start=start is not None) // max(1, a.shape[-2] * b.shape[-1])
    if together < 2:
        starts = [None] * len(left) if begun is None else list(begun)
        pairs = zip(left, right, starts, strict=True)
        products = torch.stack([_in_order(x, y.t(), order, accumulate, start=onto) for x, y, onto in pairs])
    else:
        # Small products side by side: a step of the sum costs as much for one as for many.
        spans = _runs(len(left), together)
        onto = [None if begun is None else begun[span] for span in spans]
        products = torch.cat(
            [_side_by_side(left[s], right[s], sum_order, accumulate, o) for s, o in zip(spans, onto, strict=True)]
        )
    return products.view(*a.shape[:-1], b.shape[-1])


def _side_by_side(
    a: torch.Tensor, b: torch.Tensor, order: Order, accumulate: torch.dtype, start: torch.Tensor | None
) -> torch.Tensor:
    """a [B, M, K], b [B, K, N], start [B, M, N] or None -> [B, M, N]."""
    left = a.permute(2, 0, 1).contiguous().to(accumulate).unsqueeze(-1)
    right = b.permute(1, 0, 2).contiguous().to(accumulate).unsqueeze(2)
    left = left.expand(-1, -1, -1, b.shape[-1])
    return sum_axis(left, order, 0, accumulate=accumulate, start=start, times=right)


def _at_once(order: Order, k: int, *, start: bool) -> int:
    """How many output elements of a sum over K are added up together."""
    steps = of_order(order, k, start=start).steps
    return max(LEAST, AT_ONCE // max((len(step.operands) * step.width for step in steps), default=1))


def _in_order(
    x: torch.Tensor, weight: torch.Tensor, order: str, accumulate: torch.dtype, *, start: torch.Tensor | None = None
) -> torch.Tensor:
    """x [..., K], weight [N, K] -> [..., N] in the dtype in which `order` ends; never holds all [M, N, K] products
    at once.

    `start`: [M, N], of x [M, K].
    """
    K, sum_order = x.shape[-1], parse(order)
    plan = of_order(sum_order, K, start=start is not None)
    rows = x.reshape(-1, K)
    dtype = accumulate if plan.dtype is None else torch_dtype(plan.dtype)
    out = torch.empty(len(rows), len(weight), dtype=dtype, device=x.device)
    # Products commute, and long rows of results are faster.
    turned = len(rows) > len(weight)
    shorter, longer, result = (weight, rows, out.t()) if turned else (rows, weight, out)
    begun = start.t() if turned and start is not None else start
    size = _at_once(sum_order, K, start=start is not None)
    runs = _runs(len(longer), min(size, WIDEST))
    for wide in through(runs, [1] * len(runs)):
        b = longer[wide].t().contiguous().to(accumulate).unsqueeze(1)
        for short in _runs(len(shorter), max(1, size // b.shape[-1])):
            a = shorter[short].t().contiguous().to(accumulate).unsqueeze(-1).expand(-1, -1, b.shape[-1])
            onto = None if begun is None else begun[short, wide]
            result[short, wide] = sum_axis(a, sum_order, 0, accumulate=accumulate, start=onto, times=b)
    return out.view(*x.shape[:-1], len(weight))


def _runs(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]
