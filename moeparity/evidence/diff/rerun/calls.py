"""Runs the calls between values with equal bits again, one after the other, on what they were recorded to read.

Only ops of the lists below are run, whatever a trace names: elementwise ops, moves, and sums with their orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from moeparity.evidence.diff.rerun import attention, rows, sums
from moeparity.evidence.diff.rerun.call_arguments import Arguments, arguments, overload
from moeparity.evidence.diff.rerun.sums import Added
from moeparity.evidence.diff.rerun.way import PRODUCTS, NotDrawnError, Way
from moeparity.evidence.diff.side import Side
from moeparity.evidence.trace.records import Call, Value

MOST = 1 << 33
"""Products of all GEMMs of the calls, beyond which they are not run again."""
LARGEST = 1 << 26
"""Elements of a value that is run again."""

Kernel = Callable[[Arguments, Way], Tensor | tuple[Tensor, ...]]

SUMS: Mapping[str, Kernel] = {
    "mm": sums.mm, "addmm": sums.addmm, "linear": sums.linear, "bmm": sums.bmm, "_grouped_mm": sums.grouped,
    "sum": sums.reduced, "mean": sums.averaged,
    "_softmax": rows.softmax, "softmax": rows.softmax, "_log_softmax": rows.log_softmax,
    "log_softmax": rows.log_softmax, "logsumexp": rows.logsumexp,
    "native_layer_norm": rows.layer_norm, "layer_norm": rows.layer_norm,
    "rms_norm": rows.rms_norm, "_fused_rms_norm": rows.rms_norm,
    "scaled_dot_product_attention": attention.attention,
    "_scaled_dot_product_flash_attention_for_cpu": attention.attention,
    "_scaled_dot_product_flash_attention": attention.attention,
    "_scaled_dot_product_efficient_attention": attention.attention,
    "_scaled_dot_product_cudnn_attention": attention.attention,
    "_scaled_dot_product_fused_attention_overrideable": attention.attention,
}  # fmt: skip
"""Ops that add up, by the name of their overloads' packet."""
_ADDING = ("index_add", "index_add_", "scatter_add", "scatter_add_")
_MOVES = frozenset({
    "_to_copy", "copy_", "fill_", "zero_", "cat", "stack", "index", "index_select", "gather", "embedding", "sort",
    "argsort", "topk", "nonzero", "arange", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like",
    "new_zeros", "new_ones", "new_full", "scalar_tensor", "scatter", "scatter_", "histc", "bincount", "one_hot",
    "max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "any", "all", "flip", "roll", "tril", "triu",
    "repeat", "repeat_interleave", "constant_pad_nd", "_unsafe_view", "floor_divide", "masked_fill_", "lift_fresh",
    "index_put_", "index_put", "index_copy", "index_copy_", "searchsorted", "bucketize", "select_scatter",
    "slice_scatter", "expand_copy", "view_copy",
})  # fmt: skip
"""Ops that put numbers elsewhere, compare or count them: nothing is rounded but where a dtype changes."""
_BY_ROW = {"mm": "self", "addmm": "mat1", "linear": "input"}
"""GEMMs of which any row can be computed alone, with the argument that has these rows."""
_GEMMS = ("mm", "addmm", "linear", "bmm", "_grouped_mm")
_COUNTING = ("cumsum", "prod")
"""Sums and products that are exact, of whole numbers."""


