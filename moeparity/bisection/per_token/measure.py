"""Keeps k3, KL and delta of every token, and puts them into arrays together with its routes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.flips.census import Census
from moeparity.bisection.flips.observe import CENSUS
from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.updates.measure import LOG_PROBS, split_of
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.plan.sides import CANDIDATE, REFERENCE

_VALUES = 5
"""The number of values kept for each token."""


@dataclass(slots=True)
class Tokens(SectionObserver):
    """Metrics of each token, as `TokenMetrics` defines them.

    values: fp32 [5, B, T] on the CPU: k3, KL(candidate || reference), delta, log P of the token on the reference and on
        the candidate; 0 where no token is scored.
    """

    output: str
    input_ids: Tensor
    loss_mask: Tensor
    sampled_from: Literal["candidate", "reference"]
    values: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.values = torch.zeros(_VALUES, *self.input_ids.shape)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.name != self.output:
            return
        rows = slice(*view.wave)
        tokens = self.input_ids[rows], self.loss_mask[rows]
        metrics = seen_metrics(view, REFERENCE, CANDIDATE, *tokens, self.sampled_from)
        sides = (
            (metrics.scorer, metrics.sampler) if self.sampled_from == "candidate" else (metrics.sampler, metrics.scorer)
        )
        values = (metrics.k3, metrics.kl_candidate_reference, metrics.delta, *sides)
        self.values[:, rows] = torch.stack(values).float()

    def part(self, rows: slice) -> Tensor:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.values[:, rows]

    def join(self, part: Tensor, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.values[:, rows] = part

    @property
    def result(self) -> Tensor:
        """The values."""
        return self.values


def observer(study: Study, trials: Trials) -> Tokens:
    """The observer of both sides."""
    ids, _, scored = study.outcomes_on_device
    return Tokens(
        output=study.model.graph.scores,
        input_ids=ids,
        loss_mask=scored,
        sampled_from=study.recipe.tokens.sampler,
    )


def bytes_per_token(study: Study) -> int:
    """How many bytes the observer keeps for each token."""
    return _VALUES * torch.float32.itemsize


TOKEN_VALUES: Final[Watch[Tensor]] = Watch("per_token", observer, bytes_per_token=bytes_per_token)


def measure(of: Context) -> PerToken | None:
    """Every token; None if the pass had no observer for it."""
    values, tokens = of.observed.of_watch(TOKEN_VALUES), of.study.tokens
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
        update_parts=_update_parts(of),
        **_routes(of.observed.of_watch(CENSUS), tuple(tokens.input_ids.shape)),
    )


def _update_parts(of: Context) -> Any:
    """The parts of each token; None where no weights change."""
    across = split_of(of.study, of.observed.of_watch(LOG_PROBS))
    if across is None:
        return None
    finite, parts = across.split.finite, torch.stack(across.split.parts)
    values = torch.zeros(len(parts), *of.study.tokens.input_ids.shape, dtype=torch.float64)
    values[:, across.sequence[finite], across.position[finite]] = parts[:, finite]
    return values.numpy()


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


MEASURE = Measure(gives=PerToken, measure=measure, watch=TOKEN_VALUES)
