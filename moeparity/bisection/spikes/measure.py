"""Which tokens spike over the draws of an order of arrival, in how many of them, and which trial ends each spike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.per_token.data import PerToken
from moeparity.bisection.spikes.data import (
    CAUSES,
    EARLIER_ROUTES,
    NOT_TOLD,
    NOT_TRIED,
    ONE_FLIP,
    OWN_ROUTES,
    UNLIKELY,
    Cause,
    Shared,
    Spikes,
    SpikingDraw,
    SpikingToken,
)
from moeparity.bisection.spikes.observe import SPIKES, DrawValues, spikes
from moeparity.bisection.spikes.search import TRIED, Tried, reachable
from moeparity.bisection.spikes.show import reading
from moeparity.bisection.study import Study
from moeparity.metrics.interval import token_mean
from moeparity.metrics.registry import METRICS

METRIC: Final = "nemo-rl/token_mult_prob_error"
LISTED: Final = 20
"""How many tokens are listed, those with the highest factors first."""
_LEFT: Final = 0.5
"""A trial that leaves more of |delta| than this fraction does not end a spike, though it may fall below the bound."""
_UNLIKELY_P: Final = 0.1
_RARE: Final = 0.05
_SpikeCauses = Mapping[tuple[int, int, int], str]
"""The cause of each spike, by draw, sequence and column."""


def measure(of: Context) -> Spikes | None:
    """The spikes; None if the recipe asks for none, and without a token to count."""
    drawn, wanted = of.observed.of_watch(SPIKES), of.study.recipe.spikes
    if drawn is None or wanted is None or not bool(drawn.counts.flatten(1).any(-1).all()):
        return None
    spiking = drawn.counts & spikes(drawn.values[0], wanted.above)
    causes = _causes(drawn, spiking, of.observed.of_search(TRIED) or (), wanted.above)
    draws = tuple(_draws(drawn, spiking))
    alarm = METRICS[METRIC].alarm_above
    assert alarm is not None
    scored = int(drawn.counts[0].sum())
    counted = Counter(causes.values())
    tokens = {name: len({place[1:] for place, cause in causes.items() if cause == name}) for name in CAUSES}
    margins = _margins(of[PerToken], drawn)
    unread = Spikes(
        above=wanted.above,
        alarm=alarm,
        scored=scored,
        draws=draws,
        median=_median([draw.mean for draw in draws]),
        draws_above=sum(draw.mean > alarm for draw in draws) / len(draws),
        rate=token_mean(spiking.flatten(1).sum(-1).double(), torch.full((len(draws),), float(scored))),
        tokens=int(spiking.any(0).sum()),
        always=int(spiking.all(0).sum()),
        spikes=int(spiking.sum()),
        causes=tuple(Cause(name=name, spikes=counted[name], tokens=tokens[name]) for name in CAUSES),
        shared=tuple(_shared(drawn, spiking, margins)),
        listed=tuple(_tokens(of.study, drawn, spiking, causes, margins)),
        reading=(),
    )
    return replace(unread, reading=tuple(reading(unread)))


def _draws(drawn: DrawValues, spiking: Tensor) -> Iterator[SpikingDraw]:
    for draw, (delta, counts, of_draw) in enumerate(zip(drawn.values[0], drawn.counts, spiking, strict=True)):
        excess = torch.where(counts, delta.abs().expm1(), 0.0)
        total, sequences = excess.sum(), counts.any(-1)
        means = excess[sequences].sum(-1) / counts[sequences].sum(-1)
        yield SpikingDraw(
            draw=draw,
            mean=1 + float(total / counts.sum()),
            highest_sequence=1 + float(means.max()),
            highest=1 + float(excess.max()),
            spikes=int(of_draw.sum()),
            carried=float(excess[of_draw].sum() / total) if float(total) else 0.0,
        )


def _causes(drawn: DrawValues, spiking: Tensor, tried: Sequence[Tried], above: float) -> _SpikeCauses:
    trials = {(trial.draw, trial.sequence, trial.column): trial for trial in tried}
    places = [(draw, sequence, column) for draw, sequence, column in spiking.nonzero().tolist()]
    return {place: _cause(drawn, place, trials.get(place), above) for place in places}


def _cause(drawn: DrawValues, place: tuple[int, int, int], tried: Tried | None, above: float) -> str:
    """The first trial that ends a spike; a spike that no route reaches needs none with forced routes."""
    delta = float(drawn.values[(0, *place)])

    def ends(remaining: float) -> bool:
        return abs(remaining) <= min(math.log(above), _LEFT * abs(delta))

    if tried is None and reachable(drawn, *place):
        return NOT_TRIED
    if tried is not None:
        rungs = ((ONE_FLIP, tried.first_flip), (OWN_ROUTES, tried.own_routes), (EARLIER_ROUTES, tried.all_routes))
        ending = next((name for name, remaining in rungs if ends(remaining)), None)
        if ending is not None:
            return ending
    return UNLIKELY if ends(float(drawn.values[(1, *place)])) else NOT_TOLD


def _margins(per_token: PerToken, drawn: DrawValues) -> Tensor:
    """The reference's margins at the position before each token, fp32 [L, B, T]; NaN where they are not known."""
    margins = torch.full(drawn.flips.shape[1:], torch.nan)
    of_positions = torch.from_numpy(per_token.margin)
    if of_positions.shape == margins.shape:
        margins[..., 1:] = of_positions[..., :-1]
    return margins


