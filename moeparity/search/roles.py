"""What a toggle, or a group of them, does in a divergence: one word with an exact meaning."""

from __future__ import annotations

import math
from collections import Counter
from enum import IntEnum, StrEnum
from fractions import Fraction

from moeparity.search.contrast import Bounds, Contrast, Interval, surely_above, surely_below, usable
from moeparity.search.memo import Memo, Mixture, Outcome

SATURATION = 0.5
"""From this share of the whole divergence on, what is made alone and what is left when restored count as large."""

LEAST_SATURATION = 0.25
"""And surely from this share of it on, by the interval over sequences."""

OFFSETTING = 0.25
"""Where restoring a cell surely raises the divergence by more than this part of the whole, it cannot stand in."""

LEAST_HELP = Fraction(1, 100)
"""From this share of the whole divergence on, what is surely below 0 helps."""

SHARE = 0.1
"""From this share of the whole divergence on, what is surely there is a culprit."""


class Role(StrEnum):
    """What a cell does; the first that applies. A cell is a toggle, or a group whose toggles are moved together.

    Alone: the reference with this cell of the candidate. Restored: the candidate with this cell of the reference.
    Whole: the candidate. Surely: the 95 % interval over sequences is finite and says so, for this cell on its own; of a
    share that in nats, while that of the part of the whole is finite, and for blame says so too. Where orders were
    drawn, the intervals are those for the orders drawn, and the share's standard error is beside it.
    """

    REFUSED = "refused"
    """An op refuses it alone or restored, or the KL of one of these is not finite."""
    NO_EFFECT = "had no effect"
    """No two evaluated mixtures that differ by it alone differ: each sequence's sum, and being exact, are equal; and
    restoring it is not seen to change a bit of the candidate, which no sum shows of tokens that are not scored."""
    MASKED = "masked"
    """Alone it acts (not every node has the reference's bits); restored, each sequence's sum is that of the whole."""
    HELPS = "helps"
    """Its share is surely below 0, by `LEAST_HELP` of the whole or more, and no cell beside it offsets it: with it the
    candidate is nearer to the reference, as a mean over orders."""
    NEGLIGIBLE = "negligible"
    """Its share is surely below 0, but by less: an ulp that falls the other way is no help."""
    SATURATED = "saturated"
    """It is a legal choice, alone it makes `SATURATION` of the whole or more, restored as much is left, each surely
    `LEAST_SATURATION` (and not surely `OFFSETTING` more than the whole), and there is another such cell beside it: they
    can stand in for each other. The whole is above 0."""
    OFFSETS = "offsets"
    """It and another offset each other; or restoring it surely raises the divergence, though its share is not surely
    below 0: it undoes what others do."""
    CULPRIT = "culprit"
    """Its share is surely above 0 and `SHARE` of the whole or more, and restoring it surely lowers the divergence."""
    CONTRIBUTES = "contributes"
    """Its share is surely above 0, but it is no culprit: the share is small, or restoring it is not surely enough to
    lower the divergence."""
    UNDECIDED = "undecided"
    """Its share may be 0, or it may be saturated: more sequences would tell."""


class StandsIn(IntEnum):
    """Whether a cell can stand in for others: what it and one beside it can is the lesser of both."""

    NO = 0
    PERHAPS = 1
    """By what was measured, but not surely."""
    SURELY = 2


def role(
    memo: Memo,
    cell: Mixture,
    share: Fraction,
    intervals: tuple[Interval, Interval],
    change: Interval,
    stands_in: StandsIn,
    *,
    offset: bool,
) -> Role:
    """The role of a cell whose mixtures alone and restored are known; `stands_in`: for a cell beside it; `offset`: a
    cell beside it and this one offset each other.

    `intervals` bound its share, in nats per token and as a part of the whole; `change` what restoring it does (restored
    minus whole), in nats per token.
    """
    candidate, alone, restored = (memo[c] for c in (memo.everything, cell, memo.everything - cell))
    if candidate is None or alone is None or restored is None or not (usable(alone) and usable(restored)):
        return Role.REFUSED
    if restored.unchanged is not False and _idle(memo, cell):
        return Role.NO_EFFECT
    if not alone.exact and _equal(restored, candidate):
        return Role.MASKED
    if offset:
        return Role.OFFSETS
    in_nats, part = intervals
    # A whole of 0 has no parts.
    bounded = candidate.value == 0 or all(map(math.isfinite, part))
    if bounded and surely_below(in_nats):
        return Role.HELPS if -share >= LEAST_HELP * Fraction(candidate.value) else Role.NEGLIGIBLE
    # Restoring one of two that can stand in for each other often raises the divergence a little: no verdict on it.
    if stands_in:
        return Role.SATURATED if stands_in is StandsIn.SURELY else Role.UNDECIDED
    if surely_above(change):
        return Role.OFFSETS
    if not (bounded and surely_above(in_nats) and (candidate.value == 0 or surely_above(part))):
        return Role.UNDECIDED
    surely = share >= SHARE * Fraction(candidate.value) and surely_below(change)
    return Role.CULPRIT if surely else Role.CONTRIBUTES


def stands_in(memo: Memo, cell: Mixture, change: Interval, bounds: Bounds) -> StandsIn:
    """Whether a cell alone makes most of the whole, and all others make most of it too, but not surely far more.

    What is masked does not. `change`: as in `role`.
    """
    mixtures = memo.everything, cell, memo.everything - cell
    candidate, alone, restored = (memo[mixture] for mixture in mixtures)
    if candidate is None or alone is None or restored is None or not candidate.value > 0 or _equal(restored, candidate):
        return StandsIn.NO
    large = SATURATION * candidate.value
    if not (alone.value >= large and restored.value >= large) or change[0] > OFFSETTING * candidate.value:
        return StandsIn.NO
    surely = all(surely_above(_beyond(mixture, memo, bounds)) for mixture in mixtures[1:])
    return StandsIn.SURELY if surely else StandsIn.PERHAPS


def _beyond(mixture: Mixture, memo: Memo, bounds: Bounds) -> Interval:
    """By how much a mixture costs more than `LEAST_SATURATION` of the whole: a multiple of it, of the same sign."""
    least, unit = Fraction(LEAST_SATURATION).as_integer_ratio()
    # Of one player alone, which is the whole, what is left of both weights counts.
    weights = Counter({mixture: unit})
    weights.subtract({memo.everything: least})
    return Contrast(weights).interval(memo, bounds)


def _idle(memo: Memo, cell: Mixture) -> bool:
    """Whether moving the cell changes nothing in any pair of mixtures that is known."""
    pairs = (
        (outcome, memo.outcomes[mixture | cell])
        for mixture, outcome in memo.outcomes.items()
        if not mixture & cell and mixture | cell in memo.outcomes
    )
    return all(_equal(without, within) for without, within in pairs if without is not None and within is not None)


def _equal(a: Outcome, b: Outcome) -> bool:
    return a.sums == b.sums and a.exact == b.exact
