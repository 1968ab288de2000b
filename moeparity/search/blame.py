"""Decides which choices make a divergence, how much each makes, how sure that is, and what to restore. The decision
rests on shares, or on the two trials of each choice. Every sentence about blame prints this decision.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from moeparity.search.contrast import Interval, surely_above, surely_below
from moeparity.search.roles import SATURATION, Role

BlameKind = Literal[
    "nobody",
    "unseen",
    "not finite",
    "offset",
    "one",
    "culprits",
    "interchangeable",
    "any",
    "most",
    "contributes",
    "undecided",
    "record",
    "trace",
]
"""What a blame says, in this order: no choice acts; the choices that act reach no scored token; choices make
NaN or infinities; two choices hide each other; one choice alone makes everything; shares name the culprits; several
choices can replace each other; restoring any one of several is enough; restoring one choice lowers the divergence most;
some choices have shares, but restoring none surely lowers the divergence; nothing is decided; the record decides, not
the choices; the candidate is a trace, which has no choices.
"""
GONE_BELOW = 0.005
"""If less than this fraction of a divergence is left, it counts as gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A choice's name, the fraction of the divergence that it makes, and the 95 % interval of this fraction; NaN if
    unknown.
    """

    name: str
    part: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """Choices to restore together.

    tried: the candidate with these restored was run; if False, these are all choices that act, and nothing was run.
    exact: the reference's bits come back. leaves: the fraction of the divergence that is left; None if unknown. ends:
    no NaN or infinity is left.
    """

    toggles: tuple[str, ...]
    tried: bool = True
    exact: bool = False
    leaves: float | None = None
    ends: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Which choices make the divergence.

    named: the choices to blame, the largest first. parts: the fractions that they make, as far as these were measured.
    fix: what to restore; None if nothing has to be. confidence: `bits` (equal or unequal bits prove it), `sure` (by
    intervals over sequences), `open` (neither). alternatives: choices that can replace those named. ruled_out: choices
    that change no bit, or whose effect does not show in the candidate. would_decide: what would settle an open
    question; "" if none is open.
    """

    kind: BlameKind
    named: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    fix: Fix | None = None
    confidence: Literal["bits", "sure", "open"] = "open"
    alternatives: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    would_decide: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A choice that may be to blame.

    role: by its share if shares were taken, else by `by_trials`. alone, restored: the fraction of the divergence that
    the choice makes alone, and the fraction that is left when it is restored; None if that mixture can't run. lowers:
    restoring it surely lowers the divergence. restores_all: restoring it brings all bits back. share: its fraction of
    the divergence, if shares were taken. needed: how many sequences would decide its share.
    """

    name: str
    role: Role
    alone: float | None
    restored: float | None
    lowers: bool = False
    restores_all: bool = False
    share: Part | None = None
    needed: int | None = None


def by_trials(
    *,
    acts: bool,
    masked: bool,
    legal: bool,
    large: bool,
    parts: tuple[float | None, float | None],
    change: Interval,
) -> Role:
    """The role of a choice, as far as its two trials show it.

    acts: it changes bits. masked: it changes bits in the reference, but restoring it changes no bit of the candidate.
    legal: it is a legal choice. large: both trials surely are large. parts: the fraction of the divergence that it
    makes alone, and the fraction that is left when it is restored; None if that mixture can't run. change: 95 %
    interval of the KL's change when it is restored.
    """
    if not acts:
        return Role.NO_EFFECT
    if masked:
        return Role.MASKED
    if seems_large(parts) and legal:
        return Role.SATURATED if large else Role.UNDECIDED
    if surely_below(change):
        return Role.CULPRIT
    if surely_above(change):
        return Role.OFFSETS
    return Role.REFUSED if None in parts else Role.UNDECIDED


def seems_large(parts: tuple[float | None, float | None]) -> bool:
    """Whether a choice makes most of a divergence alone, and most is left when it is restored, by the mere values."""
    # min() may drop a NaN.
    return all(part is not None and part >= SATURATION for part in parts)


def blame(
    suspects: Sequence[Suspect],
    *,
    total: float,
    shared: bool = False,
    offsets: Collection[tuple[str, str]] = (),
    makers: Sequence[str] = (),
    enders: Sequence[str] = (),
    searched_fix: Fix | None = None,
) -> Blame:
    """Decides which choices make a divergence of `total` nats per token, and what to restore.

    shared: the suspects have shares. offsets: pairs that hide each other. makers, enders: choices that alone make NaN
    or infinities, and choices whose restoring ends them. searched_fix: the smallest fix that a search found.
    """
    acting = [suspect for suspect in suspects if suspect.role is not Role.NO_EFFECT]
    ruled_out = tuple(s.name for s in suspects if s.role in (Role.NO_EFFECT, Role.MASKED))
    culprits = _culprits(acting, total=total, shared=shared, offsets=offsets, makers=makers)
    return replace(
        culprits,
        fix=_fix(acting, enders, searched_fix),
        ruled_out=tuple(name for name in ruled_out if name not in culprits.named),
    )


def _culprits(
    acting: Sequence[Suspect],
    *,
    total: float,
    shared: bool,
    offsets: Collection[tuple[str, str]],
    makers: Sequence[str],
) -> Blame:
    """The blame without its fix."""
    if not acting:
        return Blame(kind="nobody", confidence="bits")
    if not math.isfinite(total):
        return Blame(kind="not finite", named=tuple(makers), confidence="bits" if makers else "open")
    if not total > 0 and not offsets:
        return Blame(kind="unseen", named=_names(acting), confidence="bits")
    if offsets:
        first = next(iter(offsets))
        return Blame(kind="offset", named=first, confidence="sure")
    # Equal bits prove it, however few the sequences.
    if len(acting) == 1 and acting[0].restores_all:
        return Blame(kind="one", named=_names(acting), parts=(Part(name=acting[0].name, part=1.0),), confidence="bits")
    return _by_shares(acting) if shared else _by_trials(acting)


def _by_shares(acting: Sequence[Suspect]) -> Blame:
    of_role = {role: [s for s in acting if s.role is role] for role in Role}
    for role, kind in (
        (Role.CULPRIT, "culprits"),
        (Role.SATURATED, "interchangeable"),
        (Role.CONTRIBUTES, "contributes"),
    ):
        if members := of_role[role]:
            parts = tuple(s.share for s in members if s.share is not None)
            names = tuple(s.name for s in members)
            certain = "open" if role is Role.CONTRIBUTES else "sure"
            return Blame(kind=kind, named=names, parts=parts, confidence=certain)  # type: ignore[arg-type]
    needed = max((s.needed or 0 for s in acting), default=0)
    return Blame(kind="undecided", would_decide=f"about {needed} such sequences are needed" if needed else "")


def _by_trials(acting: Sequence[Suspect]) -> Blame:
    alike = _by_effect([s for s in acting if s.role is Role.SATURATED])
    if len(alike) > 1:
        parts = tuple(Part(name=s.name, part=_alone(s)) for s in alike)
        return Blame(kind="interchangeable", named=_names(alike), parts=parts, confidence="sure")
    enough = [s for s in acting if s.lowers and _rest(s) < GONE_BELOW]
    if len(enough) > 1:
        parts = tuple(Part(name=s.name, part=1 - _rest(s)) for s in _by_effect(enough))
        return Blame(kind="any", named=_names(enough), parts=parts, confidence="sure")
    tried = [s for s in acting if _is_number(s.restored)] or [s for s in _by_effect(acting) if _is_number(s.alone)]
    if not tried:
        return Blame(kind="undecided")
    most = min(tried, key=_rest)
    if most.lowers:
        parts = (Part(name=most.name, part=1 - _rest(most)),)
        return Blame(kind="most", named=(most.name,), parts=parts, confidence="sure")
    # Told as the one that makes most alone, so it has to be that one.
    largest = next((s for s in _by_effect(acting) if _is_number(s.alone)), most)
    parts = (Part(name=largest.name, part=_alone(largest)),)
    return Blame(kind="undecided", alternatives=(largest.name,), parts=parts, would_decide="more sequences")


def _fix(acting: Sequence[Suspect], enders: Sequence[str], searched_fix: Fix | None) -> Fix | None:
    """What to restore; None if nothing acts. Only a mixture that was run is said to be enough."""
    if not acting:
        return None
    if searched_fix is not None and searched_fix.toggles:
        return searched_fix
    exact = [s for s in acting if s.restores_all]
    if exact:
        return Fix(toggles=(exact[0].name,), exact=True)
    ends = [s for s in acting if s.name in enders]
    if ends:
        return Fix(toggles=(ends[0].name,), ends=True)
    lowering = [s for s in acting if s.lowers]
    if lowering:
        best = min(lowering, key=_rest)
        return Fix(toggles=(best.name,), leaves=_rest(best))
    # Masked choices included: they would wake once the choice that hides them is restored.
    return Fix(toggles=_names(acting), tried=False, exact=True)


def _is_number(part: float | None) -> bool:
    """Whether a trial ran and gave a number."""
    return part is not None and math.isfinite(part)


def _rest(suspect: Suspect) -> float:
    return suspect.restored if suspect.restored is not None and _is_number(suspect.restored) else 1.0


def _alone(suspect: Suspect) -> float:
    return suspect.alone if suspect.alone is not None and _is_number(suspect.alone) else 0.0


def _by_effect(suspects: Sequence[Suspect]) -> list[Suspect]:
    return sorted(suspects, key=lambda suspect: -_alone(suspect))


def _names(suspects: Sequence[Suspect]) -> tuple[str, ...]:
    return tuple(suspect.name for suspect in _by_effect(suspects))
