"""The summary's lines `blame` and `to set`, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from moeparity.bisection.toggles.data import ToggleResult
from moeparity.output.words import enumerated
from moeparity.plan.schedule.settings import NAMES
from moeparity.plan.toggles import SEMANTICS
from moeparity.search.blame import GONE_BELOW, Blame, Fix, Part

_NAMED = 6
"""A line names this many toggles, those that cost most alone, and points to `_ALL` for the others."""
_ALL = "--section toggles"
"""The option that prints all toggles with their flags."""


def who(blame: Blame) -> str:
    """The line `blame`: which toggles make the divergence, and by how much."""
    if not blame.named:
        return _nobody(blame)
    names = _listed(blame.named)
    match blame.kind:
        case "not finite":
            makes = "each alone make" if blame.named[1:] else "alone makes"
            return f"{names} {makes} NaN or infinities, of which no shares are taken"
        case "unseen":
            acts = "act" if blame.named[1:] else "acts"
            return f"{names} {acts}, and no scored token's log-probability shows it"
        case "offset":
            return f"{enumerated(blame.named)} offset each other: each hides the other"
        case "one":
            return f"{names} makes all of it"
        case "culprits":
            return _listed([_bounded(part) for part in blame.parts])
        case "interchangeable":
            return f"{names}, interchangeable{_how_alike(blame.parts)}"
        case "contributes":
            shares = [f"{part.name} {part.part:.0%}" for part in blame.parts]
            return f"{_listed(shares)}; restoring one alone does not surely lower the KL"
        case "any":
            least = min(part.part for part in blame.parts)
            return f"{_listed(blame.named, 'or')}: restoring one of them removes {_percent(least)}"
    return f"{names}: restoring it alone removes {_percent(blame.parts[0].part)}"


def _nobody(blame: Blame) -> str:
    """The line `blame` if no toggle is to blame."""
    if blame.kind == "nobody":
        return "nobody: no choice changes a bit"
    if blame.kind == "not finite":
        return "not known: no shares are taken of NaN or infinities"
    opening = "not decided with these sequences"
    if blame.parts:
        return f"{opening}: most is {blame.parts[0].name}, {blame.parts[0].part:.0%} alone"
    return f"{opening}: {blame.would_decide}" if blame.would_decide else opening


def _how_alike(parts: Sequence[Part]) -> str:
    # Parts that are shares have an interval; parts that are trials alone have NaN as bounds.
    if not all(math.isnan(part.low) for part in parts):
        return " (noise, saturated): shares do not tell them apart"
    sizes = [part.part for part in parts]
    least, most = min(sizes), max(sizes)
    span = f"{least:.0%}" if f"{least:.0%}" == f"{most:.0%}" else f"{100 * least:.0f}-{most:.0%}"
    return f": each alone makes {span} (noise, saturated)"


def _bounded(part: Part) -> str:
    return f"{part.name} {part.part:.0%} ({part.low:.0%} to {part.high:.0%})"


def to_set(blame: Blame, toggles: Sequence[ToggleResult], *, passes: bool = False) -> str:
    """The line `to set`: what to restore in the candidate, and by which flags. It never claims that something is enough
    unless that mixture was run.

    passes: the gate is passed, so that only choices which compute another function are worth restoring.
    """
    acting = [toggle for toggle in toggles if toggle.parent is None and not toggle.had_no_effect]
    functions = [toggle for toggle in acting if toggle.kind == SEMANTICS]
    if passes or blame.fix is None:
        nothing = (
            "nothing" if passes or blame.kind != "not finite" else "not known: no choice ends the NaN or infinities"
        )
        return _flags(functions) if functions else nothing
    mended = [toggle for toggle in functions if toggle.candidate_changed_by]
    line = _to_lower(blame.fix, acting)
    # A choice that computes another function has to go even if rounding noise hides its effect: no gate allows it.
    if not mended or all(toggle.candidate_changed_by in line for toggle in mended):
        return line
    return f"{_flags(mended)}, since it computes another function; then {line}"


def other_functions(toggles: Sequence[ToggleResult]) -> tuple[str, ...]:
    """A line for each choice of kind `semantics` that has an effect, with both sides' values."""
    return tuple(
        f"{toggle.name} is another function: {toggle.reference} | {toggle.candidate}"
        for toggle in toggles
        if toggle.parent is None and not toggle.had_no_effect and toggle.kind == SEMANTICS
    )


def _to_lower(fix: Fix, acting: Sequence[ToggleResult]) -> str:
    """What to restore to lower the measured divergence, and what that leaves of it."""
    by_name = {toggle.name: toggle for toggle in acting}
    restored = [by_name[name] for name in fix.toggles if name in by_name]
    if fix.ends:
        return f"{_flags(restored)}, which leaves no NaN or infinity"
    if fix.leaves:
        return f"{_flags(restored)}, which leaves {_percent(fix.leaves)}"
    if fix.tried:
        return f"{_flags(restored)}{', for equal bits' if fix.exact else ''}"
    together = " together" if acting[1:] else ""
    return f"none alone surely lowers it; all{together}, for equal bits: {_flags(restored)}"


def _flags(toggles: Sequence[ToggleResult]) -> str:
    """The candidate's flags that restore these toggles, each flag once. Of several flags, each is followed by what it
    restores. Toggles without a flag are given by name, parts of a schedule with the value to set.
    """
    by_flag: dict[str, list[str]] = {}
    for toggle in toggles:
        name = f"{toggle.name} ({toggle.reference})" if toggle.name in NAMES else toggle.name
        by_flag.setdefault(toggle.candidate_changed_by, []).append(name)
    bare = by_flag.pop("", [])
    if not by_flag and all(toggle.name in NAMES for toggle in toggles):
        return f"restore {_listed(bare)} on the candidate"
    if not by_flag:
        return f"restore {_listed(bare)} ({_elsewhere(toggles)})"
    flags = [f"{flag} ({', '.join(names)})" if 1 < len(toggles) <= _NAMED else flag for flag, names in by_flag.items()]
    further = f"; without a flag: {_listed(bare)}" if bare else ""
    return f"{enumerated(flags)} on the candidate{further}"


def _elsewhere(toggles: Sequence[ToggleResult]) -> str:
    """What to say of toggles for which the candidate has no flag: the reference's flags, if each of them has one. How
    much those would leave is not said, since nobody ran the changed reference.
    """
    flags = list(dict.fromkeys(toggle.reference_changed_by for toggle in toggles))
    if not any(flags):
        return "no flag known"
    return f"the candidate has no flag; the reference: {_listed(flags)}" if all(flags) else "the candidate has no flag"


def _percent(part: float) -> str:
    """A fraction as `83%`. Only exact zero prints as 0%, and only the exact whole as 100%."""
    if 0 < part < GONE_BELOW:
        return "<1%"
    return ">99%" if 1 - GONE_BELOW <= part < 1 else f"{part:.0%}"


def _listed(names: Sequence[str], word: str = "and") -> str:
    """All names; if they are more than `_NAMED`, the first ones and the option that prints the others."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} {word} {len(names) - _NAMED} more ({_ALL})"
    return enumerated(names, word)
