"""What a toggle, or a group of them, does in a divergence: one word with an exact meaning."""

from __future__ import annotations

from enum import StrEnum
from fractions import Fraction

from moeparity.search.contrast import usable
from moeparity.search.memo import Coalition, Memo, Outcome

SATURATION = 0.5
"""From this share of the whole divergence on, what is made alone and what is left when restored count as large."""

OFFSETTING = 0.25
"""Where restoring a cell surely raises the divergence by more than this part of the whole, it cannot stand in."""

SHARE = 0.1
"""From this share of the whole divergence on, what is surely there is a culprit."""


class Role(StrEnum):
    """What a cell does; the first that applies. A cell is a toggle, or a group whose toggles are moved together.

    Alone: the reference with this cell of the candidate. Restored: the candidate with this cell of the reference.
    Whole: the candidate. Surely: the 95 % interval over sequences says so, for this cell on its own. Where orders were
    drawn, the interval is that for the orders drawn, and the share's standard error is beside it.
    """

    REFUSED = "refused"
    """An op refuses it alone or restored, or the KL of one of these is not finite."""
    NO_EFFECT = "had no effect"
    """No two evaluated mixtures that differ by it alone differ: each sequence's sum, and being exact, are equal."""
    MASKED = "masked"
    """Alone it acts (not every node has the reference's bits); restored, each sequence's sum is that of the whole."""
    HELPS = "helps"
    """It offsets no other, and its share is surely below 0: with it the candidate is nearer to the reference, as a mean
    over orders."""
    SATURATED = "saturated"
    """Alone it makes `SATURATION` of the whole or more, restored as much is left (not surely `OFFSETTING` more than
    the whole), and there is another such cell beside it: they can stand in for each other. The whole is above 0."""
    OFFSETS = "offsets"
    """It and another offset each other; or restoring it surely raises the divergence, though its share is not surely
    below 0: it undoes what others do."""
    CULPRIT = "culprit"
    """Its share is surely above 0 and `SHARE` of the whole or more, and restoring it surely lowers the divergence."""
    CONTRIBUTES = "contributes"
    """Its share is surely above 0, but it is no culprit: the share is small, or restoring it is not surely enough to
    lower the divergence."""
    UNDECIDED = "undecided"
    """The interval of its share holds 0: more sequences would tell."""


def role(
    memo: Memo,
    cell: Coalition,
    share: Fraction,
    interval: tuple[float, float],
    change: tuple[float, float],
    *,
    substitutes: bool,
    offset: bool,
) -> Role:
    """The role of a cell whose mixtures alone and restored are known; `substitutes`: a cell beside it can stand in;
    `offset`: a cell beside it and this one offset each other.

    `interval` bounds its share and `change` what restoring it does (restored minus whole), in nats per token.
    """
    candidate, alone, restored = (memo[c] for c in (memo.everything, cell, memo.everything - cell))
    if candidate is None or alone is None or restored is None or not (usable(alone) and usable(restored)):
        return Role.REFUSED
    if _idle(memo, cell):
        return Role.NO_EFFECT
    if not alone.exact and _equal(restored, candidate):
        return Role.MASKED
    if offset:
        return Role.OFFSETS
    if interval[1] < 0:
        return Role.HELPS
    # Restoring one of two that can stand in for each other often raises the divergence a little: no verdict on it.
    if substitutes and stands_in(memo, cell, change):
        return Role.SATURATED
    if change[0] > 0:
        return Role.OFFSETS
    if not interval[0] > 0:
        return Role.UNDECIDED
    surely = share >= SHARE * Fraction(candidate.value) and change[1] < 0
    return Role.CULPRIT if surely else Role.CONTRIBUTES


def stands_in(memo: Memo, cell: Coalition, change: tuple[float, float]) -> bool:
    """Whether a cell alone makes most of the whole, and all others make most of it too, but not surely far more.

    What is masked does not. `change`: as in `role`.
    """
    candidate, alone, restored = (memo[c] for c in (memo.everything, cell, memo.everything - cell))
    if candidate is None or alone is None or restored is None or not candidate.value > 0 or _equal(restored, candidate):
        return False
    large = SATURATION * candidate.value
    return alone.value >= large and restored.value >= large and not change[0] > OFFSETTING * candidate.value


def _idle(memo: Memo, cell: Coalition) -> bool:
    """Whether moving the cell changes nothing in any pair of mixtures that is known."""
    pairs = (
        (outcome, memo.outcomes[coalition | cell])
        for coalition, outcome in memo.outcomes.items()
        if not coalition & cell and coalition | cell in memo.outcomes
    )
    return all(_equal(without, within) for without, within in pairs if without is not None and within is not None)


def _equal(a: Outcome, b: Outcome) -> bool:
    return a.sums == b.sums and a.exact == b.exact
