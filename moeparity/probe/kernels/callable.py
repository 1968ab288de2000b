"""A compiled kernel as a callable of one of the probe's kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from moeparity.errors import MoeparityError, listed
from moeparity.probe.kernels.launch import Kernel
from moeparity.probe.target import KINDS, Function

_FEW = 8
"""How many columns are used to look for races."""
Arguments = tuple[dict[str, torch.Tensor], dict[str, float]]
"""Tensors by name, and sizes by name."""


def _rows(x: torch.Tensor) -> Arguments:
    return {"x": x}, {"rows": x.shape[0], "n": x.shape[1]}


def _linear(x: torch.Tensor, weight: torch.Tensor) -> Arguments:
    return {"x": x, "weight": weight}, {"rows": x.shape[0], "n": x.shape[1], "columns": weight.shape[0]}


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> Arguments:
    return {"x": x, "weight": weight}, {"tokens": x.shape[0], "hidden": x.shape[1], "eps": eps}


def _combine(rows: torch.Tensor, weights: torch.Tensor) -> Arguments:
    return {"rows": rows, "weights": weights}, dict(zip(("tokens", "slots", "hidden"), rows.shape, strict=True))


def _slots(x: torch.Tensor) -> Arguments:
    """The sums of x [M, n] as the M elements of one token whose n rows have weight 1."""
    rows = x.t().unsqueeze(0)
    return _combine(rows, torch.ones(rows.shape[:2]))


_KINDS: Mapping[str, Callable[..., Arguments]] = {
    "sum": _rows,
    "softmax": _rows,
    "linear": _linear,
    "rms_norm": _norm,
    "combine": _combine,
}


def function_of(kernel: Kernel, name: str) -> Function:
    """The kernel as a callable. Raises MoeparityError if it is of none of the probe's kinds.

    A combine that takes no weights, or weights wider than its rows, is probed as a sum of rows: the probe gives both in
    one dtype, so it can't tell whether products of wider numbers are contracted.
    """
    kind = kernel.file.computes
    if kind not in _KINDS:
        raise MoeparityError(
            f"{name}: a kernel that computes {kind} is not probed nor compared with an order; {listed(_KINDS)} are. "
            "Compare it with a node: `moeparity kernel certify ... --plan CHECKPOINT --against NODE`."
        )
    arguments = _KINDS[kind]
    if kind == "combine" and kernel.input_dtypes.get("weights", torch.float64) != kernel.dtype:
        kind, arguments = "sum", _slots

    def call(*operands: torch.Tensor | float) -> torch.Tensor:
        out = kernel(*arguments(*operands))["out"]
        return out.reshape(-1) if kind == "sum" else out

    def race(n: int, m: int, width: int) -> str:
        return kernel.race(*arguments(*_random(kind, kernel.dtype, n, m, min(width, _FEW))))

    return Function(name, call, KINDS[kind], race=race, rests_on=lambda: kernel.rests_on)


def _random(kind: str, dtype: torch.dtype, n: int, m: int, width: int) -> list[torch.Tensor | float]:
    """Random numbers with which to call it."""
    draw = torch.Generator().manual_seed(n)
    by_kind: Mapping[str, list[tuple[int, ...]]] = {
        "linear": [(m, n), (width, n)],
        "rms_norm": [(m, n), (n,)],
        "combine": [(m, n, width), (m, n)],
    }
    shapes = by_kind.get(kind, [(m, n)])
    tensors: list[torch.Tensor | float] = [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]
    return [*tensors, 1e-6] if kind == "rms_norm" else tensors