@dataclass(frozen=True)
class Calls:
    """The calls of one side that lead from other values to `value`, the id of what the last of them gives. `handed`: by
    id, what they are handed in place of what they were recorded to read.
    """

    side: Side
    calls: Sequence[Call]
    value: int
    handed: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """Whether some of them add up: without a sum there is no order."""
        return any(_name(call) in {*SUMS, *_ADDING} and _floats(self.side, call) for call in self.calls)

    def rows(self, way: Way, rows: Tensor) -> Tensor:
        """The value in one way, at some of its rows: int64 [n] -> [n, C]. For a single large GEMM perhaps only the
        first of these rows.

        Raises NotDrawnError if a call can't be run again.
        """
        again = _Rerun(self.side, way, self.handed)
        if len(self.calls) == 1 and _name(self.calls[0]) in _BY_ROW and not way.native:
            return again.of_rows(self.calls[0], rows[: self._fitting()])
        return as_rows(again.of(self.calls, self.value))[rows]

    def written(self) -> bool:
        """Whether the products of the GEMMs are few enough to be added one after the other.

        Raises NotDrawnError if they are too many to be run again at all.
        """
        if len(self.calls) == 1 and _name(self.calls[0]) in _BY_ROW:
            return True
        count = sum(_products(self.side, call) for call in self.calls)
        if count > MOST:
            raise NotDrawnError(f"its GEMMs add up {count:,} products, and {MOST:,} are run again at most")
        return count <= PRODUCTS

    def _fitting(self) -> int:
        """How many rows of a GEMM have so few products that these are written out."""
        call = self.calls[0]
        rows = row_count(self.side.value(next(iter(call.outputs.values()))).shape)
        return max(1, PRODUCTS * rows // max(1, _products(self.side, call)))


def as_rows(x: Tensor) -> Tensor:
    """A value as its rows, [rows, C]."""
    return x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)


def row_count(shape: Sequence[int]) -> int:
    """How many rows a value of a shape has."""
    return torch.Size(shape[:-1]).numel()


def _name(call: Call) -> str:
    return call.name.removeprefix("aten.").partition(".")[0]


def _floats(side: Side, call: Call) -> bool:
    numbers = (*call.outputs.values(), *call.written.values())
    return any(_dtype(side.value(number)).is_floating_point for number in numbers)


