"""Sentences on shares and fixes: who is to blame, what is interchangeable, what would help."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

from moeparity.output.words import enumerated, quantity
from moeparity.search.contrast import surely_above, surely_below
from moeparity.search.fixes import Fixes, FixSet, MayStay
from moeparity.search.interactions import Interaction
from moeparity.search.judged_apart import Apart
from moeparity.search.roles import LEAST_HELP, LEAST_SATURATION, SATURATION, SHARE, Role
from moeparity.search.waterfall import Share, Waterfall

ROUNDING = 0.01
"""If at most this fraction of the KL is left in fp32, the difference is said to be the rounding of 16 bits."""

NAMED = 3
"""This many fixes are told in sentences."""

HELPED = 0.5
"""If at most this fraction of the KL is left in fp32, fp32 is said to help."""

TOLD = 0.01
"""An interaction of at least this fraction of the KL has a sentence."""


def share_reading(
    shares: Waterfall,
    forced: Waterfall | None,
    interactions: Sequence[Interaction],
    in_fp32: float | None,
    dtype: str,
    apart: Apart | None = None,
) -> list[str]:
    """Who makes the divergence, in sentences. A claim is made only if its interval is finite and excludes the opposite.

    `dtype`: in which the sides compute, such as `bf16`.
    """
    if shares.total is None or len(shares.shares) < 2:
        return []
    total = shares.total
    if not total:
        # Toggles that undo each other to the last bit still have effects of their own.
        return list(_small(shares))
    saturated = _with_role(shares, Role.SATURATED)
    sentences = [*_saturated(saturated, total, forced, in_fp32, dtype)] if saturated else []
    sentences += _apart(apart, total)
    sentences += _culprits(shares, total)
    sentences += [*_contributing(shares, total), *_small(shares)]
    if not saturated:
        # A toggle that offsets another interacts strongly with every toggle, which says nothing new.
        offset = _in_pairs(shares)
        sentences += _strongest([pair for pair in interactions if not {pair.first, pair.second} & offset], total)
    return [*sentences, *_forced(forced, total)]


def fix_reading(fixes: Fixes, allowed: MayStay | None, *, costs: bool) -> list[str]:
    """What to restore, what may stay, and how sure that is, in sentences."""
    gate = f"the gate {fixes.gate:g}"
    if not fixes.sets:
        return [f"No set of toggles that was run brings it under {gate}, when restored."]
    first_fix = fixes.sets[0]
    if not first_fix.toggles:
        sentence = f" With {enumerated(first_fix.spoiled_by)} restored it no longer is." if first_fix.spoiled_by else ""
        return [f"The candidate is under {gate} as it is: nothing needs restoring.{sentence}"]
    smallest = [fix for fix in fixes.sets if len(fix.toggles) == len(first_fix.toggles)]
    # Either all smaller sets were tried, or the sentence has to say that there may be a smaller one.
    sure = fixes.complete or len(first_fix.toggles) <= fixes.exhaustive + 1
    sentences = [_smallest(smallest, gate, sure=sure), *_scope(fixes)]
    spoiled = next((fix for fix in fixes.sets if fix.spoiled_by), None)
    if spoiled is not None:
        sentences.append(
            f"Restoring more can undo it: it passes with {enumerated(spoiled.toggles)} restored, and no longer with "
            f"{enumerated(spoiled.spoiled_by)} restored as well."
        )
    return [*sentences, *_staying(allowed, fixes, costs=costs)]


def _saturated(
    shares: Sequence[Share], total: Fraction, forced: Waterfall | None, in_fp32: float | None, dtype: str
) -> Iterator[str]:
    rounding = in_fp32 is not None and in_fp32 <= ROUNDING * total
    opening = f"The difference is at the floor of {dtype} rounding: " if rounding else "Saturated: "
    unlike = _unlike(shares, forced)
    alike = "" if unlike else ", and none of them is to blame more than another"
    yield (
        f"{opening}{enumerated([share.name for share in shares])} are interchangeable. Each alone makes at least "
        f"{SATURATION:.0%} of the KL (95% interval: at least {LEAST_SATURATION:.0%}), and restoring any one leaves as "
        f"much: their shares divide one effect{alike}."
    )
    if unlike:
        yield f"Without flips (expert ids forced) they are not alike: {unlike} of what is left."
    worse = [share.name for share in shares if surely_above(share.change)]
    if worse:
        yield f"Restoring {enumerated(worse)} alone even raises the KL."
    if in_fp32 is not None:
        part = in_fp32 / float(total)
        remainder = (
            f"KL {in_fp32:.2g} nats per token ({part:{'.1g' if part < TOLD else '.2f'}} of it), as measured here."
        )
        clause = "What would help: fp32 on both sides" if part <= HELPED else "fp32 on both sides would not help: it"
        yield f"{clause} leaves {remainder}"


def _unlike(shares: Sequence[Share], forced: Waterfall | None) -> str:
    """What each toggle makes with forced routes, if one of them surely makes more than another there; else ""."""
    if forced is None or not forced.total:
        return ""
    names = {share.name for share in shares}
    rows = [row for row in forced.shares if row.name in names]
    bounded = [row.interval for row in rows if math.isfinite(row.interval[0]) and math.isfinite(row.interval[1])]
    if not bounded or not max(low for low, _ in bounded) > min(high for _, high in bounded):
        return ""
    return enumerated([f"{row.name} makes {float(row.share / forced.total):.0%}" for row in rows])


def _apart(apart: Apart | None, total: Fraction) -> Iterator[str]:
    """What the choices that are not legal ones cost, beside the legal ones and without flips."""
    if apart is None or apart.without is None:
        return
    names, singular = enumerated(apart.toggles), len(apart.toggles) == 1
    it, nature = ("it", "is no rounding but another function") if singular else ("them", "are no roundings but others")
    rest = float(apart.without.value / total)
    yield f"{names} {nature}, judged apart: {_falls(apart.change, it, f'{rest:.0%}')}"
    if apart.forced is None or apart.forced_without is None or not apart.forced.value > 0:
        return
    rest = apart.forced_without.value / apart.forced.value
    forced = _falls(apart.forced_change, it, f"{rest:.0%}")
    yield f"With the reference's expert ids forced, KL is {apart.forced.value:.2e} with {it}; {forced}"


def _falls(change: tuple[float, float], it: str, rest: str) -> str:
    """What restoring does to a KL, as far as the interval tells."""
    if surely_below(change):
        return f"restoring {it} surely lowers the KL, to {rest}."
    if surely_above(change):
        return f"restoring {it} surely raises the KL, to {rest}."
    return f"with {it} restored {rest} is left, which these sequences do not distinguish from the whole."


def _culprits(shares: Waterfall, total: Fraction) -> Iterator[str]:
    for share in sorted(_with_role(shares, Role.CULPRIT), key=lambda share: share.share, reverse=True):
        yield (
            f"{share.name} is to blame for {float(share.share / total):.0%} of the KL ({_bounded(share.part)}); "
            f"restoring it alone lowers it by {_fall(share, total):.0%}."
        )


def _contributing(shares: Waterfall, total: Fraction) -> Iterator[str]:
    contributions = _with_role(shares, Role.CONTRIBUTES)
    for share in contributions:
        if share.share >= SHARE * total:
            yield (
                f"{share.name} contributes {float(share.share / total):.0%} of the KL "
                f"({_bounded(share.part)}), but restoring it alone does not surely lower it{_needed([share])}."
            )
    small = [share.name for share in contributions if share.share < SHARE * total]
    if small:
        yield f"{enumerated(small)} contribute{'s' * (len(small) == 1)} less than {SHARE:.0%} of the KL."


def _bounded(part: tuple[float, float]) -> str:
    return f"{part[0]:.0%} to {part[1]:.0%} over sequences"


def _small(shares: Waterfall) -> Iterator[str]:
    sentences = {
        Role.HELPS: "{names} help{s}: the candidate's choice there lowers the KL.",
        Role.NEGLIGIBLE: f"{{names}} change{{s}} the KL by less than {float(LEAST_HELP):.0%}.",
        Role.OFFSETS: "Restoring {either} alone raises the KL: the candidate's choice there offsets other toggles.",
    }
    # Pairs that offset each other have had their sentence.
    offset = _in_pairs(shares)
    for role, sentence in sentences.items():
        names = [share.name for share in _with_role(shares, role) if share.name not in offset]
        if names:
            yield sentence.format(names=enumerated(names), either=" or ".join(names), s="s" * (len(names) == 1))
    yield from _undecided(_with_role(shares, Role.UNDECIDED))


def _undecided(shares: Sequence[Share]) -> Iterator[str]:
    """What more sequences would decide, and how many of them."""
    signed = [share for share in shares if surely_above(share.interval) and surely_above(share.part)]
    unsigned = [share for share in shares if share not in signed]
    if unsigned:
        names, plural = enumerated([share.name for share in unsigned]), "s" * (len(unsigned) > 1)
        yield f"Not decided with these sequences: the share{plural} of {names} may be 0{_needed(unsigned)}."
    if signed:
        names = enumerated([share.name for share in signed])
        yield f"Not decided with these sequences: whether other choices can replace {names}{_needed(signed)}."


def _needed(shares: Sequence[Share]) -> str:
    """How many sequences would decide; a range for several toggles."""
    counts = [share.needed for share in shares if share.needed is not None]
    if not counts:
        return "; how many more are needed is not known"
    span = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else f"{counts[0]}"
    some = ", for some not known" if len(counts) < len(shares) else ""
    return f"; about {span} such sequences are needed{some}"


def _strongest(interactions: Sequence[Interaction], total: Fraction) -> Iterator[str]:
    """The pair whose cost together differs most from the sum of both costs, if that is sure."""
    sure = [
        pair for pair in interactions if pair.in_reference is not None and excludes_zero(pair.in_reference_interval)
    ]
    pair = max(sure, key=lambda pair: abs(pair.in_reference or Fraction()), default=None)
    if pair is None or pair.in_reference is None or abs(pair.in_reference) < TOLD * total:
        return
    comparison = "more" if pair.in_reference > 0 else "less"
    yield (
        f"{pair.first} and {pair.second} interact: together they cost {abs(float(pair.in_reference / total)):.0%} of "
        f"the KL {comparison} than the sum of both alone."
    )


def excludes_zero(interval: tuple[float, float]) -> bool:
    """Whether all of an interval lies on one side of 0."""
    return surely_above(interval) or surely_below(interval)


def _forced(forced: Waterfall | None, total: Fraction) -> Iterator[str]:
    if forced is None:
        return
    if forced.total is None:
        yield "Routes cannot be forced here, so what numerics alone do without flips is not known."
        return
    remainder = float(forced.total / total)
    opening = (
        f"With the reference's expert ids forced (routing replay), KL is {float(forced.total):.2e} ({remainder:.0%})"
    )
    largest = max(forced.shares, key=lambda share: share.share, default=None)
    if largest is None or not forced.total > 0:
        yield f"{opening}."
        return
    # A toggle is named if its interval lies above half of the whole, so not if several make about as much; nor if it
    # makes more than the whole, of which others take back a part.
    majority = surely_above(largest.part, 0.5) and largest.share <= forced.total
    of = float(largest.share / forced.total)
    yield (
        f"{opening}; of what is left without flips, {largest.name} makes most: {of:.0%}." if majority else f"{opening}."
    )


def _fall(share: Share, total: Fraction) -> float:
    assert share.restored is not None, "a culprit's mixtures run"
    return 1 - share.restored.value / float(total)


def _smallest(fixes: Sequence[FixSet], gate: str, *, sure: bool) -> str:
    sets = [enumerated(fix.toggles) for fix in fixes[:NAMED]]
    suffix = f", or one of {len(fixes) - NAMED} further sets of this size" if len(fixes) > NAMED else ""
    exact = " Nothing of the difference is left then." if all(fix.outcome.exact for fix in fixes) else ""
    smallest = "Smallest fix" if sure else "Smallest fix found"
    return f"{smallest} under {gate}: restore {'; or '.join(sets)}{suffix}.{exact}"


def _scope(fixes: Fixes) -> Iterator[str]:
    count = len(fixes.sets)
    if fixes.complete:
        yield "That is the only minimal fix there is." if count == 1 else f"All {count} minimal fixes were found."
    else:
        searched = (
            f"All fixes of up to {quantity(fixes.exhaustive, 'toggle')} were searched, larger ones only in part"
            if fixes.exhaustive
            else "Fixes were searched only in part"
        )
        yield f"{searched} ({quantity(count, 'fix')} known)."
    if fixes.refused:
        yield f"An op refuses {fixes.refused} of the mixtures; they count as no fix."


def _staying(allowed: MayStay | None, fixes: Fixes, *, costs: bool) -> Iterator[str]:
    if allowed is None:
        return
    if not allowed.toggles:
        yield (
            "Under the gate no toggle may stay as in the candidate."
            if allowed.certain
            else "No toggle was found that may stay as in the candidate under the gate."
        )
        return
    reason = f"restoring the others costs {allowed.cost:g}" if costs else "the largest such set"
    suffix = "" if allowed.certain else ", as far as was looked"
    yield f"Under the gate {enumerated(allowed.toggles)} may stay as in the candidate ({reason}{suffix})."


def _in_pairs(shares: Waterfall) -> set[str]:
    """The toggles that another offsets."""
    return {name for pair in shares.pairs for name in (pair.first, pair.second)}


def _with_role(shares: Waterfall, role: Role) -> list[Share]:
    return [share for share in shares.shares if share.role is role and share.depth == 0]
