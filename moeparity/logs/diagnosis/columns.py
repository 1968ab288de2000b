"""The per-token quantities that the tests of a diagnosis sum over each sequence.

Natural logarithms; r = log P_sampler, t = log P_trainer as reported, delta = t - r, rho = exp(delta). Each statistic is
a ratio of two sums, in [-1, 1]: what the cause explains, over the size of what there is to explain (column `*_gross`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from moeparity.metrics.chunk import Chunk
from moeparity.metrics.quantities import k3

SHIFTS = (-4, -3, -2, -1, 1, 2, 3, 4)
BASES: Mapping[str, float] = {
    "rollout in log2": 1 / math.log(2),
    "rollout in log10": 1 / math.log(10),
    "trainer in log2": math.log(2),
    "trainer in log10": math.log(10),
}
"""r / t if one side's logarithms have another base."""
OUTSIDE = 0.2
"""PPO's usual clip range: many objectives clip or mask a token with |rho - 1| above it."""

# Beyond this many nats exp(delta) tells nothing more (verl's clamp).
_SAFETY = 20.0
# Offsets are cut at this size, so that small ones count by size and few large ones can't outvote them.
_CORNER = 0.1
# The cut of distances between log-probabilities that may belong to different tokens.
_FAR = 5.0
_HALF = math.log(0.5)
# A log-probability nearer to 0 than this may be rounding of an fp32 log-softmax (logits of 30 have an ulp of 2e-6).
_ROUNDING = 1e-5
# By how much the other side must differ from an exact 0 to be more than such rounding.
_CERTAIN = 1e-4
_TAIL = math.log(0.05)
_SURE = math.log(0.97)
_CONFIDENT = math.log(0.9)
_LEAST_LOG = -20.0


def columns(chunk: Chunk) -> dict[str, Tensor]:
    """All columns of a chunk by name, fp64 [N]. -inf and placeholder zeros are counted only in columns of their own."""
    r, t = chunk.rollout, chunk.trainer
    positive = (r > _CERTAIN) | (t > _CERTAIN)
    impossible = (r == -math.inf) | (t == -math.inf)
    zero_r, zero_t = (r == 0) & (t < _HALF), (t == 0) & (r < _HALF)
    usable = ~(impossible | zero_r | zero_t)
    r, t = torch.where(usable, r, 0.0), torch.where(usable, t, 0.0)
    masks = {
        "impossible": impossible,
        "zero_rollout": zero_r & ~impossible,
        "zero_trainer": zero_t & ~impossible,
        "all_zero_rollout": chunk.rollout == 0,
        "all_zero_trainer": chunk.trainer == 0,
        "sure_trainer": _sure(chunk.trainer),
        "sure_rollout": _sure(chunk.rollout),
        "sure_zero_rollout": _sure(chunk.trainer) & (chunk.rollout == 0),
        "sure_zero_trainer": _sure(chunk.rollout) & (chunk.trainer == 0),
        "below_half_trainer": chunk.trainer < _HALF,
        "below_half_rollout": chunk.rollout < _HALF,
        "positive": positive,
        "usable": usable,
        "certain_rollout": usable & (r == 0) & (t < -_CERTAIN),
        "certain_trainer": usable & (t == 0) & (r < -_CERTAIN),
    }
    return {
        **{name: column.double() for name, column in masks.items()},
        **_ratios(r, t),
        **_offsets(r, t),
        **_logits_of_modes(r, t),
        **_correlation(r, t, usable),
        **_formats(r, t),
        **_calibration(chunk, usable),
    }


def _sure(side: Tensor) -> Tensor:
    """Tokens so likely that top_p up to 0.97, or min_p from 0.04 on, leaves them alone, but not so likely that fp32
    rounds their P to 1.
    """
    return (side > _SURE) & (side < -_CERTAIN)


def _ratios(r: Tensor, t: Tensor) -> dict[str, Tensor]:
    """rho - 1 and 1/rho - 1, and the moments that give the exponent in p_trainer ~ p_rollout^kappa."""
    delta = (t - r).clamp(-_SAFETY, _SAFETY)
    ratio, inverse = delta.expm1(), (-delta).expm1()
    return {
        "side": (delta / 2).tanh(),
        "side_square": (delta / 2).tanh().square(),
        "abs_delta": delta.abs(),
        "k3": k3(delta),
        "ratio": ratio,
        "ratio_gross": ratio.abs(),
        "inverse": inverse,
        "inverse_gross": inverse.abs(),
        "kappa_x": r * ratio,
        "kappa_y": t * ratio,
        "kappa_inverse_x": t * inverse,
        "kappa_inverse_y": r * inverse,
        "outside": (ratio.abs() > OUTSIDE).double(),
        "beyond_2": (delta.abs() > math.log(2)).double(),
        "confident_k3": torch.where(torch.maximum(r, t) > _CONFIDENT, k3(delta), 0.0),
    }


