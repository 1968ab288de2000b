"""What a case comes to: the cause, or why none is named, with what would tell more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from moeparity.doctor.asks import asks
from moeparity.doctor.case import Case, Tried
from moeparity.doctor.evidence import Gathered
from moeparity.doctor.evidence_lines import aside_lines, evidence_lines
from moeparity.doctor.hypotheses import AS_CONFIGURED
from moeparity.doctor.judge import Difference, Ranking, legal_sizes, ranked
from moeparity.doctor.report import BEYOND, Answer, Clue, Examination, Explanation, Record
from moeparity.metrics.verdict import Interval
from moeparity.search.blame import Blame, Part

LEAST = 0.5
"""Two differences have one cause if one explains so much of the other."""
LOW_SLOPE, HIGH_SLOPE = 0.4, 1.6
"""The slope of a true cause is 1; by its whole interval it lies between these."""
_SHOWN = 6


def ranking(difference: Difference, tried: Sequence[Tried]) -> Ranking:
    """The hypotheses by what they explain; of two with the same bits, the one with less wrong."""
    return ranked(difference, [each.simulated for each in tried], [len(each.hypothesis.plants) for each in tried])


def of_other_weights(case: Case) -> bool:
    """Whether both records surely lie beyond noise from this checkpoint's simulation, and in the same way."""
    if case.recorded.keys() != {"sampler", "trainer"}:
        return False
    off = {party: values - case.right(party) for party, values in case.recorded.items()}
    legal, _ = legal_sizes(case.legal)
    of_sampler = Difference(d=off["sampler"], sequence=case.difference.sequence)
    beyond = of_sampler.mean(off["sampler"].abs()).low > BEYOND * legal
    return beyond and of_sampler.share(off["trainer"]).low > LEAST


def answered(case: Case, tried: Sequence[Tried], logged: tuple[str, ...]) -> Examination:
    """The examination of a case after some hypotheses were tried; `logged` are causes that the log alone names."""
    legal, legal_pair = legal_sizes(case.legal)
    size = case.difference.mean(case.difference.d.abs())
    order = ranking(case.difference, tried)
    best = [tried[index] for index in order.order[:_SHOWN]]
    explanations = tuple(_explanation(case.difference, each) for each in best)
    rivals = tuple(_called(tried[index]) for index in order.rivals)
    answer = _answer(case, tried, order, explanations[0], size, legal, logged)
    wants = tuple(asks(case, answer))
    return Examination(
        answer=answer,
        blame=_blame(answer, explanations, rivals, causes(case.clues, logged), wants),
        evidence=tuple(evidence_lines(Gathered(case.evidence, case.of_log), case.engines)),
        aside=tuple(aside_lines(case.evidence)),
        clues=case.clues,
        records=_records(case),
        size=size,
        left=case.difference.mean((case.difference.d - best[0].simulated).abs()),
        legal=legal,
        legal_pair=legal_pair,
        logged=logged,
        explanations=explanations,
        rivals=rivals,
        tried=len(tried),
        sequences=int(torch.unique(case.difference.sequence).numel()),
        tokens=case.difference.d.numel(),
        asks=wants,
    )


def at_once(material: Gathered, clues: tuple[Clue, ...]) -> Examination:
    """The examination of evidence in which a file alone names the cause: nothing is simulated."""
    of_log = material.of_log
    recorded, sequence = of_log.recorded, of_log.sequence
    apart = Difference(d=torch.full(sequence.shape, torch.nan, dtype=torch.float64), sequence=sequence)
    if recorded.keys() == {"sampler", "trainer"}:
        apart = replace(apart, d=(recorded["sampler"] - recorded["trainer"])[of_log.mask])
    size = apart.mean(apart.d.abs())
    return Examination(
        answer="found",
        blame=Blame(kind="one", named=causes(clues, ()), confidence="sure"),
        evidence=tuple(evidence_lines(material, {})),
        aside=tuple(aside_lines(material.evidence)),
        clues=clues,
        records=(),
        size=size,
        left=size,
        legal=math.nan,
        legal_pair=(),
        logged=(),
        explanations=(),
        rivals=(),
        tried=0,
        sequences=int(torch.unique(sequence).numel()),
        tokens=sequence.numel(),
        asks=(),
    )


def _answer(
    case: Case,
    tried: Sequence[Tried],
    order: Ranking,
    first: Explanation,
    size: Interval,
    legal: float,
    logged: tuple[str, ...],
) -> Answer:
    if of_other_weights(case):
        return "wrong checkpoint"
    if len(tried) == 1 and any(clue.cause for clue in case.clues):
        return "found"
    if logged and len(tried) == 1:
        return "logged"
    if not bool(case.difference.d.any()):
        return "noise"
    contenders = [tried[index].hypothesis for index in (order.order[0], *order.rivals)]
    noise, beyond = size.high < BEYOND * legal, size.low > BEYOND * legal
    if AS_CONFIGURED in contenders:
        configured = case.difference.share(case.legal_difference)
        if configured.low > LEAST:
            return "as configured"
        # What explains half in truth would surely explain more than nothing.
        if noise and not first.share.high > LEAST:
            return "noise"
        return "not explained" if beyond and first.share.high < LEAST else "undecided"
    if not _fits(first):
        # What explains something, or may explain half, may be a part of the cause.
        explains = first.share.low > 0 or first.share.high > LEAST
        return "not explained" if beyond and not explains else "undecided"
    return "undecided" if order.rivals else "named"


def _fits(first: Explanation) -> bool:
    """Whether a hypothesis surely explains anything, and makes as much as was recorded, not a part or a multiple."""
    return first.share.low > 0 and first.slope.low > LOW_SLOPE and first.slope.high < HIGH_SLOPE


def _blame(
    answer: Answer,
    explanations: Sequence[Explanation],
    rivals: tuple[str, ...],
    logged: tuple[str, ...],
    wants: tuple[str, ...],
) -> Blame:
    first = explanations[0]
    if answer == "named":
        share = first.share
        part = Part(name=first.name, part=share.estimate, low=share.low, high=share.high)
        return Blame(kind="one", named=(first.name,), parts=(part,), confidence="sure")
    if answer in {"logged", "found"}:
        return Blame(kind="one", named=logged, confidence="sure")
    if answer in {"noise", "as configured"}:
        return Blame(kind="nobody", confidence="sure")
    return Blame(kind="undecided", alternatives=rivals, would_decide=wants[0] if wants else "")


def causes(clues: Sequence[Clue], logged: tuple[str, ...]) -> tuple[str, ...]:
    """What files name by themselves; where none does, what the log names."""
    return tuple(clue.cause for clue in clues if clue.cause) or logged


def _explanation(difference: Difference, tried: Tried) -> Explanation:
    hypothesis = tried.hypothesis
    return Explanation(
        name=hypothesis.name,
        says=hypothesis.says,
        party=tried.party,
        share=difference.share(tried.simulated),
        slope=difference.slope(tried.simulated),
        size=float(tried.simulated.abs().mean()),
        change=hypothesis.change,
    )


def _called(tried: Tried) -> str:
    return f"{tried.hypothesis.name} ({tried.party})" if tried.party else tried.hypothesis.name


def _records(case: Case) -> tuple[Record, ...]:
    return tuple(
        Record(
            party=party,
            profile=case.request.profile(party),
            tokens=values.numel(),
            mean_abs_delta=case.difference.mean((values - case.right(party)).abs()),
        )
        for party, values in case.recorded.items()
    )
