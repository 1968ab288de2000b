"""The routes that an engine recorded, beside those of its simulation with nothing wrong and of legal engines."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from moeparity.bisection.record.observe import same_sets
from moeparity.doctor.report import BEYOND, Clue
from moeparity.engine.view import NodeView
from moeparity.errors import TokensError, Where
from moeparity.inputs.tokens.tokenset import TokenSet, check_fits
from moeparity.output.words import percent
from moeparity.plan.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Flipped:
    """At which fraction of the scored tokens the routes that led to them differ in some MoE layer: those recorded from
    those of the trainer with nothing wrong; those of each two engines without a mistake, fp64 [engines, engines].
    """

    recorded: float
    legal: Tensor


@dataclass(slots=True)
class Flips:
    """An observer: at how many token-layers a walker picks other experts than were recorded, and two walkers than each
    other.

    recorded: int64 [B, T, MoE layers, top_k], -1 where there is no record. sampler: its walker and its name. trainer:
    its walker. legal: two walkers of engines that make no mistake, and their names. engines: all walkers of such.
    counts: by layer and first sequence of a wave, how many token-layers have a record, in how many the sampler picks
    others, in how many the two legal engines do; a pass that is begun again counts anew. apart: by first sequence of a
    wave, where the record and the engines choose other experts than each other in some layer so far: bool [1 + engines,
    1 + engines, n, T].
    """

    recorded: Tensor
    sampler: tuple[Hashable, str]
    trainer: Hashable
    legal: Sequence[tuple[Hashable, str]]
    engines: Sequence[Hashable] = ()
    counts: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    apart: dict[int, Tensor] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        layer = view.node.layer
        if not view.node.op.role.routes or layer is None or not view.ran(self.sampler[0]):
            return
        place = sorted({number for number, _ in self.counts} | {layer}).index(layer)
        record = self.recorded[slice(*view.wave), :, place]
        there = (record >= 0).all(-1)
        chosen = view.tensor(self.sampler[0])
        others = int((there & ~same_sets(record.to(chosen.device), chosen).cpu()).sum())
        walkers = [walker for walker, _ in self.legal if view.ran(walker)]
        legal = 0
        if len(walkers) > 1:
            first, second = map(view.tensor, walkers)
            legal = int((there & ~same_sets(first, second).cpu()).sum())
        self.counts[layer, view.wave[0]] = int(there.sum()), others, legal
        self.engines = [walker for walker in self.engines if view.ran(walker)]
        of_all = torch.stack([record, *(view.tensor(walker).cpu() for walker in self.engines)]).sort(-1).values
        apart = (of_all[:, None] != of_all).any(-1)
        self.apart[view.wave[0]] = apart | self.apart[view.wave[0]] if place else apart

    def flipped(self, loss_mask: Tensor, engines: Sequence[Hashable]) -> Flipped | None:
        """The fractions over the tokens of bool [B, T], for walkers of engines without a mistake, in that order; None
        if no route that led to one of the tokens is recorded, or one of the walkers was not seen.
        """
        # A token is predicted by the position before it.
        before = loss_mask.cpu().roll(-1, 1)
        before[:, -1] = False
        counted = before & (self.recorded >= 0).flatten(2).all(-1)
        if not bool(counted.any()) or not {self.trainer, *engines}.issubset(self.engines):
            return None
        apart = torch.cat([self.apart[first] for first in sorted(self.apart)], 2)
        parts = apart[..., counted].double().mean(-1)
        at = [1 + self.engines.index(engine) for engine in engines]
        return Flipped(recorded=float(parts[0, 1 + self.engines.index(self.trainer)]), legal=parts[at][:, at])


def misfit(tokens: TokenSet, graph: Graph, where: Where) -> str:
    """What is said of recorded routes that can't be the model's; "" if they can, or if there are none."""
    try:
        check_fits(tokens, graph, where)
    except TokensError as error:
        return f"the log's routes are of another model, and not compared: {error}"
    return ""


def of_routes(flips: Flips | None) -> Iterator[Clue]:
    """How often the recorded routes choose other experts than the simulation, and from which layer on more often than
    noise. Nothing without routes in the log. A flip is never called the cause, since something before it caused the
    flip.
    """
    if flips is None:
        return
    by_layer = groupby(sorted(flips.counts.items()), key=lambda item: item[0][0])
    layers = {layer: tuple(map(sum, zip(*(counts for _, counts in waves), strict=True))) for layer, waves in by_layer}
    there, others, legal = map(sum, zip(*layers.values(), strict=True))
    if not there:
        yield Clue(says="the log has a column of routes, and none is recorded in it")
        return
    share, noise = others / there, legal / there
    tokens = f"{percent(share)} of {there:,} token-layers"
    says = f"recorded routes: other experts than {flips.sampler[1]} with nothing wrong at {tokens}"
    if len(flips.legal) > 1:
        says += f"; {' and '.join(name for _, name in flips.legal)}, which make no mistake, differ at {percent(noise)}"
    first = _first_beyond(layers)
    if first is not None and share > BEYOND * noise:
        says += f"; more than noise from layer {first} on: what is wrong lies there or before"
    yield Clue(says=says)


def _first_beyond(layers: Mapping[int, Sequence[int]]) -> int | None:
    """The first layer at which surely more flips were recorded than legal engines make: by more than four standard
    deviations of a count.
    """
    beyond = (n for n, (_, others, legal) in layers.items() if others > BEYOND * legal + 4 * (legal + 1) ** 0.5)
    return next(beyond, None)
