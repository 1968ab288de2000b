"""Two things wrong at once: what may be wrong beside the hypotheses that lead, tried together with each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice

import torch
from torch import Tensor

from moeparity.doctor.case import Case, Tried
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis, Plant, coarse, parts
from moeparity.doctor.judge import legal_sizes
from moeparity.doctor.report import BEYOND, Party
from moeparity.doctor.screening import sampled
from moeparity.doctor.standing import SAME, Standing, same
from moeparity.metrics.verdict import Interval
from moeparity.plan.faults.fault import planted

_CANDIDATES = 40
"""The candidates for pairs that are added up are this many hypotheses that explain most of the difference if they may
be scaled, and this many that explain most of what the best one leaves.
"""
_RUN = 8
"""This many of the pairs that were added up, or tried on a sample, are run on all sequences: two effects together are
not quite the sum of both.
"""
_LEADERS, _ROUNDS = 3, 2
"""Everything is tried beside this many hypotheses, in different directions, that explain most if they may be scaled;
then parts of as many of those that explain most beside them.
"""
_Name = tuple[str, Party | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two hypotheses at once. simulated: the difference that both make, fp64 [N] in nats."""

    members: tuple[Tried, Tried]
    simulated: Tensor

    @property
    def key(self) -> frozenset[_Name]:
        """The same for the same two hypotheses."""
        return frozenset(map(_name, self.members))

    @property
    def parties(self) -> list[str]:
        """Those of both members."""
        return sorted(str(each.party) for each in self.members)

    @property
    def plainness(self) -> tuple[int, int, int]:
        """Of pairs that make the same difference, the one with the least is named."""
        each = [member.hypothesis for member in self.members]
        numbers, plants = (sum(of.number is not None for of in each), sum(len(of.plants) for of in each))
        return sum(of.plainness for of in each), numbers, plants


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of two causes. slope, share: the factor with which it comes nearest to what the other one leaves, 1 for a
    true cause, and how much of that it explains. more: how much more of the whole difference both explain than the
    other alone. alike: others that make the same by themselves, or beside the other one.
    """

    tried: Tried
    slope: Interval
    share: Interval
    more: Interval
    alike: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPair:
    """The pair that explains most. simulated: the difference that both make, fp64 [N] in nats. is_sure: both surely
    explain more than any single hypothesis does, and than any other pair, except pairs that make the same difference.
    """

    members: tuple[Member, Member]
    simulated: Tensor
    is_sure: bool


def best_pair(case: Case, stand: Standing) -> BestPair | None:
    """The pair that explains most; None if there are no two that act apart, or none explains anything."""
    added = [pair for _, pair in sorted(_added(case, stand), key=lambda scored: scored[0])][: 2 * _CANDIDATES]
    run = {pair.key: pair for pair in (*_anew(case, added[:_RUN]), *_beside_leaders(case, stand))}
    if not run:
        return None
    difference, counted = case.difference, case.difference.counted
    best = min(run.values(), key=lambda pair: difference.remains(pair.simulated))
    size = float((counted(best.simulated - case.legal_difference) ** 2).sum())
    if not size:
        # One cause on both sides, which makes no difference: every other pair explains less than nothing.
        return None
    others = [pair for pair in added if pair.key not in run]
    unsure = [pair for pair in (*run.values(), *others) if not difference.prefers(best.simulated, pair.simulated)]
    equal = [
        pair
        for pair in unsure
        if float((counted(best.simulated - pair.simulated) ** 2).sum()) < SAME * size and pair.parties == best.parties
    ]
    singles = (each.simulated for each in stand.order)
    is_best = len(equal) == len(unsure) and all(difference.prefers(best.simulated, each) for each in singles)
    plainest = min(equal, key=lambda pair: pair.plainness)
    members = _member(case, stand, plainest, 0, equal), _member(case, stand, plainest, 1, equal)
    return BestPair(members=members, simulated=plainest.simulated, is_sure=is_best)


def _member(case: Case, stand: Standing, pair: Pair, index: int, equal: Iterable[Pair]) -> Member:
    """A member of a pair, called by the plainest hypothesis that makes the same by itself. equal: pairs that make the
    same difference.
    """
    member, other_member = pair.members[index], pair.members[1 - index]
    legal, counted = case.legal_difference, case.difference.counted
    alike = [member, *(each for each in stand.order if same(member, each, legal, counted))]
    plainest = min(alike, key=lambda each: (each.hypothesis.plainness, each.hypothesis.number is not None))
    names = [_name(each) for each in alike]
    names += [name for each in equal if _name(other_member) in each.key for name in each.key - {_name(other_member)}]
    remainder = replace(case.difference, d=case.difference.d - other_member.simulated)
    makes = pair.simulated - other_member.simulated
    return Member(
        tried=plainest,
        slope=remainder.slope(makes),
        share=remainder.share(makes),
        more=case.difference.advantage(pair.simulated, other_member.simulated),
        alike=tuple(name for name, party in dict.fromkeys(names) if (name, party) != _name(plainest)),
    )


def _name(of: Tried) -> _Name:
    return of.hypothesis.name, of.party


def _added(case: Case, stand: Standing) -> Iterator[tuple[float, Pair]]:
    """Pairs of what was tried that act at different nodes or parties, added up, with the squares that this leaves."""
    legal = case.legal_difference
    made_by = [each.simulated - legal for each in stand.order]
    behind = replace(case.difference, d=case.difference.d - stand.first.simulated)
    most = (islice(of.leading(made_by), _CANDIDATES) for of in (case.difference, behind))
    leading = list(dict.fromkeys(index for of in most for index, _ in of))
    counted = case.difference.counted
    effects = torch.stack([counted(made_by[index]) for index in leading]) if leading else torch.empty(0, 1)
    remainder = counted(case.difference.d - legal)
    gram, along = effects @ effects.T, effects @ remainder if leading else torch.empty(0)
    for i, j in combinations(range(len(leading)), 2):
        a, b = (stand.order[leading[k]] for k in (i, j))
        if _apart(a, b):
            joint = gram[i, i] + gram[j, j] + 2 * gram[i, j] - 2 * (along[i] + along[j])
            yield float(joint), Pair(members=(a, b), simulated=a.simulated + b.simulated - legal)


def _apart(a: Tried, b: Tried) -> bool:
    """Whether the effects of two hypotheses may add up: at different parties, or in plants at different nodes."""
    if a.party is None or b.party is None:
        return False
    if a.party != b.party:
        return True
    if a.hypothesis.reading is not None or b.hypothesis.reading is not None:
        return False
    return not {plant.node for plant in a.hypothesis.plants} & {plant.node for plant in b.hypothesis.plants}


def _anew(case: Case, pairs: Iterable[Pair]) -> Iterator[Pair]:
    """These pairs, run on the sequences of a case."""
    for pair in pairs:
        a, b = (case.simulated([each.hypothesis], each.party) for each in pair.members if each.party is not None)
        if a and b:
            yield from _together(case, a[0], b)


def _beside_leaders(case: Case, stand: Standing) -> Iterator[Pair]:
    """All mistakes and stale weights that are no parts of others beside each of the leaders, then parts of the best, on
    a sample of the sequences if there are many. Ends with the leader beside which one leaves no more than noise.
    """
    ways = case.difference.directions([each.simulated for each in stand.order], _LEADERS)
    rows = sampled(case.difference)
    few = case if rows is None else case.of(rows)
    tried: list[Pair] = []
    for leader in (stand.order[way[0]] for way in ways):
        if leader.party is not None:
            tried += [
                pair for each in few.simulated([leader.hypothesis], leader.party) for pair in _searched(few, each)
            ]
        tried.sort(key=lambda pair: few.difference.remains(pair.simulated))
        if tried and _leaves_noise(few, tried[0]):
            break
    if tried:
        # What leads by itself may be near a part of the cause, so it is tried anew beside what was found beside it.
        tried += _searched(few, tried[0].members[1], tried[0].members[0].hypothesis)
    best = sorted(tried, key=lambda pair: few.difference.remains(pair.simulated))[:_RUN]
    yield from tried if rows is None else _anew(case, best)


def _leaves_noise(case: Case, pair: Pair) -> bool:
    remainder = case.difference.mean((case.difference.d - pair.simulated).abs())
    return remainder.low < BEYOND * legal_sizes(case.legal)[0]


def _searched(case: Case, first: Tried, *further: Hypothesis) -> Iterator[Pair]:
    """Everything beside one hypothesis: the whole ones and further ones, then parts of those that explain most."""
    graph, previous = case.bench.model.graph, case.evidence.previous
    hypotheses = [*(each for each in coarse(graph, previous) if each is not AS_CONFIGURED), *further]
    for _ in range(_ROUNDS):
        pairs = [pair for party in case.recorded for pair in _together(case, first, case.simulated(hypotheses, party))]
        yield from pairs
        best = sorted(pairs, key=lambda pair: case.difference.remains(pair.simulated))[:_LEADERS]
        some = (part for pair in best for part in parts(pair.members[1].hypothesis, graph, previous))
        hypotheses = list({part.name: part for part in some}.values())


def _together(case: Case, first: Tried, others: Sequence[Tried]) -> Iterator[Pair]:
    """One hypothesis with each of the others, run together if they act at one party, added up if at two. Those that
    can't be true at once are left out, and those that give no numbers.
    """
    second_of: dict[str, Tried] = {}
    hypotheses: list[Hypothesis] = []
    makes = first.simulated - case.legal_difference
    for second in others:
        if not bool(second.simulated.isfinite().all()):
            continue
        if second.party != first.party:
            yield Pair(members=(first, second), simulated=second.simulated + makes)
        elif (joint := joined(first.hypothesis, second.hypothesis)) is not None:
            second_of[joint.name] = second
            hypotheses.append(joint)
    if first.party is not None and hypotheses:
        for run in case.simulated(hypotheses, first.party):
            if bool(run.simulated.isfinite().all()):
                yield Pair(members=(first, second_of[run.hypothesis.name]), simulated=run.simulated)


def joined(a: Hypothesis, b: Hypothesis) -> Hypothesis | None:
    """Both wrong at one party; None if one is a part of the other, or about the tokens."""
    if a.reading is not None or b.reading is not None:
        return None
    a, b = sorted((a, b), key=lambda each: each.name)
    keys = [{(plant.node, plant.fault.name, plant.values, plant.phase) for plant in each.plants} for each in (a, b)]
    if keys[0] <= keys[1] or keys[1] <= keys[0]:
        return None
    # Weights that are taken from elsewhere come first: what is done to a node's weights is done to those.
    plants = sorted((*a.plants, *b.plants), key=lambda plant: not _takes_weights(plant))
    return Hypothesis(name=f"{a.name} and {b.name}", says="", plants=tuple(plants))


def _takes_weights(plant: Plant) -> bool:
    return planted(plant.fault, dict(plant.values)).takes_weights
