"""Near ties: how likely each token is to flip, from one run of the reference and from noise seen on other tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.bisection.flips.observe import Ranking
from moeparity.engine.lockstep import NodeView
from moeparity.engine.values import assemble
from moeparity.metrics.routing import cut, flips
from moeparity.ops.kernels.router import ranks_logits, router, selection

KEPT = 2048
"""Calibration tokens whose noise is kept per router."""
SHARE = 0.05
"""The share of tokens that a lift is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What stands before one router: its weight, float [E, hidden], made when asked for, and the dtype to which the
    candidate rounds the logits.
    """

    weight: Callable[[], Tensor]
    output: torch.dtype

    def unrounded(self, x: Tensor) -> Tensor:
        """Logits of x [..., hidden] in fp32, before the gate's own rounding: [..., E]."""
        return F.linear(x.float(), self.weight().float())


@dataclass(slots=True)
class Moved:
    """What both sides run on the same tokens show: which tokens flipped, and how far their gates' inputs moved logits.

    gates: router -> its gate. attention_mask: bool [B, T], tokens that count.
    noise: router -> fp32 [n, E], n <= `KEPT`: gate(candidate's input) - gate(reference's input), unrounded, of tokens
        that flipped in no earlier layer: where a flip changed the input, it is no small noise any more.
    flipped: bool [B, T], the expert set of some layer differs.
    """

    sides: tuple[str, str]
    gates: Mapping[str, Gate]
    attention_mask: Tensor
    noise: dict[str, Tensor] = field(default_factory=dict)
    flipped: Tensor = field(init=False)
    _inputs: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing flipped yet."""
        self.flipped = torch.zeros_like(self.attention_mask, dtype=torch.bool)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(*self.sides) or view.regions:
            return
        if view.node.op.gates:
            inputs = [_input(view, side) for side in self.sides]
            self._inputs[view.wave[0]] = inputs[1].float() - inputs[0].float()
        elif view.node.name in self.gates and view.wave[0] in self._inputs:
            rows = slice(*view.wave)
            mask, name = self.attention_mask[rows], view.node.name
            moved = self.gates[name].unrounded(self._inputs.pop(view.wave[0])[mask & ~self.flipped[rows]])
            known = self.noise.get(name, moved[:0])
            self.noise[name] = torch.cat([known, moved[: KEPT - len(known)]])
            _, flipped = flips(*(view.tensor(side)[mask] for side in self.sides))
            self.flipped[rows].masked_scatter_(mask, self.flipped[rows][mask] | flipped)


@dataclass(slots=True, kw_only=True)
class NearTies:
    """Predicts flips from the reference alone, with the noise of other tokens.

    At every router the logits of `gated` (the candidate's gate on the reference's inputs) get noise drawn from `noise`
    before they are rounded, and the candidate's own router chooses: p of a layer is the share of `draws` in which it
    chooses other experts than the reference did. Layers are taken as independent: 1 - product of (1 - p).

    reference, gated: walkers. gates: router -> its gate; routers: router -> the reference's ranking, the candidate's.
    stays: fp64 [B, T], the probability of no flip. layer: int64 [B, T], place of the layer with the greatest p.
    margin: fp64 [B, T], the least difference between the lowest chosen selection score and the greatest other one.
    """

    reference: str
    gated: str
    gates: Mapping[str, Gate]
    routers: Mapping[str, tuple[Ranking, Ranking]]
    noise: Mapping[str, Tensor]
    attention_mask: Tensor
    draws: int
    seed: int
    stays: Tensor = field(init=False)
    layer: Tensor = field(init=False)
    margin: Tensor = field(init=False)
    _greatest: Tensor = field(init=False)
    _inputs: dict[int, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing seen."""
        self.stays = torch.ones_like(self.attention_mask, dtype=torch.float64)
        self.layer = torch.zeros_like(self.attention_mask, dtype=torch.int64)
        self.margin = torch.full_like(self.stays, torch.inf)
        self._greatest = torch.zeros_like(self.stays)

    @property
    def probability(self) -> Tensor:
        """fp64 [B, T]: that some layer's expert set differs."""
        return 1 - self.stays

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(self.reference, self.gated) or view.regions:
            return
        if view.node.op.gates:
            own, gated = (view.tensor(side) for side in (self.reference, self.gated))
            self._inputs[view.wave[0]] = (_input(view, self.reference), own, gated)
        elif view.node.name in self.noise and view.wave[0] in self._inputs:
            self._router(view, slice(*view.wave))

    def _router(self, view: NodeView, rows: slice) -> None:
        mask, name = self.attention_mask[rows], view.node.name
        x, own, gated = (value[mask] for value in self._inputs.pop(view.wave[0]))
        ids, (reference, candidate) = view.tensor(self.reference)[mask], self.routers[name]
        place = list(self.routers).index(name)
        seed = torch.Generator(device=own.device).manual_seed((self.seed << 32) + (place << 20) + view.wave[0])
        unrounded = self.gates[name].unrounded(x)
        drawn = _Drawn(unrounded, gated, self.gates[name].output, self.noise[name], candidate, seed)
        p = drawn.flips(ids, self.draws)
        found = torch.zeros_like(self.stays[rows]).masked_scatter_(mask, p)
        self.stays[rows] *= 1 - found
        better = found > self._greatest[rows]
        self._greatest[rows] = torch.where(better, found, self._greatest[rows])
        self.layer[rows] = torch.where(better, place, self.layer[rows])
        _, ranked = selection(own.unsqueeze(0), w=reference.w, p=reference.p, at=reference.at)
        if ids.shape[-1] < ranked.shape[-1]:
            found_cut = cut(ranked[0], ids)
            plain = torch.full_like(self.margin[rows], torch.inf)
            plain.masked_scatter_(mask, found_cut.margin * found_cut.ulp)
            self.margin[rows] = torch.minimum(self.margin[rows], plain)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """One router's logits with noise: `unrounded` fp32 [N, E] of the reference's inputs, `gated` [N, E] what the
    candidate's gate makes of them, `noise` fp32 [n, E].
    """

    unrounded: Tensor
    gated: Tensor
    output: torch.dtype
    noise: Tensor
    candidate: Ranking
    generator: torch.Generator

    def flips(self, ids: Tensor, draws: int) -> Tensor:
        """fp64 [N]: the share of draws whose expert set is not that of `ids` int64 [N, K]."""
        found = torch.zeros(len(ids), dtype=torch.float64, device=ids.device)
        near = self._near(ids).nonzero().flatten()
        if not len(near) or not len(self.noise):
            return found
        unrounded, expected = self.unrounded[near], ids[near].sort(-1).values
        # What the candidate's gate does beyond rounding once, such as another order of its sum.
        beyond = self.gated[near].float() - self._rounded(unrounded)
        for _ in range(draws):
            row = torch.randint(len(self.noise), (len(near),), generator=self.generator, device=ids.device)
            logits = (self._rounded(unrounded + self.noise[row]) + beyond).to(self.gated.dtype)
            chosen, _ = router(logits.unsqueeze(0), w=self.candidate.w, p=self.candidate.p, at=self.candidate.at)
            found[near] += (chosen[0].sort(-1).values != expected).any(-1)
        return found / draws

    def _rounded(self, logits: Tensor) -> Tensor:
        return logits.to(self.output).float()

    def _near(self, ids: Tensor) -> Tensor:
        """bool [N]: tokens that some row of the noise may flip; all where the rank is no monotone function of a logit,
        as with a correction bias, groups, or scores rounded so coarsely that unlike logits tie.
        """
        p, at = self.candidate.p, self.candidate.at
        coarse = at["scores"].itemsize < torch.float32.itemsize and not ranks_logits(at)
        if "bias" in self.candidate.w or p["groups"] > 1 or coarse or ids.shape[-1] == self.unrounded.shape[-1]:
            return torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        chosen = torch.zeros_like(self.unrounded, dtype=torch.bool).scatter(1, ids, value=True)
        low, high = (torch.inf, -torch.inf)
        margin = self.unrounded.masked_fill(~chosen, low).amin(-1) - self.unrounded.masked_fill(chosen, high).amax(-1)
        span = (self.noise.amax(-1) - self.noise.amin(-1)).max() if len(self.noise) else 0.0
        # Two roundings of the logits, one of each expert, and the candidate's own deviation; and those of scores.
        step = torch.finfo(self.output).eps * self.unrounded.abs().amax(-1)
        beyond = (self.gated.float() - self._rounded(self.unrounded)).abs().amax(-1)
        return margin <= span + 2 * (step + beyond) + 4 * torch.finfo(torch.float32).eps


def lift(scores: Tensor, flipped: Tensor, share: float = SHARE) -> float:
    """How much more often the `share` of tokens with the greatest scores flips than all do: at most 1 / (share of
    flipped tokens), and 1 for a ranking that knows nothing; NaN where nothing flipped.

    scores any float [N], flipped bool [N]. Equal scores go by position.
    """
    kept = scores.sort(descending=True, stable=True).indices[: max(1, round(share * len(scores)))]
    return float(flipped[kept].double().mean() / flipped.double().mean()) if bool(flipped.any()) else float("nan")


def _input(view: NodeView, side: str) -> Tensor:
    """What a gate reads, for the whole wave."""
    blocks = view.inputs[side][0]
    assert blocks is not None, "a gate reads its input"
    return assemble(blocks, view.wave)
