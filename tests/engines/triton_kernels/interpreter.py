"""Triton's interpreter on CPU with what it lacks; imported ahead of an engine's kernels, in a process of its own.

As it comes it cuts numbers off where it makes bf16 or fp8 of them, and calculates with their raw bits. Here both are
numpy dtypes of `ml_dtypes`, rounded to nearest, ties to even, fp8 saturating as `cvt.rn.satfinite` does. Further:

- numbers go to a kernel as fp32, as a GPU's launcher hands them over;
- exp, exp2, log are rounded correctly, or torch's own inside `torchs()`: neither is a GPU's approximation;
- a sum inside a tile goes from left to right, where a GPU has its threads' tree: an order that the data of a test must
  not show, or that the test writes out;
- `tl.dot` is one fp32 GEMM of numpy, or inside `in_order()` sums from left to right, and then an addition to the
  accumulator; a tensor core adds otherwise;
- nothing is contracted, where a compiler makes one fma of a product and an addition.
"""

from __future__ import annotations

import os

os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import ml_dtypes  # type: ignore[import-not-found,import-untyped,unused-ignore]
import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from moeparity.numerics.fma import fma
from moeparity.ops.kernels import exponentials

Handle = interpreter.TensorHandle
Builder = interpreter.InterpreterBuilder
NARROW = {
    tl.bfloat16: np.dtype(ml_dtypes.bfloat16),
    tl.float8e4nv: np.dtype(ml_dtypes.float8_e4m3fn),
    tl.float8e5: np.dtype(ml_dtypes.float8_e5m2),
}
RAW = {dtype: np.dtype(f"uint{8 * dtype.itemsize}") for dtype in NARROW.values()}

_dtype_of, _load, _store = interpreter._get_np_dtype, interpreter._interpreter.load, interpreter._interpreter.store
_converted = interpreter._implicit_cvt
_exponentials: list[str] = ["exact"]
_in_order: list[bool] = [False]


def _np_dtype(kind: Any) -> Any:
    if isinstance(kind, tl.pointer_type):
        return _dtype_of(kind)
    scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
    return _dtype_of(kind) if isinstance(scalar, tl.pointer_type) else NARROW.get(scalar, _dtype_of(kind))


def _cast(_: Any, source: Any, kind: Any, *mode: Any) -> Any:
    dtype, data = _np_dtype(kind.scalar), source.data
    if dtype.itemsize == 1 and dtype in RAW:
        most = float(ml_dtypes.finfo(dtype).max)
        wide = data.astype(np.float32)
        data = np.where(np.isnan(wide), wide, np.clip(wide, -most, most))
    return Handle(data.astype(dtype), kind.scalar)


class _Memory:
    """The interpreter's loads and stores, which know no dtype but numpy's own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_module, name)

    @staticmethod
    def load(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        raw = RAW.get(dtype)
        if raw is None:
            return _load(pointers, mask, other, dtype)
        return _load(pointers, mask, other.astype(dtype).view(raw), raw).view(dtype)

    @staticmethod
    def store(pointers: Any, value: Any, mask: Any) -> Any:
        raw = RAW.get(value.dtype)
        return _store(pointers, value if raw is None else np.ascontiguousarray(value).view(raw), mask)


_module = interpreter._interpreter


def _dot(_: Any, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
    left, right = a.data.astype(np.float32), b.data.astype(np.float32)
    if _in_order[0]:
        product = left[:, :1] * right[:1]
        for k in range(1, left.shape[1]):
            product = product + left[:, k : k + 1] * right[k : k + 1]
    else:
        product = np.matmul(left, right)
    return Handle((product + d.data).astype(d.data.dtype), d.dtype.scalar)


def _fma(_: Any, x: Any, y: Any, z: Any) -> Any:
    shapes = np.broadcast_arrays(x.data, y.data, z.data)
    x_, y_, z_ = (torch.from_numpy(np.ascontiguousarray(part)) for part in shapes)
    return Handle(fma(x_, y_, z_).numpy(), z.dtype.scalar)


def _elementwise(name: str, unrounded: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def step(_: Any, argument: Any) -> Any:
        data = argument.data
        if data.dtype != np.float32:
            return Handle(unrounded(data), argument.dtype.scalar)
        x = torch.from_numpy(np.array(data))
        function = getattr(torch if _exponentials[0] == "torch" else exponentials, name)
        return Handle(function(x).numpy(), argument.dtype.scalar)

    return step


def _sum(self: Any, argument: Any) -> Any:
    """From left to right along the axis, over the whole tile where none is named."""
    data = argument.handle.data
    flat, axis = (data.reshape(-1), 0) if self.axis is None else (data, self.axis)
    total = np.take(np.add.accumulate(flat, axis=axis), -1, axis=axis)
    if self.keep_dims:
        total = total.reshape([1] * data.ndim) if self.axis is None else np.expand_dims(total, axis)
    return self.to_tensor(total if total.shape else total.item(), argument.dtype)


def _as_launched(argument: Any) -> Any:
    if isinstance(argument, float):
        return tl.tensor(Handle(np.array([argument], np.float32), tl.float32), tl.float32)
    return _converted(argument)


@contextmanager
def torchs() -> Iterator[None]:
    """exp, exp2 and log are torch's inside."""
    _exponentials[0] = "torch"
    try:
        yield
    finally:
        _exponentials[0] = "exact"


@contextmanager
def in_order() -> Iterator[None]:
    """Every `tl.dot` adds up its products from left to right inside, each rounded."""
    _in_order[0] = True
    try:
        yield
    finally:
        _in_order[0] = False


@contextmanager
def scalar_ranges(module: Any) -> Iterator[None]:
    """Python's range for a module whose kernels ask its numbers for what Triton's have: `to`."""
    with patch.object(module, "range", _scalars, create=True):
        yield


def _scalars(*bounds: Any) -> Iterator[Any]:
    for number in range(*map(int, bounds)):
        yield _converted(number)


interpreter._get_np_dtype = _np_dtype
interpreter._interpreter = _Memory()
interpreter._implicit_cvt = _as_launched
interpreter.ReduceOps.sum = _sum
Builder.cast_impl = Builder.create_fp_to_fp = _cast
for _name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
    setattr(Builder, f"create_{_name}", _cast)
Builder.create_dot, Builder.create_fma = _dot, _fma
for _name in ("exp", "exp2", "log"):
    setattr(Builder, f"create_{_name}", _elementwise(_name, getattr(np, _name)))
