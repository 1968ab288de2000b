"""What legal arithmetic can do to the log-probabilities of some tokens: drawn from choices that compute the same model,
and where a record lies among the draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from statistics import NormalDist

import torch
from torch import Tensor

from moeparity.doctor.report import Legal, Noise
from moeparity.errors import MoeparityError
from moeparity.metrics.interval import student
from moeparity.plan.bound import BoundGraph
from moeparity.plan.schedule.settings import ScheduleSettings
from moeparity.plan.sides import Side
from moeparity.plan.toggles import SEMANTICS, Toggle, mixed, toggles

LEVEL = 0.99
"""One clean run in so many lies beyond the bound."""
DRAWS = 8
"""Plans whose choices are drawn, beside those of the profiles."""
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


def noise(scores: Sequence[Tensor], recorded: Tensor, level: float = LEVEL) -> Noise | None:
    """What lies between engines without a mistake, each fp64 [N] in nats, and the place of a recorded difference, fp64
    [N]. None if fewer than three of them have bits of their own.

    The bound is a prediction bound for one more pair of engines: the logarithm of a statistic is taken as normal, with
    as many degrees of freedom as there are engines less one, since pairs of them are not independent.
    """
    engines = list({score.numpy().tobytes(): score for score in scores}.values())
    if len(engines) < _FEWEST:
        return None
    pairs = [a - b for a, b in combinations(engines, 2)]
    return Noise(
        level=level,
        engines=len(engines),
        statistics=tuple(_statistics(pairs, recorded, len(engines), level)),
    )


def _statistics(pairs: Sequence[Tensor], recorded: Tensor, engines: int, level: float) -> Iterator[Legal]:
    for name, of in STATISTICS.items():
        logs = torch.tensor([math.log(value) for value in map(of, pairs) if value > 0], dtype=torch.float64)
        # Two draws may be all but one engine, which widens the lower half of the pairs alone.
        center, upper = (float(logs.quantile(part)) for part in (0.5, _UPPER))
        spread = (upper - center) / NormalDist().inv_cdf(_UPPER)
        reach = student(level, engines - 1) * spread * math.sqrt(1 + 1 / engines)
        yield Legal(name=name, recorded=of(recorded), middle=math.exp(center), bound=math.exp(center + reach))
