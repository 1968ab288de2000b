"""Roles: what a toggle, or a group of toggles, does in a divergence, in one word with an exact meaning."""

from __future__ import annotations

import math
from collections import Counter
from enum import IntEnum, StrEnum
from fractions import Fraction

from moeparity.search.contrast import Bounds, Contrast, Interval, surely_above, surely_below, usable
from moeparity.search.memo import Memo, Mixture, Outcome

SATURATION = 0.5
"""Making at least this fraction of the whole alone, or leaving it when restored, counts as large."""

LEAST_SATURATION = 0.25
"""By the interval over sequences, it surely has to be at least this fraction."""

OFFSETTING = 0.25
"""A cell whose restoring surely raises the divergence by more than this fraction of the whole can't replace another."""

LEAST_HELP = Fraction(1, 100)
"""A share that is surely below 0 helps if it is at least this fraction of the whole."""

SHARE = 0.1
"""A share that is surely above 0 can be a culprit if it is at least this fraction of the whole."""


class Role(StrEnum):
    """What a cell does; the first that applies. A cell is a toggle, or a group whose toggles are moved together.

    Alone: the reference with this cell of the candidate. Restored: the candidate with this cell of the reference.
    Whole: the candidate. Surely: the 95 % interval over sequences is finite and says so, for this cell by itself. For a
    share it is the interval in nats, if the interval as a fraction of the whole is finite; to blame a cell, both have
    to say so. If orders were drawn, the intervals are those for the drawn orders; the share's standard error is given
    beside them.
    """

    REFUSED = "refused"
    """An op refuses it alone or restored, or the KL of one of these is not finite."""
    NO_EFFECT = "had no effect"
    """Evaluated mixtures that differ by it alone have equal sums in every sequence and are both exact or both not, and
    restoring it is not seen to change a bit of the candidate. Such a change may also show at tokens that are not
    scored.
    """
    MASKED = "masked"
    """Alone it acts (not every node has the reference's bits); restored, each sequence's sum is that of the whole."""
    HELPS = "helps"
    """Its share is surely below 0, by at least `LEAST_HELP` of the whole, and no cell offsets it: with it the candidate
    is nearer to the reference, as a mean over orders.
    """
    NEGLIGIBLE = "negligible"
    """Its share is surely below 0, but by less: an ulp that happens to fall the other way is no help."""
    SATURATED = "saturated"
    """It can replace another such cell, and be replaced by it: both are legal choices, make at least `SATURATION` of
    the whole alone and leave as much when restored, each surely `LEAST_SATURATION`; restoring does not surely raise the
    divergence by `OFFSETTING` of the whole. The whole is above 0.
    """
    OFFSETS = "offsets"
    """It and another cell offset each other. Or restoring it surely raises the divergence, although its share is not
    surely below 0: it undoes what others do.
    """
    CULPRIT = "culprit"
    """Its share is surely above 0 and at least `SHARE` of the whole, and restoring it surely lowers the divergence."""
    CONTRIBUTES = "contributes"
    """Its share is surely above 0, but it is no culprit: the share is small, or restoring it does not surely lower the
    divergence."""
    UNDECIDED = "undecided"
    """Its share may be 0, or it may be saturated; more sequences would tell."""


class StandsIn(IntEnum):
    """Whether a cell can replace others. For a pair of cells the lesser value holds."""

    NO = 0
    PERHAPS = 1
    """By the measured values, but not surely."""
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
    """The role of a cell whose mixtures alone and restored are known.

    intervals: of its share, in nats per token and as a fraction of the whole. change: interval of restored minus whole,
    in nats per token. stands_in: whether it and a neighbouring cell can replace each other. offset: whether a
    neighbouring cell and this one offset each other.
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
    # A whole of 0 has no fractions.
    bounded = candidate.value == 0 or all(map(math.isfinite, part))
    if bounded and surely_below(in_nats):
        return Role.HELPS if -share >= LEAST_HELP * Fraction(candidate.value) else Role.NEGLIGIBLE
    # If two can replace each other, restoring one often raises the divergence a little, which says nothing.
    if stands_in:
        return Role.SATURATED if stands_in is StandsIn.SURELY else Role.UNDECIDED
    if surely_above(change):
        return Role.OFFSETS
    if not (bounded and surely_above(in_nats) and (candidate.value == 0 or surely_above(part))):
        return Role.UNDECIDED
    surely = share >= SHARE * Fraction(candidate.value) and surely_below(change)
    return Role.CULPRIT if surely else Role.CONTRIBUTES


def stands_in(memo: Memo, cell: Mixture, change: Interval, bounds: Bounds) -> StandsIn:
    """Whether a cell makes most of the whole alone, and all others make most of it too, but not surely far more.

    A masked cell can't replace another. change: as in `role`.
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
    """The interval of a mixture's cost minus `LEAST_SATURATION` of the whole, up to a positive factor."""
    least, unit = Fraction(LEAST_SATURATION).as_integer_ratio()
    # If the cell is the only player, the mixture is the whole, and its two weights have to be added.
    weights = Counter({mixture: unit})
    weights.subtract({memo.everything: least})
    return Contrast(weights).interval(memo, bounds)


def _idle(memo: Memo, cell: Mixture) -> bool:
    """Whether all known pairs of mixtures that differ by this cell alone have equal outcomes."""
    pairs = (
        (outcome, memo.outcomes[mixture | cell])
        for mixture, outcome in memo.outcomes.items()
        if not mixture & cell and mixture | cell in memo.outcomes
    )
    return all(_equal(without, within) for without, within in pairs if without is not None and within is not None)


def _equal(a: Outcome, b: Outcome) -> bool:
    return a.sums == b.sums and a.exact == b.exact
