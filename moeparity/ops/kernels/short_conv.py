"""Kernel of `short_conv`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from moeparity.numerics import rounding
from moeparity.numerics.fma import fma
from moeparity.numerics.orders import NATIVE
from moeparity.ops.kernels.exponentials import silu
from moeparity.ops.short_conv import FURTHER, SILU, TAPS_FMA


def short_conv(
    x: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    state: torch.Tensor | None = None,
    ends: Sequence[int] = (),
) -> tuple[torch.Tensor, ...]:
    """x [B, T, C] -> [B, T, C], then for each of `ends` the inputs of the last tokens, [B, C, taps - 1], as `state` has
    them of the tokens before x (None: zeros).
    """
    further = [w[name] for name in FURTHER if name in w]
    w = {**w, "weight": torch.cat((w["weight"], *further))} if further else w
    # Of one token the strides of a view may be any, and torch lays out what it convolves by them.
    x = x.clone(memory_format=torch.contiguous_format)
    new, before = x.transpose(1, 2), w["weight"].shape[-1] - 1
    new = new.flatten(1).unsqueeze(2) if p.get("channels_first") and x.shape[:2] == (1, 1) else new
    window = None if state is None else state.to(x.dtype)
    sums = (_native if at["form"] == NATIVE else _by_taps)(window, new, w, at)
    if p["activation"] == SILU:
        sums = silu(sums if sums.dtype == at["output"] else rounding.wide(sums), at.get("logistic", NATIVE))
    output = rounding.rounded(sums[..., -new.shape[-1] :], at["output"]).transpose(1, 2)
    inputs = _behind(window, new, before) if ends else new
    return output, *(inputs[..., end : end + before] for end in ends)


def _behind(window: torch.Tensor | None, new: torch.Tensor, count: int) -> torch.Tensor:
    """New inputs [B, C, T] behind `count` earlier ones: those of the window, and zeros before it."""
    earlier = new[..., :0] if window is None else window
    return torch.cat((F.pad(earlier, (count - earlier.shape[-1], 0)), new), -1)


def _native(
    window: torch.Tensor | None, new: torch.Tensor, w: Mapping[str, torch.Tensor], at: Mapping[str, Any]
) -> torch.Tensor:
    """torch's own sums [B, C, T], perhaps behind others that nobody reads. They lie in memory as in transformers, which
    keeps as many inputs as there are taps: by where a row ends, torch's silu gives some fp32 numbers another last bit.
    Fewer tokens than taps, with none before them, lie as without a cache, which would put zeros before them.
    """
    weight, bias = w["weight"], w.get("bias")
    taps, step = weight.shape[-1], new.dtype
    if {weight.dtype, at["sum"]} != {step}:
        step = rounding.working(step, at["sum"])
    inputs = new if window is None else _behind(window, new, taps)
    is_update = window is not None and new.shape[-1] == 1
    bias = None if bias is None else bias.to(step)
    padding = 0 if is_update else taps - 1
    sums = F.conv1d(inputs.to(step), weight.to(step), bias, padding=padding, groups=weight.shape[0])
    return rounding.rounded(sums[..., -1:] if is_update else sums[..., : inputs.shape[-1]], at["sum"])


def _by_taps(
    window: torch.Tensor | None, new: torch.Tensor, w: Mapping[str, torch.Tensor], at: Mapping[str, Any]
) -> torch.Tensor:
    """The sums [B, C, T], added up tap by tap."""
    weight, bias = w["weight"], w.get("bias")
    taps, step = weight.shape[-1], rounding.working(new.dtype, at["sum"])
    inputs = _behind(window, new, taps - 1).to(step)
    sums = torch.zeros_like(new, dtype=step) + (0 if bias is None else bias.to(step)[:, None])
    for tap in range(taps):
        read, factor = inputs[..., tap : tap + new.shape[-1]], weight[:, 0, tap, None].to(step)
        if at["form"] == TAPS_FMA:
            sums = fma(read, factor.expand_as(read), sums)
        else:
            sums = sums + rounding.by_way_of(read * factor, at.get("product"))
    return rounding.rounded(sums, at["sum"])
