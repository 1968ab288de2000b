"""Tier 2: where both sides' routes are known, whether the trainer's are the sampler's, at the right places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from moeparity.errors import counted
from moeparity.logs.diagnosis.finding import Evidence, Finding
from moeparity.logs.diagnosis.intervals import rate
from moeparity.logs.record import Sequence
from moeparity.metrics.replay import Replay, Trap, displaced, replayed

REPLAYED: Final = "replayed routes"
FILLER: Final = "filler routes"
_PLACES: Final = (
    Trap(name="the same token and layer", says="", replay=Replay()),
    *displaced(layers=2, pads=False, furthest=2),
)
NAMES: Final = (REPLAYED, *(f"{REPLAYED} of {trap.name}" for trap in _PLACES[1:]), FILLER)
"""Every name that a finding may have."""

_ALL = 0.98
"""A trainer that takes over routes has the sampler's experts at this fraction of token-layers at least."""
_OTHERS = 0.5
"""Below this fraction, at the same token and layer, routes are no longer those of the same text by another rounding."""
_APART = 0.1
"""By so much a place has to be ahead of the right one: in a text that repeats itself neighbours are routed alike."""
_CHANCE = 8
"""With so many slots a token, in all layers, no router chooses the experts 0 to K - 1 everywhere by chance."""


@dataclass(slots=True)
class Replays:
    """What is kept of a log's sequences that have routes of both sides.

    filler, filled: tokens that the trainer sends to the experts 0 to K - 1 in all layers, and the sampler does not;
    and all with a route of the trainer. slots: of a token, in all layers. _equal, _compared: for each sequence, by
    place, at how many token-layers the experts are the same, and at how many both sides have a route.
    """

    filler: int = 0
    filled: int = 0
    slots: int = 0
    _equal: list[Tensor] = field(default_factory=list)
    _compared: list[Tensor] = field(default_factory=list)

    def note(self, sequence: Sequence) -> None:
        """Take in a sequence. One whose sides have routes of different shapes is refused where flips are counted."""
        sampler, trainer = (sequence.extra.get(key) for key in ("routed_experts", "trainer_routed_experts"))
        if sampler is None or trainer is None or sampler.shape != trainer.shape:
            return
        real = torch.ones(1, len(sampler), dtype=torch.bool)
        chosen = trainer.sort(-1).values
        equal, compared = [], []
        for place in _PLACES:
            theirs = replayed(sampler[None], real, (0,), place.replay)[0].sort(-1).values
            there = (theirs >= 0).all(-1) & (chosen >= 0).all(-1)
            equal.append((there & (theirs == chosen).all(-1)).sum())
            compared.append(there.sum())
        self._equal.append(torch.stack(equal).double())
        self._compared.append(torch.stack(compared).double())
        first = torch.arange(trainer.shape[-1])
        is_first, of_sampler = ((routes == first).flatten(1).all(1) for routes in (trainer, sampler))
        self.filler += int((is_first & ~of_sampler).sum())
        self.filled += int((trainer >= 0).flatten(1).all(1).sum())
        self.slots = trainer[0].numel()

    def findings(self) -> tuple[Finding, ...]:
        """What was found; nothing where no sequence has routes of both sides."""
        if not self._compared:
            return ()
        return (self._of_places(), *self._of_filler())

    def _of_places(self) -> Finding:
        equal, compared = torch.stack(self._equal, 1), torch.stack(self._compared, 1)
        rates = {
            place.name: rate(f"same experts as of {place.name}", equal[at], compared[at])
            for at, place in enumerate(_PLACES)
            if bool(compared[at].any())
        }
        same = rates.pop(_PLACES[0].name, None)
        if same is None:
            reason = "No token has routes of both sides."
            return Finding(tier="inference path", name=REPLAYED, verdict="not tested", reason=reason)
        best = max(rates, key=lambda name: rates[name].value, default="")
        evidence = (same, *((rates[best],) if best else ()))
        if best and rates[best].value >= max(_ALL, same.value + _APART):
            return Finding(
                tier="inference path",
                name=f"{REPLAYED} of {best}",
                verdict="named",
                reason=f"The trainer's experts are those that the sampler chose for {best}.",
                evidence=evidence,
                advice="Align the routes that the trainer replays with its own tokens and MoE layers.",
            )
        if same.value < _OTHERS or (best and rates[best].value > same.value):
            reason = "The trainer's experts are the sampler's neither in place nor elsewhere, as far as is tried."
            return Finding(tier="inference path", name=REPLAYED, verdict="undecided", reason=reason, evidence=evidence)
        reason = (
            "The trainer's experts are the sampler's, at the same tokens and layers."
            if same.value >= _ALL
            else "The trainer's experts are more often the sampler's at the same token and layer than elsewhere."
        )
        return Finding(tier="inference path", name=REPLAYED, verdict="ruled out", reason=reason, evidence=(same,))

    def _of_filler(self) -> tuple[Finding, ...]:
        if not self.filler or self.slots < _CHANCE:
            return ()
        reason = (
            f"The trainer sends {self.filler:,} of {counted(self.filled, 'token')} to the experts 0 to K - 1 in every "
            "layer, where the sampler does not: it replays what fills in for routes that it has not."
        )
        advice = "Give the trainer the routes of all tokens, or let its routers choose where there is none."
        count = Evidence(name="tokens with filler routes", value=self.filler, unit="tokens")
        finding = Finding(
            tier="inference path", name=FILLER, verdict="named", reason=reason, evidence=(count,), advice=advice
        )
        return (finding,)
