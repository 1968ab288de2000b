"""Predicts how likely each token is to flip, from one run of the reference and from noise measured on other tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from moeparity.bisection.flips.observe import Ranking, Rankings, selected
from moeparity.engine.values import assemble
from moeparity.engine.view import NodeView
from moeparity.metrics.routing import cut, flips
from moeparity.ops.kernels.router import ranks_logits, router
from moeparity.plan.schedule.cases import Case
from moeparity.plan.sides import REFERENCE, SIDES

KEPT = 2048
"""For each router, the noise of at most this many calibration tokens is kept."""
SHARE = 0.05
"""A lift compares this fraction of tokens, those ranked first, with all tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The gate before one router. weight: reads it, float [E, hidden]. outputs: by case, the dtype to which the
    candidate rounds the logits.
    """

    weight: Callable[[], Tensor]
    outputs: Mapping[Case, torch.dtype]

    def unrounded(self, x: Tensor) -> Tensor:
        """Logits of x [..., hidden] in fp32, before the gate's own rounding: [..., E]."""
        return F.linear(x.float(), self.weight().float())


@dataclass(slots=True)
class GateNoise:
    """Runs on both sides: which tokens flipped, and how far the gates' different inputs moved the logits.

    gates: router -> its gate. attention_mask: bool [B, T], tokens that count.
    noise: router -> fp32 [n, E], n <= `KEPT`: gate(candidate's input) - gate(reference's input), unrounded. Tokens that
        flipped in an earlier layer are left out, since what a flip does to an input is not small noise.
    flip_mask: bool [B, T], the expert set of some layer differs.
    """

    gates: Mapping[str, Gate]
    attention_mask: Tensor
    noise: dict[str, Tensor] = field(default_factory=dict)
    flip_mask: Tensor = field(init=False)
    _inputs: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with no flip."""
        self.flip_mask = torch.zeros_like(self.attention_mask, dtype=torch.bool)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(*SIDES) or view.regions:
            return
        if view.node.op.role.gates:
            inputs = [_input(view, side) for side in SIDES]
            self._inputs[view.wave[0]] = inputs[1].float() - inputs[0].float()
        elif view.node.name in self.gates and view.wave[0] in self._inputs:
            rows = slice(*view.wave)
            mask, name = self.attention_mask[rows], view.node.name
            shifts = self.gates[name].unrounded(self._inputs.pop(view.wave[0])[mask & ~self.flip_mask[rows]])
            noise = self.noise.get(name, shifts[:0])
            self.noise[name] = torch.cat([noise, shifts[: KEPT - len(noise)]])
            _, flip_rows = flips(*(view.tensor(side)[mask] for side in SIDES))
            self.flip_mask[rows].masked_scatter_(mask, self.flip_mask[rows][mask] | flip_rows)


@dataclass(slots=True, kw_only=True)
class NearTies:
    """Predicts flips from a run of the reference and from the noise of other tokens.

    At every router, noise drawn from `noise` is added to the logits of `gate_walker` (the candidate's gate on the
    reference's inputs) before they are rounded, and the candidate's router chooses. p of a layer is the fraction of
    `draws` in which it chooses other experts than the reference did. Layers are taken as independent: a token stays
    with the product of (1 - p).

    gate_walker: its name. gates: router -> its gate. routers: router -> the rankings of the reference and of
        the candidate, by case.
    stays: fp64 [B, T], the probability of no flip. layer: int64 [B, T], place of the layer with the largest p.
    margin: fp64 [B, T], the smallest distance, over layers, of the lowest chosen selection score from the highest other
        one.
    """

    gate_walker: str
    gates: Mapping[str, Gate]
    routers: Mapping[str, tuple[Rankings, Rankings]]
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
        """Start with nothing seen."""
        self.stays = torch.ones_like(self.attention_mask, dtype=torch.float64)
        self.layer = torch.zeros_like(self.attention_mask, dtype=torch.int64)
        self.margin = torch.full_like(self.stays, torch.inf)
        self._greatest = torch.zeros_like(self.stays)

    @property
    def probability(self) -> Tensor:
        """fp64 [B, T]: the probability that the expert set of some layer differs."""
        return 1 - self.stays

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if not view.ran(REFERENCE, self.gate_walker) or view.regions:
            return
        if view.node.op.role.gates:
            logits, gate_logits = (view.tensor(side) for side in (REFERENCE, self.gate_walker))
            self._inputs[view.wave[0]] = (_input(view, REFERENCE), logits, gate_logits)
        elif view.node.name in self.noise and view.wave[0] in self._inputs:
            self._router(view, slice(*view.wave))

    def _router(self, view: NodeView, rows: slice) -> None:
        mask, name = self.attention_mask[rows], view.node.name
        values = self._inputs.pop(view.wave[0])
        logits, all_ids, (reference, candidate) = values[1], view.tensor(REFERENCE), self.routers[name]
        place, gate = list(self.routers).index(name), self.gates[name]
        generator = torch.Generator(device=logits.device).manual_seed((self.seed << 32) + (place << 20) + view.wave[0])
        probability = torch.zeros_like(self.stays[rows])
        for case, tokens in view.tokens_by_case(self.gate_walker, candidate).items():
            own_mask = mask & tokens.to(mask.device)
            x, _, gate_logits = (value[own_mask] for value in values)
            noisy_logits = _NoisyLogits(
                gate.unrounded(x), gate_logits, gate.outputs[case], self.noise[name], candidate[case], generator
            )
            probability.masked_scatter_(own_mask, noisy_logits.flips(all_ids[own_mask], self.draws))
        ids = all_ids[mask]
        self.stays[rows] *= 1 - probability
        greater = probability > self._greatest[rows]
        self._greatest[rows] = torch.where(greater, probability, self._greatest[rows])
        self.layer[rows] = torch.where(greater, place, self.layer[rows])
        _, scores = selected(view, REFERENCE, reference, logits)
        if ids.shape[-1] < scores.shape[-1]:
            expert_cut = cut(scores[mask], ids)
            margins = torch.full_like(self.margin[rows], torch.inf)
            margins.masked_scatter_(mask, expert_cut.margin * expert_cut.ulp)
            self.margin[rows] = torch.minimum(self.margin[rows], margins)


@dataclass(frozen=True, slots=True)
class _NoisyLogits:
    """One router's logits, and how to add noise to them.

    unrounded: fp32 [N, E], of the reference's inputs. gate_logits: [N, E], what the candidate's gate makes of these
    inputs.
    noise: fp32 [n, E].
    """

    unrounded: Tensor
    gate_logits: Tensor
    output: torch.dtype
    noise: Tensor
    ranking: Ranking
    generator: torch.Generator

    def flips(self, ids: Tensor, draws: int) -> Tensor:
        """fp64 [N]: the fraction of draws whose expert set is not that of `ids`, int64 [N, K]."""
        counts = torch.zeros(len(ids), dtype=torch.float64, device=ids.device)
        near_rows = self._near(ids).nonzero().flatten()
        if not len(near_rows) or not len(self.noise):
            return counts
        unrounded, reference_sets = self.unrounded[near_rows], ids[near_rows].sort(-1).values
        # What the candidate's gate does besides rounding once, such as adding in another order.
        deviation = self.gate_logits[near_rows].float() - self._rounded(unrounded)
        for _ in range(draws):
            row = torch.randint(len(self.noise), (len(near_rows),), generator=self.generator, device=ids.device)
            logits = (self._rounded(unrounded + self.noise[row]) + deviation).to(self.gate_logits.dtype)
            draw_ids, _ = router(logits.unsqueeze(0), w=self.ranking.w, p=self.ranking.p, at=self.ranking.at)
            counts[near_rows] += (draw_ids[0].sort(-1).values != reference_sets).any(-1)
        return counts / draws

    def _rounded(self, logits: Tensor) -> Tensor:
        return logits.to(self.output).float()

    def _near(self, ids: Tensor) -> Tensor:
        """bool [N]: tokens that some row of the noise may flip.

        All tokens, if the rank of an expert is not a monotone function of its logit: with a correction bias, with
        groups, or with scores rounded so coarsely that different logits tie.
        """
        p, at = self.ranking.p, self.ranking.at
        coarse = at["scores"].itemsize < torch.float32.itemsize and not (p["by_logits"] or ranks_logits(at))
        if "bias" in self.ranking.w or p["groups"] > 1 or coarse or ids.shape[-1] == self.unrounded.shape[-1]:
            return torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        expert_mask = torch.zeros_like(self.unrounded, dtype=torch.bool).scatter(1, ids, value=True)
        low, high = (torch.inf, -torch.inf)
        least, greatest = (
            self.unrounded.masked_fill(~expert_mask, low).amin(-1),
            self.unrounded.masked_fill(expert_mask, high).amax(-1),
        )
        span = (self.noise.amax(-1) - self.noise.amin(-1)).max() if len(self.noise) else 0.0
        # The logits of two experts are each rounded, and moved by the candidate's deviation; then scores are rounded.
        step = torch.finfo(self.output).eps * self.unrounded.abs().amax(-1)
        deviation = (self.gate_logits.float() - self._rounded(self.unrounded)).abs().amax(-1)
        return least - greatest <= span + 2 * (step + deviation) + 4 * torch.finfo(torch.float32).eps


def lift(scores: Tensor, flip_mask: Tensor, share: float = SHARE) -> float:
    """How much more often the `share` of tokens with the highest scores flips than all tokens do.

    At most 1 / (fraction of flipped tokens); about 1 for a ranking that knows nothing; NaN if nothing flipped. scores:
    any float [N]; flip_mask: bool [N]. Equal scores are ranked by position.
    """
    top_rows = scores.sort(descending=True, stable=True).indices[: max(1, round(share * len(scores)))]
    if not bool(flip_mask.any()):
        return float("nan")
    return float(flip_mask[top_rows].double().mean() / flip_mask.double().mean())


def _input(view: NodeView, side: str) -> Tensor:
    """What a gate reads in the whole wave."""
    blocks = view.inputs[side][0]
    assert blocks is not None, "a gate reads its input"
    return assemble(blocks, view.batch)