def _shared(drawn: DrawValues, spiking: Tensor, margins: Tensor) -> Iterator[Shared]:
    """What spikes have in common more often than all tokens of all draws."""
    flipped = torch.zeros_like(spiking)
    flipped[..., 1:] = drawn.flips.any(1)[..., :-1]
    earlier = flipped.long().cumsum(-1).bool() & ~flipped
    kl = drawn.values[2]
    moved = torch.stack(
        [of_draw > _quantile(of_draw[counts]) for of_draw, counts in zip(kl, drawn.counts, strict=True)]
    )
    traits = {
        f"P(token) below {_UNLIKELY_P:g}": drawn.values[3] < math.log(_UNLIKELY_P),
        f"KL over the vocabulary among the highest {_RARE:.0%} of the draw": moved,
    }
    if drawn.flips.shape[1]:
        traits["own route differs in some layer"] = flipped
        traits["only routes of earlier tokens differ"] = earlier
    nearest = margins.nan_to_num(math.inf).amin(0) if len(margins) else torch.full_like(kl[0], math.inf)
    finite = nearest[drawn.counts[0] & nearest.isfinite()]
    if len(finite):
        least = -_quantile(-finite)
        traits[f"a router's margin of at most {float(least):.3g} ulps"] = (nearest <= least).expand_as(spiking)
    for name, holds in traits.items():
        yield Shared(name=name, of_spikes=_share(holds[spiking]), of_all=_share(holds[drawn.counts]))


def _quantile(values: Tensor) -> Tensor:
    """The bound of the highest `_RARE` of these values."""
    return values.double().quantile(1 - _RARE) if len(values) else torch.tensor(torch.nan, dtype=torch.float64)


def _share(holds: Tensor) -> float:
    return float(holds.double().mean()) if holds.numel() else math.nan


def _tokens(
    study: Study, drawn: DrawValues, spiking: Tensor, causes: _SpikeCauses, margins: Tensor
) -> Iterator[SpikingToken]:
    factors = drawn.values[0].abs().exp()
    highest = torch.where(spiking, factors, 0.0).amax(0)
    places = spiking.any(0).nonzero().tolist()
    places.sort(key=lambda place: -float(highest[tuple(place)]))
    scored = drawn.counts[0]
    for sequence, column in places[:LISTED]:
        of_draws = spiking[:, sequence, column]
        layer = _first_layer(drawn.flips[of_draws, :, sequence, column - 1])
        margin = math.nan if layer is None else float(margins[layer, sequence, column])
        yield SpikingToken(
            sequence=sequence,
            token=column - study.grid.spans[sequence][0],
            token_id=int(study.tokens.input_ids[sequence, column]),
            log_p=float(drawn.values[3, 0, sequence, column]),
            label=_label(study, sequence, column),
            draws=int(of_draws.sum()),
            highest=float(highest[sequence, column]),
            median=_median(factors[:, sequence, column].tolist()),
            causes=Counter(cause for place, cause in causes.items() if place[1:] == (sequence, column)),
            flips=int(drawn.flips[:, :, sequence, column - 1].any(-1).sum()),
            layer=None if layer is None else _layers(study)[layer],
            margin=margin,
            margin_rank=math.nan if layer is None else _share(margins[layer][scored] < margin),
        )


def _first_layer(flipped: Tensor) -> int | None:
    """The router, by its index, at which a token's route most often differs first; flipped: bool [draws, L]."""
    firsts = Counter(int(row.nonzero()[0]) for row in flipped if bool(row.any()))
    return min(firsts, key=lambda layer: (-firsts[layer], layer)) if firsts else None


def _layers(study: Study) -> list[int | None]:
    return [node.layer for node in study.model.graph.nodes if node.op.role.routes]


def _label(study: Study, sequence: int, column: int) -> str:
    labels = study.tokens.labels
    return "" if labels is None else study.tokens.label_names[int(labels[sequence, column])]


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))


MEASURE = Measure(gives=Spikes, measure=measure, needs=(PerToken,), watch=SPIKES, search=TRIED)
