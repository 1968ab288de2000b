"""Each token's metrics beside its routes, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moeparity.bisection.flips.census import Census
from moeparity.bisection.observed import Observed
from moeparity.bisection.per_token.report import PerToken
from moeparity.bisection.plan import Plan


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Every token; None where the pass did not look at them."""
    values: Tensor | None = observed.sections.get("per_token")
    if values is None:
        return {"per_token": None}
    tokens = plan.tokens
    first = torch.zeros_like(tokens.loss_mask)
    first[:, 0] = True
    k3, kl, delta = (value.numpy() for value in values)
    return {
        "per_token": PerToken(
            input_ids=tokens.input_ids.cpu().numpy(),
            real=tokens.attention_mask.cpu().numpy(),
            scored=(tokens.loss_mask & ~first).cpu().numpy(),
            k3=k3,
            kl=kl,
            delta=delta,
            **_routes(observed.sections.get("flips"), tuple(tokens.input_ids.shape)),
        )
    }


def _routes(census: Census | None, shape: tuple[int, ...]) -> dict[str, Any]:
    """What a census says of each token; nothing of a model without routers."""
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
    """The flips of one layer in the order of sequences and positions, behind the layer's place."""
    flips = torch.cat(waves)
    order = sorted(range(len(flips)), key=lambda row: (int(flips[row, 0]), int(flips[row, 1])))
    return torch.nn.functional.pad(flips[order], (1, 0), value=index)
