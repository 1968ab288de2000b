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

from moeparity.doctor.report import Legal, Noise
from moeparity.doctor.routes import Flipped
from moeparity.errors import MoeparityError
from moeparity.logs.noise_gate import FLIPPED
from moeparity.metrics.interval import student
from moeparity.plan.bound import BoundGraph
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side
from moeparity.plan.toggles import SEMANTICS, Toggle, mixed, toggles

LEVEL = 0.99
"""One clean run in so many lies beyond the bound."""
DRAWS = 16
"""Plans whose choices are drawn, beside those of the profiles. The largest difference is that of few tokens, whose
routes flip; which ones can, shows in some of the draws alone.
"""
_SEED = 0
_FEWEST = 3
_UPPER = 0.9
"""The quantile from which the spread above the middle is taken."""

STATISTICS: Mapping[str, Callable[[Tensor], float]] = {
    "mean_abs_delta": lambda d: float(d.abs().mean()),
    "max_abs_delta": lambda d: float(d.abs().max()),
    "k3": lambda d: float((torch.expm1(-d) + d).mean()),
}
"""Of d, the sampler's log P minus the trainer's in nats, by the names that `moeparity metrics` has for them."""


def drawn(bases: Mapping[str, BoundGraph]) -> dict[str, BoundGraph]:
    """Plans that compute the same model as the profiles do: each a profile with half of the choices of another one, as
    far as these change roundings, orders and forms alone. What an op refuses is left out.
    """
    draw = random.Random(_SEED)  # noqa: S311
    pairs = [(a, b) for a in bases for b in bases if a != b]
    plans: dict[str, BoundGraph] = {}
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
    """What lies between engines without a mistake, each fp64 [N] in nats, and the place of a recorded difference, fp64
    [N]; so of flipped routes, where there is a record of them. None if fewer than three engines have bits of their own.

    The bound is a prediction bound for one more pair of engines: the logarithm of a statistic is taken as normal, with
    as many degrees of freedom as there are engines less one, since pairs of them are not independent.
    """
    engines = sorted({score.numpy().tobytes(): index for index, score in enumerate(scores)}.values())
    if len(engines) < _FEWEST:
        return None
    pairs = [*combinations(engines, 2)]
    statistics = [
        _legal(name, of(recorded), [of(scores[a] - scores[b]) for a, b in pairs], len(engines), level)
        for name, of in STATISTICS.items()
    ]
    if flipped is not None and bool(flipped.legal.any()):
        parts = [float(flipped.legal[a, b]) for a, b in pairs]
        of_flips = _legal(FLIPPED, flipped.recorded, parts, len(engines), level)
        statistics.append(replace(of_flips, bound=min(1.0, of_flips.bound)))
    return Noise(level=level, engines=len(engines), statistics=tuple(statistics))


def _legal(name: str, recorded: float, of_pairs: Sequence[float], engines: int, level: float) -> Legal:
    logs = torch.tensor([math.log(value) for value in of_pairs if value > 0], dtype=torch.float64)
    # Two draws may be all but one engine, which widens the lower half of the pairs alone.
    center, upper = (float(logs.quantile(part)) for part in (0.5, _UPPER))
    spread = (upper - center) / NormalDist().inv_cdf(_UPPER)
    reach = student(level, engines - 1) * spread * math.sqrt(1 + 1 / engines)
    return Legal(name=name, recorded=recorded, middle=math.exp(center), bound=math.exp(center + reach))
