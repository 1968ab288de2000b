"""An observer of every draw: what each token's probability does, and where its route differs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import Tensor

from moeparity.bisection.observers import seen_metrics
from moeparity.bisection.study import Study
from moeparity.bisection.trials import TrialKey, Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.routing import flips
from moeparity.plan.sides import CANDIDATE, REFERENCE

_VALUES: Final = 4
"""The number of values kept for each token of each draw."""


@dataclass(slots=True)
class DrawValues:
    """What was seen of D draws.

    values: fp64 [4, D, B, T], on the CPU: delta, that of the token which is the reference's likeliest there (only where
        the token spikes), KL(candidate || reference), and log P of the token in the reference, in nats; 0 at tokens
        that do not count. NaN if they are not finite.
    counts: bool [D, B, T], scored tokens that both sides keep. flips: bool [D, L, B, T], another expert set.
    """

    values: Tensor
    counts: Tensor
    flips: Tensor


@dataclass(slots=True)
class Draws(SectionObserver):
    """Compares the two walkers of each draw, at the routers and at the log-probabilities.

    pairs: the reference and the candidate of each draw. routers: the index of each router, by name. above: the factor
    from which on a token spikes.
    """

    pairs: Sequence[tuple[WalkerName, WalkerName]]
    routers: Mapping[str, int]
    output: str
    input_ids: Tensor
    loss_mask: Tensor
    sampled_from: Literal["candidate", "reference"]
    above: float
    drawn: DrawValues = field(init=False)

    def __post_init__(self) -> None:
        shape, draws = self.input_ids.shape, len(self.pairs)
        self.drawn = DrawValues(
            values=torch.zeros(_VALUES, draws, *shape, dtype=torch.float64),
            counts=torch.zeros(draws, *shape, dtype=torch.bool),
            flips=torch.zeros(draws, len(self.routers), *shape, dtype=torch.bool),
        )

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        rows, place = slice(*view.wave), self.routers.get(view.node.name)
        for draw, pair in enumerate(self.pairs):
            if place is not None and view.ran(*pair):
                _, differing = flips(*(view.tensor(walker) for walker in pair))
                self.drawn.flips[draw, place, rows] = differing.cpu()
            if view.node.name == self.output:
                self._values(view, draw, pair, rows)

    def _values(self, view: NodeView, draw: int, pair: tuple[WalkerName, WalkerName], rows: slice) -> None:
        ids, scored = self.input_ids[rows], self.loss_mask[rows]
        metrics = seen_metrics(view, *pair, ids, scored, self.sampled_from)
        log_p = metrics.scorer if self.sampled_from == "candidate" else metrics.sampler
        counts = metrics.scored & ~metrics.outside
        spiking = counts & spikes(metrics.delta, self.above)
        likeliest = torch.zeros_like(metrics.delta)
        if bool(spiking.any()):
            top = torch.zeros_like(ids)
            top[:, 1:] = view.tensor(pair[0])[:, :-1].argmax(-1)
            likeliest = seen_metrics(view, *pair, top, spiking.to(ids.device), self.sampled_from).delta
        values = (metrics.delta, likeliest, metrics.kl_candidate_reference, log_p)
        self.drawn.values[:, draw, rows] = torch.stack(values)
        self.drawn.counts[draw, rows] = counts

    def part(self, rows: slice) -> DrawValues:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        drawn = self.drawn
        return DrawValues(values=drawn.values[:, :, rows], counts=drawn.counts[:, rows], flips=drawn.flips[:, :, rows])

    def join(self, part: Any, rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        self.drawn.values[:, :, rows], self.drawn.counts[:, rows] = part.values, part.counts
        self.drawn.flips[:, :, rows] = part.flips

    @property
    def result(self) -> DrawValues:
        """What was seen."""
        return self.drawn


def spikes(delta: Tensor, above: float) -> Tensor:
    """Which tokens have a factor exp(|delta|) above `above`; delta: any shape, in nats. NaN does not spike."""
    return delta.abs() > math.log(above)


def pairs(keys: Collection[WalkerName]) -> list[tuple[WalkerName, WalkerName]]:
    """The reference and the candidate of each draw. A side without a sum in order of arrival is the same in all."""
    numbers = {key.draw for key in keys if isinstance(key, TrialKey) and key.kind == "arrival"}
    return [(_drawn(REFERENCE, draw, keys), _drawn(CANDIDATE, draw, keys)) for draw in sorted({0, *numbers})]


def _drawn(side: str, draw: int, keys: Collection[WalkerName]) -> WalkerName:
    key = TrialKey("arrival", side, draw)
    return key if key in keys else side


def observer(study: Study, trials: Trials) -> Draws | None:
    """The observer of all draws; None if the recipe asks for no spikes."""
    if study.recipe.spikes is None:
        return None
    ids, _, scored = study.outcomes_on_device
    routers = [node.name for node in study.model.graph.nodes if node.op.role.routes]
    return Draws(
        pairs=pairs(trials.keys()),
        routers={name: place for place, name in enumerate(routers)},
        output=study.model.graph.scores,
        input_ids=ids,
        loss_mask=scored,
        sampled_from=study.recipe.tokens.sampler,
        above=study.recipe.spikes.above,
    )


def bytes_per_token(study: Study) -> int:
    """How many bytes the observer keeps for each token."""
    if study.recipe.spikes is None:
        return 0
    routers = sum(node.op.role.routes for node in study.model.graph.nodes)
    return study.recipe.spikes.draws * (_VALUES * torch.float64.itemsize + (1 + routers) * torch.bool.itemsize)


SPIKES: Final[Watch[DrawValues]] = Watch("spikes", observer, (DrawValues,), bytes_per_token=bytes_per_token)
