"""Kernel of `selective_scan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from moeparity.numerics.rounding import add, product, rounded
from moeparity.ops.kernels.exponentials import softplus
from moeparity.ops.selective_scan import ZEROS


def selective_scan(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    dt: torch.Tensor,
    *,
    w: Mapping[str, torch.Tensor],
    p: Mapping[str, Any],
    at: Mapping[str, Any],
    state: torch.Tensor | None = None,
    ends: Sequence[int] = (),
) -> tuple[torch.Tensor, ...]:
    """x, dt [B, T, I], b, c [B, T, N] -> [B, T, I], then for each of `ends` the state [B, I, N] behind that token, as
    `state` is the one before the first (None: zeros).
    """
    inner, x = at["inner"], x.transpose(1, 2).contiguous()
    steps = add(dt.transpose(1, 2), w["dt_bias"][:, None], at["dt"])
    steps = rounded(softplus(steps, at["softplus"]), at["dt"]).to(inner)[..., None]
    decays = torch.exp(-torch.exp(w["a_log"].to(inner))[None, :, None, :] * steps)
    increments = steps * b[:, None].to(inner) * x[..., None].to(inner)
    starts_anew = state is None or at["start"] == ZEROS
    behind = torch.zeros_like(decays[:, :, 0]) if starts_anew or state is None else state.to(inner)
    products, states = [], dict[int, torch.Tensor]()
    for token in range(x.shape[-1]):
        behind = decays[:, :, token] * behind + increments[:, :, token]
        column = rounded(c[:, token], at["read"]).unsqueeze(-1)
        products.append(torch.matmul(rounded(behind, at["read"]), column)[..., 0])
        if token + 1 in ends:
            states[token + 1] = behind
    skip = product(x, w["d"][:, None], at["skip"])
    output = add(torch.stack(products, -1), skip, at["output"])
    return output.transpose(1, 2), *(states[end] for end in ends)
