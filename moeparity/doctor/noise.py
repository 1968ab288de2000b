"""What legal arithmetic can do to the log-probabilities of some tokens: drawn from choices that compute the same model,
and where a record lies among the draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import NormalDist

import torch
from torch import Tensor

from moeparity.doctor.judge import Difference
from moeparity.doctor.report import BEYOND, Legal, Noise
from moeparity.doctor.routes import Flipped
from moeparity.errors import MoeparityError
from moeparity.logs.noise_gate import FLIPPED
from moeparity.metrics.interval import student
from moeparity.plan.bound import Plan
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side
from moeparity.plan.toggles import SEMANTICS, Toggle, mixed, toggles

LEVEL = 0.99
"""The fraction of clean runs that lie inside all bounds."""
DRAWS = 16
"""The number of plans whose choices are drawn, beside those of the profiles. A few tokens, whose routes flip, have the
largest differences; which tokens can flip shows only in some of the draws.
"""
_SEED = 0
_FEWEST = 3
_LARGE, _COMMON, _BESIDE = 4.0, 8, 4
"""A token is far off if it differs by `_LARGE` times the spread of engines. No hypothesis meets `_COMMON` such tokens
by chance, of which `_BESIDE` lie outside the sequence with most of them.
"""
_UPPER = 0.9
"""The quantile from which the spread above the middle is taken."""

_LARGEST = "max_abs_delta"
STATISTICS: Mapping[str, Callable[[Tensor], float]] = {
    "mean_abs_delta": lambda d: float(d.abs().mean()),
    _LARGEST: lambda d: float(d.abs().max()),
    "k3": lambda d: float((torch.expm1(-d) + d).mean()),
}
"""Statistics of d, the sampler's log P minus the trainer's in nats, by their names in `moeparity metrics`."""


def drawn(bases: Mapping[str, Plan]) -> dict[str, Plan]:
    """Plans that compute the same model as the profiles do: each a profile with half of the choices of another one, as
    far as these change roundings, orders and forms alone. Plans that an op refuses are left out.
    """
    draw = random.Random(_SEED)  # noqa: S311
    pairs = [(a, b) for a in bases for b in bases if a != b]
    plans: dict[str, Plan] = {}
    for number in range(DRAWS if pairs else 0):
        base, source = (Side(plan=bases[name], schedule=ScheduleSettings()) for name in pairs[number % len(pairs)])
        legal = [toggle for toggle in toggles(base, source) if _is_legal(toggle)]
        try:
            plans[f"draw {number}"] = mixed(base, [each for each in legal if draw.random() < 1 / 2], source).plan
        except MoeparityError:
            continue
    return plans


def _is_legal(toggle: Toggle) -> bool:
    return bool(toggle.members) and all(member.kind != SEMANTICS for member in toggle.members)


def noise(
    scores: Sequence[Tensor], recorded: Tensor, flipped: Flipped | None = None, level: float = LEVEL
) -> Noise | None:
    """How far engines without a mistake lie apart, each fp64 [N] in nats, and where a recorded difference, fp64 [N],
    lies among them; likewise for flipped routes, if there is a record of them. None if fewer than three engines have
    bits of their own.

    The bound is a prediction bound for one more pair of engines: the logarithm of a statistic is taken as normal, with
    as many degrees of freedom as there are engines less one, since pairs of them are not independent. It leaves room
    for one token that flips in none of the engines here (`_unseen`).
    """
    engines = sorted({score.numpy().tobytes(): index for index, score in enumerate(scores)}.values())
    if len(engines) < _FEWEST:
        return None
    pairs = [*combinations(engines, 2)]
    has_flips = flipped is not None and bool(flipped.legal.any())
    # A clean run is to lie inside all of them (Bonferroni).
    of_each = 1 - (1 - level) / (len(STATISTICS) + has_flips)
    unseen = torch.zeros_like(recorded)
    unseen[0] = -_unseen(torch.stack([scores[index] for index in engines]), 1 - of_each)
    statistics = []
    for name, of in STATISTICS.items():
        legal = _legal(name, of(recorded), [of(scores[a] - scores[b]) for a, b in pairs], len(engines), of_each)
        with_unseen = of(unseen) + (0.0 if name == _LARGEST else legal.middle)
        statistics.append(replace(legal, bound=max(legal.bound, with_unseen)))
    if flipped is not None and has_flips:
        parts = [float(flipped.legal[a, b]) for a, b in pairs]
        of_flips = _legal(FLIPPED, flipped.recorded, parts, len(engines), of_each)
        statistics.append(replace(of_flips, bound=min(1.0, of_flips.bound)))
    return Noise(level=level, engines=len(engines), statistics=tuple(statistics))


def may_make(of: Noise, d: Tensor) -> bool:
    """Whether legal arithmetic may make a difference as large as d, fp64 [N] in nats, by each statistic."""
    return all(STATISTICS[each.name](d) <= each.bound for each in of.statistics if each.name in STATISTICS)


def is_far_beyond(of: Noise, difference: Difference) -> bool:
    """Whether a difference is far larger than noise, and in so many tokens of several sequences that no hypothesis
    comes near all of them by chance.
    """
    large = difference.counted(difference.d).abs() > _LARGE
    of_sequences = difference.sequence[large].bincount(minlength=1)
    is_common = int(of_sequences.sum()) >= _COMMON and int(of_sequences.sum() - of_sequences.max()) >= _BESIDE
    bound = next(each.bound for each in of.statistics if each.name == "mean_abs_delta")
    return is_common and STATISTICS["mean_abs_delta"](difference.d) > BEYOND * bound


def _unseen(scores: Tensor, chance: float) -> float:
    """How far two further engines may lie apart at a token where the engines of `scores`, fp64 [engines, N] in nats,
    lie together: they lie further apart with a probability below `chance`. 0 if no such token is to be expected.

    A token flips where a gap splits its scores that is wider than the whole range of the token in the middle. As many
    tokens as flip in exactly one of n engines, divided by n, flip in the next engine and in none before it (Good and
    Turing). They are off by as much as those that flipped: the logarithm is taken as normal.
    """
    ordered = scores.sort(0).values
    gaps, places = ordered.diff(dim=0).max(0)
    flips = gaps > (ordered[-1] - ordered[0]).median()
    in_one = flips & ((places == 0) | (places == len(scores) - 2))
    expected = 2 * int(in_one.sum()) / len(scores)
    if expected <= chance:
        return 0.0
    center, spread = _center_and_spread(gaps[flips].log())
    return math.exp(center + spread * NormalDist().inv_cdf(1 - chance / expected))


def _center_and_spread(logs: Tensor) -> tuple[float, float]:
    """The median, and the standard deviation that the upper half alone has."""
    center, upper = (float(logs.quantile(part)) for part in (0.5, _UPPER))
    return center, (upper - center) / NormalDist().inv_cdf(_UPPER)


def _legal(name: str, recorded: float, of_pairs: Sequence[float], engines: int, level: float) -> Legal:
    logs = torch.tensor([math.log(value) for value in of_pairs if value > 0], dtype=torch.float64)
    # Two draws may be nearly the same engine, which widens only the lower half of the pairs.
    center, spread = _center_and_spread(logs)
    reach = student(level, engines - 1) * spread * math.sqrt(1 + 1 / engines)
    return Legal(name=name, recorded=recorded, middle=math.exp(center), bound=math.exp(center + reach))