def _dtype(value: Value) -> torch.dtype:
    dtype = getattr(torch, value.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise NotDrawnError(f"{value.dtype} is no dtype of torch's")
    return dtype


def _products(side: Side, call: Call) -> int:
    """The products of a GEMM: rows and columns of what it gives, times how many are added."""
    if _name(call) not in _GEMMS or not call.outputs:
        return 0
    first = call.inputs.get("1" if _name(call) == "addmm" else "0")
    inner = side.value(first).shape[-1:] if first is not None else ()
    out = side.value(next(iter(call.outputs.values()))).shape
    return torch.Size((*out, *inner)).numel()


class _Rerun:
    """Values by their ids as they are computed."""

    def __init__(self, side: Side, way: Way, handed: Mapping[int, Tensor]) -> None:
        self.side, self.way = side, way
        self.values: dict[int, Tensor | Added] = {}
        for number, tensor in handed.items():
            value = side.value(number)
            if tuple(tensor.shape) != tuple(value.shape) or tensor.dtype != _dtype(value):
                raise NotDrawnError("what B read has another shape or dtype")
            self.values[number] = self._laid(self._as_read(tensor), value)

    def of(self, calls: Sequence[Call], value: int) -> Tensor:
        for call in calls:
            self._call(call)
        return self.read(value)

    def of_rows(self, call: Call, rows: Tensor) -> Tensor:
        """Some rows of what a single GEMM gives, [n, C]."""
        a = arguments(call, self.read, self._unwritten)
        name = _BY_ROW[_name(call)]
        (number,) = call.outputs.values()
        x = as_rows(a[name])[rows]
        a = replace(a, by_name={**a.by_name, name: x}, out=(_dtype(self.side.value(number)),))
        out = SUMS[_name(call)](a, self.way)
        assert isinstance(out, Tensor)
        return out

    def read(self, number: int) -> Tensor:
        """A value: computed here, or a view of one that is, or as it was recorded."""
        computed = self.values.get(number)
        if isinstance(computed, Added):
            computed = self.values[number] = self._laid(computed.total(self.way), self.side.value(number))
        if computed is not None:
            return computed
        root = self.side.root_of(number)
        if root in self.values:
            base, value = self.side.value(root), self.side.value(number)
            whole = self.read(root)
            offset = whole.storage_offset() + value.offset - base.offset
            return whole.as_strided(value.shape, value.strides, offset)
        if self.side.value(root).label == "unwritten":
            return self._unwritten(number)
        tensor = self.side.tensor(number)
        if tensor is None:
            raise NotDrawnError("whole inputs were not kept")
        if tensor.numel() > LARGEST:
            raise NotDrawnError("the values are too large to run again here")
        return self._as_read(tensor)

    def _as_read(self, tensor: Tensor) -> Tensor:
        return tensor.double() if self.way.exact and tensor.is_floating_point() else tensor

    def _call(self, call: Call) -> None:
        if call.level != "op":
            raise NotDrawnError(f"no ops were recorded in {call.path} {call.name}")
        name = _name(call)
        if name.startswith("empty") or not (call.outputs or call.written):
            return
        accumulates = name in _ADDING and not self.way.native
        before = self.values.get(call.inputs.get("0", -1)) if accumulates else None
        a = arguments(call, self._reader(call, skip_first=isinstance(before, Added)), self._unwritten)
        numbers = list((call.written or call.outputs).values())
        a = replace(a, out=tuple(_dtype(self.side.value(number)) for number in numbers))
        if accumulates and a.out[0].is_floating_point:
            first = before if isinstance(before, Added) else a["self"]
            self._give(call, [sums.added(a, self.way, first)])
            return
        result = self._computed(name, a, call)
        self._give(call, list(result) if isinstance(result, (tuple, list)) else [result])

    def _reader(self, call: Call, *, skip_first: bool) -> Callable[[int], Tensor]:
        """Reads all but the first argument where that is a sum whose order is still open."""
        first = call.inputs.get("0")
        return lambda number: torch.empty(0) if skip_first and number == first else self.read(number)

    def _unwritten(self, number: int) -> Tensor:
        value = self.side.value(number)
        dtype = _dtype(value)
        dtype = torch.float64 if self.way.exact and dtype.is_floating_point else dtype
        return torch.zeros(value.shape, dtype=dtype)

    def _computed(self, name: str, a: Arguments, call: Call) -> Any:
        native = self.way.native
        if name in SUMS and a.out[0].is_floating_point and not native:
            return SUMS[name](a, self.way)
        op = overload(call.name)
        if torch.Tag.nondeterministic_seeded in op.tags:
            raise NotDrawnError(f"{call.name} draws random numbers")
        pointwise = torch.Tag.pointwise in op.tags
        whole = name in {*_COUNTING, *SUMS} and not any(dtype.is_floating_point for dtype in a.out)
        if name == "index_put_" and a["accumulate"]:
            raise NotDrawnError(f"{call.name} adds up, and its orders are not drawn here")
        if not (pointwise or whole or name in _MOVES or op.is_view or (native and name in {*SUMS, *_ADDING})):
            raise NotDrawnError(f"{call.name} is neither elementwise nor a sum whose orders are drawn here")
        if (
            pointwise
            and rows.approximates(name, a.by_name.get("exponent"))
            and a.out[0].is_floating_point
            and not native
        ):
            return rows.function(a, self.way)
        arguments = {key: value.clone() if isinstance(value, Tensor) else value for key, value in a.by_name.items()}
        if self.way.exact:
            arguments = {key: _widened(value) for key, value in arguments.items()}
        return op(**arguments)

    def _give(self, call: Call, results: Sequence[Tensor | Added]) -> None:
        """Hand out what a call gave, by the ids that were recorded; where it is no such value, the call was another."""
        numbers = list((call.written or call.outputs).values())
        for number, result in zip(numbers, results, strict=False):
            value = self.side.value(number)
            if isinstance(result, Added):
                self.values[number] = result
            elif tuple(result.shape) != tuple(value.shape) or not self._has_dtype(result, value):
                raise NotDrawnError(f"{call.name} gives another shape or dtype than was recorded")
            else:
                self.values[number] = self._laid(result, value)

    def _has_dtype(self, result: Tensor, value: Value) -> bool:
        dtype = _dtype(value)
        return result.dtype == (torch.float64 if self.way.exact and dtype.is_floating_point else dtype)

    def _laid(self, result: Tensor, value: Value) -> Tensor:
        """As it lay in memory, which views of it go by."""
        if not value.strides or result.stride() == tuple(value.strides):
            return result
        return torch.empty_strided(tuple(value.shape), tuple(value.strides), dtype=result.dtype).copy_(result)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else value
    return value
