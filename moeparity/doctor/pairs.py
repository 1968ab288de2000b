"""Two things wrong at once: pairs of hypotheses, where no single one leaves noise alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.hypotheses import Hypothesis
from moeparity.doctor.judge import Difference
from moeparity.doctor.standing import SAME, Standing
from moeparity.metrics.verdict import Interval

_CANDIDATES = 40
"""So many hypotheses are put together with each other: those that explain most if they may be scaled,
and so many that explain most of what the best one leaves."""
_RUN = 4
"""So many pairs at one party are run together; what two make together is not quite the sum of what each makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two hypotheses at once. simulated: the difference that both make: fp64 [N] in nats. slopes: the factor of each
    beside the other, 1 for a true cause. is_sure: both surely act, and surely more is explained than by any other pair
    that does not come to the same, or by any one hypothesis.
    """

    members: tuple[Tried, Tried]
    simulated: Tensor
    slopes: tuple[Interval, Interval]
    is_sure: bool


def best_pair(case: Case, stand: Standing) -> Pair | None:
    """The pair that explains most; None if there are no two that act apart."""
    pairs = sorted(_pairs(case, stand), key=lambda pair: pair[0])
    if not pairs:
        return None
    run = [_together(case, a, b) for _, a, b in pairs[:_RUN]]
    index = min(range(len(run)), key=lambda index: _remainder(case, run[index]))
    (_, a, b), simulated = pairs[index], run[index]
    legal = case.legal_difference
    rivals = [_together(case, c, d) for _, c, d in pairs[:_RUN] if (c, d) != (a, b)]
    rivals += [c.simulated + d.simulated - legal for _, c, d in pairs[_RUN : 2 * _CANDIDATES]]
    rivals += [each.simulated for each in stand.order]
    size = float(((simulated - legal) ** 2).sum())
    sure = all(
        float(((simulated - rival) ** 2).sum()) < SAME * size or case.difference.prefers(simulated, rival)
        for rival in rivals
    )
    return Pair(members=(a, b), simulated=simulated, slopes=_slopes(case, a, b), is_sure=sure)


def _pairs(case: Case, stand: Standing) -> Iterator[tuple[float, Tried, Tried]]:
    """Pairs that act at different nodes or parties, with the squares that their sum leaves."""
    legal = case.legal_difference
    made_by = [each.simulated - legal for each in stand.order]
    behind = replace(case.difference, d=case.difference.d - stand.first.simulated)
    leading = [*case.difference.leading(made_by)[:_CANDIDATES], *behind.leading(made_by)[:_CANDIDATES]]
    leading = list(dict.fromkeys(leading))
    effects = torch.stack([made_by[index] for index in leading]) if leading else torch.empty(0, 1)
    remainder = case.difference.d - legal
    gram, along = effects @ effects.T, effects @ remainder if leading else torch.empty(0)
    for i, j in combinations(range(len(leading)), 2):
        a, b = (stand.order[leading[k]] for k in (i, j))
        if _apart(a, b):
            joint = gram[i, i] + gram[j, j] + 2 * gram[i, j] - 2 * (along[i] + along[j])
            yield float(joint), a, b


def _apart(a: Tried, b: Tried) -> bool:
    """Whether two hypotheses can be true at once: at different parties, or in plants at different nodes."""
    if a.party is None or b.party is None:
        return False
    if a.party != b.party:
        return True
    if a.hypothesis.reading is not None or b.hypothesis.reading is not None:
        return False
    return not {plant.node for plant in a.hypothesis.plants} & {plant.node for plant in b.hypothesis.plants}


def _together(case: Case, a: Tried, b: Tried) -> Tensor:
    """What both make: run together at one party, added up at two."""
    if a.party != b.party or a.party is None:
        return a.simulated + b.simulated - case.legal_difference
    name = f"{a.hypothesis.name} and {b.hypothesis.name}"
    joint = Hypothesis(name=name, says="", plants=(*a.hypothesis.plants, *b.hypothesis.plants))
    runs = case.simulated([joint], a.party)
    return runs[0].simulated if runs else a.simulated + b.simulated - case.legal_difference


def _remainder(case: Case, simulated: Tensor) -> float:
    return float(((case.difference.d - simulated) ** 2).sum())


def _slopes(case: Case, a: Tried, b: Tried) -> tuple[Interval, Interval]:
    """The factor of each with which both together come nearest to the difference (Frisch, Waugh and Lovell: that of
    what the other does not make, for what the other leaves).
    """
    legal = case.legal_difference
    effects = [each.simulated - legal for each in (a, b)]
    first, second = (
        _beside(replace(case.difference, d=case.difference.d - legal), x, rival)
        for x, rival in (effects, reversed(effects))
    )
    return first, second


def _beside(difference: Difference, x: Tensor, rival: Tensor) -> Interval:
    def without(of: Tensor) -> Tensor:
        return of - rival * float((of * rival).sum() / (rival * rival).sum())

    return replace(difference, d=without(difference.d)).slope(without(x))
