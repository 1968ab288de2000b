"""The answer to a case: the cause, or why none is named, and what would tell more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from moeparity.doctor.asks import asks
from moeparity.doctor.batch import Gathered
from moeparity.doctor.case import Case, Tried
from moeparity.doctor.evidence_lines import aside_lines, evidence_lines
from moeparity.doctor.hypotheses import AS_CONFIGURED
from moeparity.doctor.judge import ALL, Difference, legal_sizes
from moeparity.doctor.noise import noise
from moeparity.doctor.pairs import best_pair
from moeparity.doctor.parting import parting
from moeparity.doctor.report import BEYOND, Answer, Examination, Explanation, Noise, Record, Sampled, Two
from moeparity.doctor.routes import Flipped
from moeparity.doctor.settled import settled
from moeparity.doctor.standing import Standing, standing
from moeparity.doctor.uniform import equals_as_rivals
from moeparity.doctor.unsimulated import causes
from moeparity.doctor.whereabouts import whereabouts
from moeparity.metrics.verdict import Interval
from moeparity.search.blame import Blame, Part

LEAST = 0.5
"""Two differences have one cause if one explains this fraction of the other."""
LOW_SLOPE, HIGH_SLOPE = 0.4, 1.6
"""The slope of a true cause is 1; the whole interval of a slope has to lie between these."""
_FEWEST = 4
"""At least so many sequences are called noise: a mean over fewer has no bound."""
_SHOWN = 6
_TO_THE_END = "the hypotheses that did not run: this examination was stopped before its end"


def of_other_weights(case: Case) -> bool:
    """Whether both records surely lie beyond noise from this checkpoint's simulation, and in the same way."""
    if case.recorded.keys() != {"sampler", "trainer"}:
        return False
    off = {party: values - case.right(party) for party, values in case.recorded.items()}
    legal, _ = legal_sizes(case.legal)
    of_sampler = replace(case.difference, d=off["sampler"])
    beyond = of_sampler.mean(off["sampler"].abs()).low > BEYOND * legal
    return beyond and of_sampler.share(off["trainer"]).low > LEAST


def explains_all(case: Case, tried: Sequence[Tried]) -> bool:
    """Whether one hypothesis surely explains all but noise, as it is, and no other one does."""
    stand = standing(case, tried)
    remainder = case.difference.mean((case.difference.d - stand.first.simulated).abs())
    slope = case.difference.slope(stand.first.simulated)
    is_whole = slope.low > LOW_SLOPE and slope.high < HIGH_SLOPE and not stand.rivals
    leaves_noise = remainder.high < BEYOND * legal_sizes(case.legal)[0]
    return is_whole and leaves_noise and case.difference.share(stand.first.simulated).low > ALL


def answered(
    case: Case,
    tried: Sequence[Tried],
    logged: tuple[str, ...],
    sampled: Sampled | None = None,
    *,
    is_stopped: bool = False,
) -> Examination:
    """The examination of a case after some hypotheses were tried; `logged` are causes that the log alone names, and
    `sampled` says of which sequences hypotheses were simulated first. Where it was stopped before its end nothing is
    settled, since any of those that did not run may explain as much.
    """
    of_noise = noise([values[case.mask] for values in case.bench.engines.values()], case.difference.d, _flipped(case))
    stand = equals_as_rivals(case, settled(case, standing(case, tried), of_noise))
    sizes = _sizes(case, stand)
    first, *others = (_explanation(case.difference, each) for each in stand.order[:_SHOWN])
    explanations = (replace(first, alike=tuple(each.hypothesis.name for each in stand.alike)), *others)
    rivals = tuple(map(_called, stand.rivals))
    answer = _answer(case, stand, explanations[0], sizes, logged, len(tried), of_noise)
    if is_stopped:
        answer = "undecided"
    two = _two(case, stand, sizes) if not is_stopped and answer in {"named", "undecided", "not explained"} else None
    if two is not None:
        answer = "named"
    wants = (*([_TO_THE_END] if is_stopped else []), *asks(case, answer))
    return Examination(
        answer=answer,
        blame=_blame(answer, explanations, two, rivals, causes(case.clues, logged), wants),
        evidence=tuple(evidence_lines(Gathered(case.evidence, case.of_log), case.engines)),
        aside=tuple(aside_lines(case.evidence)),
        clues=case.clues,
        records=_records(case),
        size=sizes.size,
        left=sizes.remainder,
        legal=sizes.legal,
        legal_pair=legal_sizes(case.legal)[1],
        logged=logged,
        explanations=explanations,
        rivals=rivals,
        is_stopped=is_stopped,
        tried=len(tried) + (0 if sampled is None else sampled.ruled_out),
        sampled=sampled,
        sequences=int(torch.unique(case.difference.sequence).numel()),
        tokens=case.difference.d.numel(),
        asks=wants,
        two=two,
        parting=() if two is not None or answer in {"noise", "as configured"} else parting(case, stand),
        where=whereabouts(case),
        noise=of_noise,
    )


def _sizes(case: Case, stand: Standing) -> Sizes:
    return Sizes(
        size=case.difference.mean(case.difference.d.abs()),
        remainder=case.difference.mean((case.difference.d - stand.first.simulated).abs()),
        legal=legal_sizes(case.legal)[0],
    )


def _flipped(case: Case) -> Flipped | None:
    flips = case.bench.flips
    return None if flips is None else flips.flipped(case.bench.tokens.loss_mask, [*case.bench.engines])


