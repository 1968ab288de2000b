"""Kernels of `rotary` and `rope`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from moeparity.numerics.fma import fma
from moeparity.numerics.rounding import add, product, rounded, wide, working
from moeparity.ops.attribute import RefusedError


def rotary(
    positions: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions int64 [B, T], or with sections [B, T, 3] -> cos, sin [B, T, dim], computed in fp32, or in fp64 if the
    output is fp64.
    """
    step, sections = working(at["output"]), p.get("sections")
    positions = positions if sections is None else positions.movedim(-1, 0)
    inverse, scaling = inverse_frequencies(p["dim"], p["rope"], p["max_positions"], step, positions.max() + 1)
    angles = positions[..., None].to(step) * inverse.to(positions.device)
    tables = [table * scaling for table in _sines(angles, at.get("sines", "torch"))]
    in_runs = p.get("in_runs", False)
    cos, sin = tables if sections is None else [_by_section(table, sections, in_runs=in_runs) for table in tables]
    return rounded(cos, at["output"]), rounded(sin, at["output"])


def _by_section(tables: torch.Tensor, sections: Sequence[int], *, in_runs: bool) -> torch.Tensor:
    """Tables of three axes [3, B, T, dim] -> one, [B, T, dim], with each pair that of the axis that turns it."""
    table = tables[0].clone()
    pairs = table.shape[-1] // 2
    for axis in (1, 2):
        first, end, step = axis, min(3 * sections[axis], pairs), 3
        if in_runs:
            first, end, step = sum(sections[:axis]), min(sum(sections[: axis + 1]), pairs), 1
        for half in (0, pairs):
            of_axis = slice(half + first, half + end, step)
            table[..., of_axis] = tables[axis, ..., of_axis]
    return table


def _sines(angles: torch.Tensor, functions: str) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of angles [B, T, dim / 2], both halves [B, T, dim] alike."""
    if functions == "polar":
        turned = torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.real), dim=-1), torch.cat((turned.imag, turned.imag), dim=-1)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def inverse_frequencies(
    dim: int, rope: Mapping[str, Any], max_positions: int, dtype: torch.dtype, length: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """Inverse frequencies [dim / 2] in `dtype`, and a factor on cos and sin.

    They are computed on the CPU for any device, as transformers does when it builds a model. The `dynamic` frequencies
    of a `length` (int64 scalar) above `max_positions` are computed on the length's device, in the forward pass. They
    are those of a model that has seen no longer sequence before; transformers would keep those of the longest.

    Raises RefusedError for a base or a width, set by a fault, that is impossible.
    """
    if dim % 2:
        raise RefusedError("fault", f"{dim} columns cannot be rotated in pairs.")
    if not rope["rope_theta"] > 1:
        raise RefusedError("fault", f"nothing rotates with the base {rope['rope_theta']:g}. Expected a number above 1.")
    kind = rope["rope_type"]
    if kind == "dynamic":
        return 1.0 / _dynamic_powers(dim, rope, max_positions, dtype, length), 1.0
    base = rope["rope_theta"] * (rope["alpha"] ** (dim / (dim - 2)) if kind == "ntk_alpha" else 1)
    powers = base ** (torch.arange(0, dim, 2, dtype=dtype) / dim)
    if kind == "yarn":
        return _yarn(dim, rope, max_positions, powers)
    if kind == "longrope":
        # transformers hands its function no length, and so takes the short factors whatever comes.
        magnitude = "long_mscale" if length > rope["original_max_position_embeddings"] else "short_mscale"
        return 1.0 / (torch.tensor(rope["short_factor"], dtype=dtype) * powers), float(rope[magnitude])
    inverse = 1.0 / powers
    if kind == "linear":
        inverse = inverse / rope["factor"]
    return _llama3(inverse, rope) if kind == "llama3" else inverse, 1.0


def _dynamic_powers(
    dim: int, rope: Mapping[str, Any], max_positions: int, dtype: torch.dtype, length: torch.Tensor
) -> torch.Tensor:
    """theta, grown with the length, to the powers 2i / dim; up to `max_positions` it stays (almost) unchanged."""
    grown = bool(length > max_positions)
    # Until something has grown, transformers computes in Python's floats, then in 0-d tensors.
    reached = (length if dtype == torch.float32 else length.to(dtype)) if grown else max_positions
    factor = rope["factor"]
    base = rope["rope_theta"] * ((factor * reached / max_positions) - (factor - 1)) ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, device=length.device if grown else "cpu").to(dtype) / dim
    powers: torch.Tensor = base**exponents
    return powers


def _llama3(inverse: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Low frequencies are divided by `factor`, high ones kept, those between interpolated smoothly."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    trained = rope["original_max_position_embeddings"]
    wavelength = 2 * math.pi / inverse
    scaled = torch.where(wavelength > trained / low, inverse / factor, inverse)
    smooth = (trained / wavelength - low) / (high - low)
    between = ~(wavelength < trained / high) * ~(wavelength > trained / low)
    return torch.where(between, (1 - smooth) * scaled / factor + smooth * scaled, scaled)


def _yarn(dim: int, rope: Mapping[str, Any], max_positions: int, powers: torch.Tensor) -> tuple[torch.Tensor, float]:
    trained = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or max_positions / trained
    low, high = _ramp_bounds(dim, rope, trained)
    ramp = torch.clamp((torch.arange(dim // 2, dtype=powers.dtype) - low) / (high - low), 0, 1)
    keep = 1 - ramp
    return 1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep, _yarn_factor(rope, factor)


def _ramp_bounds(dim: int, rope: Mapping[str, Any], trained: int) -> tuple[float, float]:
    """The dimensions between which yarn goes from extrapolated to interpolated frequencies."""

    def dimension(rotations: float) -> float:
        return (dim * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(rope["rope_theta"]))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # As in transformers: a ramp of width 0 would divide by zero.
    return low, high + 0.001 if low == high else high


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """yarn's correction of the magnitude, for a context that is `factor` times as long."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn_factor(rope: Mapping[str, Any], factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    mscale, mscale_all = rope.get("mscale"), rope.get("mscale_all_dim")
    if mscale and mscale_all:
        return yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
    return yarn_mscale(factor)


def rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, T, H, D], k [B, T, G, D] (or [B, T, D]: one shared head) -> [B, H, T, D], [B, G, T, D]."""
    rotate = _rotate_pairs if p["interleaved"] else _rotate_halves
    cos, sin = (_table(x, p.get("width"), q.shape[-1]).unsqueeze(1) for x in (cos, sin))
    rotated = []
    for x in map(_by_head, (q, k)):
        left_over = x.shape[-1] > cos.shape[-1]
        turned = x[..., : cos.shape[-1]]
        out = rotate(turned, cos, sin, at)
        # Concatenated even with nothing to add: then the result is laid out head by head, which a GEMM may notice.
        others = [rounded(x[..., cos.shape[-1] :], at["output"])] if p["partial"] or left_over else []
        rotated.append(torch.cat((out, *others), dim=-1) if others else out)
    return rotated[0], rotated[1]


def by_head(
    q: torch.Tensor, k: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, T, H, D], k [B, T, G, D] (or [B, T, D]: one shared head) -> [B, H, T, D], [B, G, T, D], views."""
    return _by_head(q), _by_head(k)


def by_token(
    q: torch.Tensor, k: torch.Tensor, *, w: Mapping[str, torch.Tensor], p: Mapping[str, Any], at: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, H, T, D], k [B, G, T, D] -> [B, T, H, D], [B, T, G, D], views."""
    return q.transpose(1, 2), k.transpose(1, 2)


def _table(x: torch.Tensor, width: int | None, head: int) -> torch.Tensor:
    """cos or sin of the first `width` / 2 frequencies, [B, T, dim] with equal halves. Raises RefusedError."""
    if x.shape[-1] > head:
        raise RefusedError("fault", f"{x.shape[-1]} columns are to be rotated, and a head has {head}.")
    if width is None:
        return x
    if width % 2 or width > x.shape[-1]:
        raise RefusedError("fault", f"{width} columns cannot be rotated by the frequencies of {x.shape[-1]}.")
    first = x[..., : width // 2]
    return torch.cat((first, first), dim=-1)


def _by_head(x: torch.Tensor) -> torch.Tensor:
    """[B, T, H, D] -> a [B, H, T, D] view; [B, T, D] -> [B, 1, T, D]."""
    return x.unsqueeze(1) if x.dim() == 3 else x.transpose(1, 2)


def _rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return _turn(x, cos, turned, sin, at)


def _rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: Mapping[str, Any]) -> torch.Tensor:
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    even, odd = x[..., 0::2], x[..., 1::2]
    first, second = _turn(even, cos, -odd, sin, at), _turn(odd, cos, even, sin, at)
    if at["layout"] == "pairs":
        # In memory as x is, which transformers' sum of products keeps: a GEMM of few rows may depend on it.
        pairs = torch.empty_like(x, dtype=first.dtype)
        pairs[..., 0::2], pairs[..., 1::2] = first, second
        return pairs
    return torch.cat((first, second), dim=-1)


def _turn(
    x: torch.Tensor, cos: torch.Tensor, turned: torch.Tensor, sin: torch.Tensor, at: Mapping[str, Any]
) -> torch.Tensor:
    """x * cos + turned * sin."""
    contraction, products = at.get("contraction", "none"), at["products"]
    if contraction == "none":
        return add(product(x, cos, products), product(turned, sin, products), at["output"])
    if contraction == "cos":
        return rounded(fma(wide(x), wide(cos), product(turned, sin, products)), at["output"])
    return rounded(fma(wide(turned), wide(sin), product(x, cos, products)), at["output"])
