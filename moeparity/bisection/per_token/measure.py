"""Puts each token's metrics and routes into arrays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moeparity.bisection.context import Context
from moeparity.bisection.flips.census import Census
from moeparity.bisection.flips.observe import CENSUS
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.per_token.observe import TOKEN_VALUES


def measure(of: Context) -> PerToken | None:
    """Every token; None if the pass had no observer for it."""
    values, tokens = of.observed.of_watch(TOKEN_VALUES), of.plan.tokens
    if values is None:
        return None
    first = torch.zeros_like(tokens.loss_mask)
    first[:, 0] = True
    k3, kl, delta, reference, candidate = (value.numpy() for value in values)
    return PerToken(
        input_ids=tokens.input_ids.cpu().numpy(),
        real=tokens.attention_mask.cpu().numpy(),
        scored=(tokens.loss_mask & ~first).cpu().numpy(),
        k3=k3,
        kl=kl,
        delta=delta,
        reference_logprob=reference,
        candidate_logprob=candidate,
        **_routes(of.observed.of_watch(CENSUS), tuple(tokens.input_ids.shape)),
    )


def _routes(census: Census | None, shape: tuple[int, ...]) -> dict[str, Any]:
    """The fields that a census gives; {} for a model without routers."""
    census = census or Census(torch.zeros(0, *shape, dtype=torch.uint8), [], 0)
    places = sorted(census.flips)
    unknown = torch.full(shape, torch.nan)
    cuts = {
        name: torch.stack([by_place.get(place, unknown) for place in places] or [unknown])[: len(places)].numpy()
        for name, by_place in (("margin", census.margin), ("perturbation", census.perturbation))
    }
    rows = [_flips_of(index, census.experts.get(place, [])) for index, place in enumerate(places)]
    flips = torch.cat(rows) if rows else torch.zeros(0, 3, dtype=torch.int64)
    return {
        "layers": torch.tensor([census.layers[place] for place in places], dtype=torch.int64).numpy(),
        "flips": census.map[places].numpy(),
        **cuts,
        "flipped": flips[:, :3].numpy(),
        "experts": flips[:, 3:].reshape(len(flips), 2, -1 if len(flips) else 0).numpy(),
    }


def _flips_of(index: int, waves: list[Tensor]) -> Tensor:
    """The flips of one layer sorted by sequence and position, each row led by the layer's index."""
    flips = torch.cat(waves)
    order = sorted(range(len(flips)), key=lambda row: (int(flips[row, 0]), int(flips[row, 1])))
    return torch.nn.functional.pad(flips[order], (1, 0), value=index)
