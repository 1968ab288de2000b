"""Kernel of `position_scale`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.rounding import product, rounded, working
from moeparity.ops.position_scale import LOG1P, PLACES


def position_scale(
    x: torch.Tensor,
    positions: torch.Tensor | None,
    mask: torch.Tensor | None,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
) -> torch.Tensor:
    """x [B, T, H, D], positions int64 [B, T], mask [B, S] (for a pack [1, T, T]), of which one is read -> [B, T, H, D].

    The tokens are the last T of S.
    """
    step = working(at["factor"])
    if at["counted"] == PLACES:
        assert mask is not None
        positions = torch.arange(mask.shape[-1], device=x.device)[-x.shape[1] :].unsqueeze(0)
    assert positions is not None
    grown = torch.floor((positions.to(step) + p["first"]) / p["every"])
    logarithm = torch.log1p(grown) if at["form"] == LOG1P else torch.log(1 + grown)
    factor = rounded(1 + p["share"] * logarithm, at["factor"])
    return product(x, factor[..., None, None], at["output"])