def _logits_of_modes(r: Tensor, t: Tensor) -> dict[str, Tensor]:
    """Second moments of both sides' logits log P/(1-P) at tokens with P between 0.5 and 0.97, which say how much noise
    is left beside a power; and the mass 1 - P that is not the drawn token's.
    """
    mode = ((r + t) / 2 > _HALF) & (torch.maximum(r, t) < _SURE)
    logit_r, logit_t = (torch.where(mode, _logit(side), 0.0) for side in (r, t))
    return {
        "modes": mode.double(),
        "logit_rollout": logit_r.square(),
        "logit_trainer": logit_t.square(),
        "logit_both": logit_r * logit_t,
        "others_rollout": -r.expm1(),
        "others_trainer": -t.expm1(),
    }


def _logit(side: Tensor) -> Tensor:
    return side - torch.log(-torch.expm1(side.clamp(max=-1e-300)))


def _offsets(r: Tensor, t: Tensor) -> dict[str, Tensor]:
    """Bounded offsets between the sides: of all tokens, of those that the distribution prefers, and of those in its
    tail.

    A token with P > 1/2 is the mode of its context. Its offset is taken of the logit, log P/(1-P), which noise moves by
    the same amount however near P is to 1. `rest` is all tokens but those with an exact 0.
    """
    middle = (r + t) / 2
    mode = (middle > _HALF) & (torch.minimum(r, t) < -_ROUNDING)
    in_mode = torch.where(mode, _logit(t) - _logit(r), 0.0).clamp(-_CORNER, _CORNER)
    bulk = (t - r).clamp(-_CORNER, _CORNER)
    tail = torch.where(middle < _TAIL, bulk, 0.0)
    nonzero = torch.where((r != 0) & (t != 0), bulk, 0.0)
    return {
        "bulk": bulk,
        "bulk_gross": bulk.abs(),
        "rest": nonzero,
        "rest_gross": nonzero.abs(),
        "mode": in_mode,
        "mode_gross": in_mode.abs(),
        "tail": tail,
        "tail_gross": tail.abs(),
    }


def _correlation(r: Tensor, t: Tensor, usable: Tensor) -> dict[str, Tensor]:
    x, y = r.clamp(min=_LEAST_LOG), t.clamp(min=_LEAST_LOG)
    return {"x": x, "y": y, "xx": x * x, "yy": y * y, "xy": x * y, "pairs": usable.double()}


def _formats(r: Tensor, t: Tensor) -> dict[str, Tensor]:
    """Distances between the sides as they are, and with one side read in another format."""
    scaled = {f"distance {name}": _distance(r, base * t) for name, base in BASES.items()}
    return {
        "distance": _distance(r, t),
        **scaled,
        "distance negated": _distance(-r.abs(), -t.abs()),
        "distance rollout P": _distance(_log(r), t),
        "distance trainer P": _distance(r, _log(t)),
        "distance both P": _distance(_log(r), _log(t)),
        "positive_rollout": (r > _CERTAIN).double(),
        "positive_trainer": (t > _CERTAIN).double(),
    }


def _distance(x: Tensor, y: Tensor) -> Tensor:
    return (x - y).abs().clamp(max=_FAR)


def _log(p: Tensor) -> Tensor:
    """The log of what may be a probability; a value far from all others if it can't be one."""
    return torch.where((p > 0) & (p <= 1 + _CERTAIN), p, 1e-300).log()


def _calibration(chunk: Chunk, usable: Tensor) -> dict[str, Tensor]:
    """t + H: a token's log-probability compared with its expectation under the trainer's own distribution."""
    entropy = chunk.values.get("entropy")
    if entropy is None:
        nothing = torch.zeros_like(chunk.trainer)
        return {"surprise": nothing, "surprises": nothing}
    measurable = usable & entropy.isfinite()
    return {"surprise": torch.where(measurable, chunk.trainer + entropy, 0.0), "surprises": measurable.double()}


def shifted_distances(chunk: Chunk) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For each k of `SHIFTS`: distances of r[i] to t[i] and to t[i + k], and the sequences, each [M] for M tokens i.

    A distance is 0 if position i + k is not scored in the same sequence, or if a log-probability is -inf.
    """
    possible = (chunk.rollout > -math.inf) & (chunk.trainer > -math.inf)
    r, t = (torch.where(possible, side, 0.0) for side in (chunk.rollout, chunk.trainer))
    distance = _distance(r, t)
    for by in SHIFTS:
        size = max(0, chunk.tokens.numel() - abs(by))
        tokens, targets = slice(max(0, -by), max(0, -by) + size), slice(max(0, by), max(0, by) + size)
        pair = (chunk.sequence[tokens] == chunk.sequence[targets]) & possible[tokens] & possible[targets]
        pair &= chunk.position[targets] - chunk.position[tokens] == by
        yield distance[tokens] * pair, _distance(r[tokens], t[targets]) * pair, chunk.sequence[tokens]
