"""How the inner axis of a GEMM is cut and added up, and which ways are impossible; needs no torch."""

from __future__ import annotations

from math import ceil

from moeparity.numerics.orders import NATIVE, Order, OrderError, parse
from moeparity.numerics.tensor_core.gemm_orders import GRAIN, misfit, multiplied, tensor_core_order
from moeparity.numerics.tensor_core.planned_order import planned_order

ALL = "all"
"""The value of `rows` for torch's kernel on all rows at once."""

ONEDNN = "onednn"
"""The value of `order` for oneDNN called by itself: torch's kernel for two rows and more, of one row `ONE_ROW`."""

BIASED = "plans are of GEMMs without a bias, and cuBLASLt may plan others otherwise. Set tensor_core(GPU) here."
"""Why a GEMM with a bias has no order of plans."""

ONE_ROW = "blocks(8, vector=2, back, fma) | sequential"
"""How oneDNN adds up the inputs of a single row of bf16, on a CPU with AVX-512 that has no instruction for bf16. torch
calls another kernel for one row.

Run: vLLM 0.32.0's onednn_mm on an Intel Ice Lake, by cancelling pairs and on drawn numbers
(tests/real/test_vllm_cpu_gemm.py).
"""


def spans(k: int, splits: int, grain: int = 1) -> list[slice]:
    """The consecutive parts into which split-K cuts `k` inputs, whole multiples of `grain`; of 1 as `torch.chunk` does.

    All have ceil(k / splits) inputs, up to the next multiple, the last what is left; if that uses up the inputs early,
    there are fewer than `splits`.
    """
    size = ceil(ceil(k / grain) / splits) * grain
    return [slice(start, min(start + size, k)) for start in range(0, k, size)]


def grain_of(order: str) -> int:
    """In whole multiples of how many inputs split-K cuts them; tensor cores take those of cuBLASLt."""
    return 1 if tensor_core_order(order) is None else GRAIN


def sees_rows(order: str, inputs: str, *, tf32: bool) -> bool:
    """Whether a row's bits may depend on other rows, if all are computed at once: torch's own kernels choose by their
    number, also where they take the place of CUDA cores, and so do plans.
    """
    if order in (NATIVE, ONEDNN) or planned_order(order) is not None:
        return True
    return tensor_core_order(order) is not None and multiplied(inputs, tf32=tf32) is None


def refusal(
    k: int, order: str, splits: int, splits_order: str, inputs: str = "fp32", *, tf32: bool = False
) -> tuple[str, str] | None:
    """The attribute of `numerics.gemm.gemm` by which `k` inputs can't be added up, and why; None if they can.

    With one split, `splits_order` is ignored. inputs: the dtype of the operands, which orders of tensor cores go by.
    """
    core = tensor_core_order(order)
    reason = None if core is None else misfit(core, k, inputs, tf32=tf32)
    if reason is not None:
        return "order", reason
    if planned_order(order) is not None:
        return None if splits == 1 else ("splits", f"the plans say into how many parts K is cut. Leave {splits} out.")
    if (core is not None or order in (NATIVE, ONEDNN)) and splits == 1:
        return None
    reason = _splits_fault(k, splits, grain_of(order))
    if reason is not None:
        return "splits", reason
    if order == ONEDNN:
        return "order", f"{ONEDNN} does not cut the inputs, and there are {splits} splits."
    sizes = sorted({span.stop - span.start for span in spans(k, splits)})
    sizes_words = f"{'a split' if splits > 1 else 'each output'} has {' or '.join(map(str, sizes))}"
    written = core is None and order != NATIVE
    reason = _order_fault(order, "products", sizes, sizes_words) if written else None
    if reason is not None:
        return "order", reason
    if splits == 1:
        return None
    reason = _order_fault(splits_order, "splits", [splits], f"there are {splits}")
    if reason is None and parse(splits_order).fma:
        reason = f"{splits_order}: fma contracts products, and splits are sums already. Write it without fma."
    return None if reason is None else ("splits_order", reason)


def unplanned(n: int, k: int, order: str, inputs: str, output: str, *, tf32: bool, biased: bool) -> str | None:
    """Why an order of plans holds no GEMM of N and K, whatever its rows; None if it may, and for other orders."""
    planned, format_ = planned_order(order), multiplied(inputs, tf32=tf32)
    if planned is None or format_ is None:
        return None
    return BIASED if biased else planned.missing((n, k, format_, output))


def _splits_fault(k: int, splits: int, grain: int) -> str | None:
    most = ceil(k / grain)
    if not 1 <= splits <= most:
        unit = f" of whole {grain}" if grain > 1 else ""
        return f"{k} inputs cannot be cut into {splits} splits{unit}; expected 1 to {most}."
    cuts = spans(k, splits, grain)
    if len(cuts) == splits:
        return None
    divides = f"divides {k}" if grain == 1 else f"divides {most}, the multiples of {grain} in {k}"
    return (
        f"{k} inputs in splits of {cuts[0].stop} are {len(cuts)} splits, not {splits}. Set {len(cuts)}, or a number "
        f"that {divides}."
    )


def _order_fault(text: str, leaves: str, sizes: list[int], sizes_words: str) -> str | None:
    try:
        order: Order = parse(text)
    except OrderError as error:
        return str(error)
    if order.leaves is None or [order.leaves] == sizes:
        return None
    return f"{order} adds up {order.leaves} {leaves}, and {sizes_words}."
