"""Softmaxes and norms of rows, and elementwise functions, each with its sums in the order of a way."""

from __future__ import annotations

import torch
from torch import Tensor

from moeparity.evidence.diff.rerun.call_arguments import Arguments
from moeparity.evidence.diff.rerun.way import NotDrawnError, Way


def softmax(a: Arguments, way: Way) -> Tensor:
    """exp(x - max), divided by the sum of these."""
    e, total, _ = _exponentials(a, way)
    return _back(way.narrowed(e / total, a.out[0]), a)


def log_softmax(a: Arguments, way: Way) -> Tensor:
    """x - max - log(sum of exp(x - max))."""
    _, total, shifted = _exponentials(a, way)
    return _back(way.narrowed(shifted - way.function(torch.log, total), a.out[0]), a)


def logsumexp(a: Arguments, way: Way) -> Tensor:
    """log(sum of exp(x - max)) + max, over one axis."""
    if len(a["dim"]) != 1:
        raise NotDrawnError("a logsumexp over several axes")
    x = way.wide(a["self"]).movedim(a["dim"][0], -1)
    highest = x.amax(-1, keepdim=True)
    total = way.sum(way.function(torch.exp, x - highest))
    out = way.narrowed(way.function(torch.log, total) + highest.squeeze(-1), a.out[0])
    return out.unsqueeze(a["dim"][0]) if a["keepdim"] else out


def _exponentials(a: Arguments, way: Way) -> tuple[Tensor, Tensor, Tensor]:
    x = way.wide(a["self"].to(a["dtype"]) if a.by_name.get("dtype") is not None and not way.exact else a["self"])
    x = x.movedim(a["dim"], -1)
    shifted = x - x.amax(-1, keepdim=True)
    e = way.function(torch.exp, shifted)
    return e, way.sum(e).unsqueeze(-1), shifted


def _back(out: Tensor, a: Arguments) -> Tensor:
    return out.movedim(-1, a["dim"])


def layer_norm(a: Arguments, way: Way) -> tuple[Tensor, ...]:
    """(x - mean) * rstd * weight + bias; or x * rstd - mean * rstd first, as torch's CPU kernel: draws take turns."""
    x = way.wide(a["input"]).flatten(-len(a["normalized_shape"]))
    mean = (way.sum(x) / x.shape[-1]).unsqueeze(-1)
    centred = x - mean
    rstd = way.function(torch.rsqrt, (way.sum(centred * centred) / x.shape[-1]).unsqueeze(-1) + a["eps"])
    normal = centred * rstd if way.seed is None or way.seed % 2 else x * rstd - mean * rstd
    out = _weighted(normal, a, way)
    return tuple(
        way.narrowed(value, dtype) for value, dtype in zip((out, mean, rstd), (*a.out, *[a.out[0]] * 3), strict=False)
    )


def rms_norm(a: Arguments, way: Way) -> tuple[Tensor, ...]:
    """x * rsqrt(mean of squares + eps) * weight, rounded once at the end."""
    x = way.wide(a["input"]).flatten(-len(a["normalized_shape"]))
    eps = torch.finfo(a["input"].dtype).eps if a["eps"] is None else a["eps"]
    rstd = way.function(torch.rsqrt, (way.sum(x * x) / x.shape[-1]).unsqueeze(-1) + eps)
    out = _weighted(x * rstd, a, way)
    return way.narrowed(out, a.out[0]), way.narrowed(rstd, a.out[1] if len(a.out) > 1 else rstd.dtype)


def _weighted(normal: Tensor, a: Arguments, way: Way) -> Tensor:
    out = normal
    if a["weight"] is not None:
        out = out * way.wide(a["weight"]).flatten()
    if a.by_name.get("bias") is not None:
        out = out + way.wide(a["bias"]).flatten()
    return out.reshape(a["input"].shape)


FUNCTIONS = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log1p", "rsqrt", "sigmoid", "silu", "tanh", "gelu", "erf", "cos", "sin",
    "softplus", "mish", "pow",
})  # fmt: skip
"""Elementwise functions that libraries compute with errors of their own; all others are rounded correctly."""
_SQUARE = 2


def approximates(name: str, exponent: object = None) -> bool:
    """Whether libraries compute an elementwise function with errors of their own; a square is a product."""
    return name.removesuffix("_") in FUNCTIONS and exponent != _SQUARE


def function(a: Arguments, way: Way) -> Tensor:
    """An elementwise function of its first argument, computed wide and rounded once."""
    others = {name: value for name, value in a.by_name.items() if name != "self"}

    def on_wide(wide: Tensor) -> Tensor:
        value: Tensor = a.op(wide.clone(), **others)
        return value

    return way.narrowed(way.function(on_wide, way.wide(a["self"])), a.out[0])