def _two(case: Case, stand: Standing, sizes: Sizes) -> Two | None:
    """Two causes at once, where one surely leaves more than noise, or the second surely explains half of what the first
    leaves; two leave no more than noise, and both surely act as they are.
    """
    if sizes.remainder.high < BEYOND * sizes.legal:
        return None
    pair = best_pair(case, stand)
    if pair is None or not pair.is_sure:
        return None
    if sizes.leaves_noise and min(each.share.low for each in pair.members) < LEAST:
        return None
    if not all(each.slope.low > LOW_SLOPE and each.slope.high < HIGH_SLOPE for each in pair.members):
        return None
    share = case.difference.share(pair.simulated)
    remainder = case.difference.mean((case.difference.d - pair.simulated).abs())
    if share.low < LEAST or remainder.low > BEYOND * sizes.legal:
        return None
    first, second = (
        replace(_explanation(case.difference, each.tried), slope=each.slope, share=each.more, alike=each.alike)
        for each in pair.members
    )
    return Two(causes=(first, second), share=share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Mean |d| in nats per token: as recorded, what the first hypothesis leaves of it, and the largest between two
    engines without a mistake.
    """

    size: Interval
    remainder: Interval
    legal: float

    @property
    def leaves_noise(self) -> bool:
        """Whether what is left may be noise."""
        return self.remainder.low < BEYOND * self.legal


def _answer(
    case: Case,
    stand: Standing,
    first: Explanation,
    sizes: Sizes,
    logged: tuple[str, ...],
    tried: int,
    of_noise: Noise | None,
) -> Answer:
    if of_other_weights(case):
        return "wrong checkpoint"
    if tried == 1 and any(clue.cause for clue in case.clues):
        return "found"
    if logged and tried == 1:
        return "logged"
    if not bool(case.difference.d.any()):
        return "noise"
    beyond = sizes.size.low > BEYOND * sizes.legal
    does_fit = stand.is_settled or fits(case.difference, stand.first, first, sizes)
    is_rival = AS_CONFIGURED in [each.hypothesis for each in stand.contenders]
    if is_rival and case.difference.share(case.legal_difference).low > LEAST:
        return "as configured"
    # If one token has most of the difference, neither a share nor the mean has a bound; the statistics of noise do.
    # Among hundreds of hypotheses, some surely explain a little of any noise, or a single token; that names none.
    is_legal = of_noise is not None and all(each.is_inside for each in of_noise.statistics)
    # Few sequences say nothing about others. What lies beyond the drawn bounds is no noise, however small. Bounds drawn
    # for few tokens are wide: what surely is larger than engines make between them is not noise because it lies inside.
    if is_legal and sizes.size.sequences >= _FEWEST and not (does_fit and not stand.rivals):
        return "undecided" if beyond else "noise"
    if is_rival and of_noise is None and _is_small(first, sizes):
        return "noise"
    if is_rival:
        return "not explained" if beyond and first.share.high < LEAST else "undecided"
    if not does_fit:
        # What explains something, or may explain half, may be a part of the cause.
        explains = first.share.low > 0 or first.share.high > LEAST
        return "not explained" if beyond and not explains else "undecided"
    return "undecided" if stand.rivals else "named"


def _is_small(first: Explanation, sizes: Sizes) -> bool:
    """Whether the record is no larger than noise may be, and nothing may explain half of it."""
    return sizes.size.high < BEYOND * sizes.legal and not first.share.high > LEAST


def fits(difference: Difference, tried: Tried, explanation: Explanation, sizes: Sizes) -> bool:
    """Whether a hypothesis may be the cause: it surely explains something; it makes as much as was recorded, not a part
    or a multiple; and it surely explains nearly all, or leaves no more than noise. Half is not enough, since one broken
    model explains more than half of another. A fitted number has a slope of 1 whatever is wrong, so a hypothesis with
    one has to explain half and leave no more than noise.
    """
    share, slope = explanation.share, explanation.slope
    # A share has no bound if a few tokens, whose routes flip, have most of the difference; so each sequence has a vote.
    if not (difference.explains(tried.simulated, 0.0) and slope.low > LOW_SLOPE and slope.high < HIGH_SLOPE):
        return False
    if tried.hypothesis.number is not None:
        return difference.explains(tried.simulated, LEAST) and sizes.leaves_noise
    return share.low > ALL or sizes.leaves_noise


def _blame(
    answer: Answer,
    explanations: Sequence[Explanation],
    two: Two | None,
    rivals: tuple[str, ...],
    logged: tuple[str, ...],
    wants: tuple[str, ...],
) -> Blame:
    first = explanations[0]
    if two is not None:
        parts = tuple(
            Part(name=each.name, part=each.share.estimate, low=each.share.low, high=each.share.high)
            for each in two.causes
        )
        return Blame(kind="culprits", named=tuple(each.name for each in two.causes), parts=parts, confidence="sure")
    if answer == "named":
        share = first.share
        part = Part(name=first.name, part=share.estimate, low=share.low, high=share.high)
        return Blame(kind="one", named=(first.name,), parts=(part,), confidence="sure", alternatives=first.alike)
    if answer in {"logged", "found"}:
        return Blame(kind="one", named=logged, confidence="sure")
    if answer in {"noise", "as configured"}:
        return Blame(kind="nobody", confidence="sure")
    return Blame(kind="undecided", alternatives=rivals, would_decide=wants[0] if wants else "")


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
        number=tried.number,
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
