"""Who makes the divergence, and what to set, in a line each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from moeparity.bisection.nonfinite.report import Nonfinite
from moeparity.bisection.shares.report import Attribution, ShareRow
from moeparity.bisection.toggles.report import Offset, ToggleResult
from moeparity.output.words import enumerated, few, quantity
from moeparity.plan.schedule.settings import NAMES
from moeparity.search.roles import SATURATION

_NAMED = 2
"""So many toggles are named in a line."""
_HARDLY = 0.005
"""What is left of a divergence that is as good as gone."""


def blame(
    toggles: Sequence[ToggleResult],
    attribution: Attribution | None,
    total: float,
    *,
    offsets: Sequence[Offset] = (),
    nonfinite: Nonfinite | None = None,
) -> str:
    """Who makes the divergence and by how much: of shares, where they were asked for, else of both trials of each."""
    acting = _acting(toggles)
    if not acting:
        return "nobody: no choice changes a bit"
    if not math.isfinite(total):
        makers = nonfinite.made_by if nonfinite else ()
        return f"no shares of what is not finite; alone {_few(makers)} makes it" if makers else "no shares of NaN"
    if not total > 0 and not offsets:
        return f"{quantity(len(acting), 'choice')} act, and no scored token's log-probability shows it"
    if offsets:
        return f"{offsets[0].first} and {offsets[0].second} offset each other: each hides the other"
    # Bits say so, however few the sequences.
    if len(acting) == 1 and acting[0].restores_all:
        return f"{acting[0].name} makes all of it"
    if attribution is not None and attribution.shares.rows:
        return _by_shares([row for row in attribution.shares.rows if row.depth == 0])
    return _by_trials(acting, total)


def _by_trials(acting: Sequence[ToggleResult], total: float) -> str:
    alike = [
        toggle
        for toggle in acting
        if toggle.large and toggle.legal and not toggle.masked and _seems_large(toggle, total)
    ]
    if len(alike) > 1:
        parts = [_alone(toggle, total) for toggle in alike]
        return f"{len(alike)} choices, interchangeable: each alone makes {_span(parts)} (noise, saturated)"
    enough = [toggle for toggle in acting if toggle.restored_change_high < 0 and _remaining(toggle, total) < _HARDLY]
    if len(enough) > 1:
        least = max(_remaining(toggle, total) for toggle in enough)
        return f"{_either(enough)}: restoring one of them removes {_percent(1 - least)}"
    most = min(acting, key=lambda toggle: _remaining(toggle, total))
    if most.restored_change_high < 0:
        return f"{most.name}: restoring it alone removes {_percent(1 - _remaining(most, total))}"
    return f"not decided with these sequences: most is {most.name}, {_alone(most, total):.0%} alone"


def _by_shares(rows: Sequence[ShareRow]) -> str:
    by_role = {role: [row for row in rows if row.role == role] for role in ("culprit", "saturated", "contributes")}
    if guilty := by_role["culprit"]:
        return _few([_bounded(row) for row in guilty])
    if alike := by_role["saturated"]:
        return f"{len(alike)} choices, interchangeable (noise, saturated): shares name nobody"
    if parts := [f"{row.name} {row.of_whole:.0%}" for row in by_role["contributes"]]:
        return f"{_few(parts)}, not surely enough to lower it alone"
    needed = max((row.needed or 0 for row in rows), default=0)
    return "not decided with these sequences" + (f": about {needed} such are needed" if needed else "")


def _bounded(row: ShareRow) -> str:
    return f"{row.name} {row.of_whole:.0%} ({row.of_whole_low:.0%} to {row.of_whole_high:.0%})"


def to_set(
    toggles: Sequence[ToggleResult],
    attribution: Attribution | None,
    total: float,
    *,
    passes: bool = False,
    nonfinite: Nonfinite | None = None,
) -> str:
    """What to restore in the candidate, and by which flags; nothing that was not run is said to be enough."""
    acting = _acting(toggles)
    if passes or not acting:
        return "nothing"
    if attribution is not None and attribution.fixes and attribution.fixes[0].toggles:
        fix = attribution.fixes[0]
        bits = ", for equal bits" if fix.exact else ""
        return f"{_flags([toggle for toggle in acting if toggle.name in fix.toggles])}{bits}"
    exact = [toggle for toggle in acting if toggle.restores_all]
    if exact:
        return f"{_flags(exact[:1])}, for equal bits"
    ends = [toggle for toggle in acting if nonfinite and toggle.name in nonfinite.ended_by]
    if ends:
        return f"{_flags(ends[:1])}, which ends what is not finite"
    lowering = [toggle for toggle in acting if toggle.restored_change_high < 0]
    if lowering:
        best = min(lowering, key=lambda toggle: _remaining(toggle, total))
        return f"{_flags([best])}, which leaves {_percent(_remaining(best, total))}"
    # Also what another choice hides: it would wake where the other is restored.
    return f"none alone surely lowers it; all {len(acting)}, for equal bits: {_flags(acting)}"


def _flags(toggles: Sequence[ToggleResult]) -> str:
    """The flags of the candidate that take toggles back, each once; those without a flag by name, parts of a schedule
    with what to set.
    """
    flags = dict.fromkeys(toggle.candidate_changed_by for toggle in toggles if toggle.candidate_changed_by)
    bare = [toggle.name for toggle in toggles if not toggle.candidate_changed_by]
    parts = [f"{toggle.name} ({toggle.reference})" for toggle in toggles if toggle.name in NAMES]
    if not flags and len(parts) == len(bare):
        return f"restore {_few(parts)} on the candidate"
    if not flags:
        return f"restore {_few(bare)} ({_elsewhere(toggles)})"
    further = f"; {len(bare)} more without a flag" if bare else ""
    return f"{enumerated(list(flags))} on the candidate{further}"


def _elsewhere(toggles: Sequence[ToggleResult]) -> str:
    """Of toggles that the candidate has no flag for: those of the reference, where each of them has one. What these
    would leave is not said, since another reference is no trial that was run.
    """
    flags = list(dict.fromkeys(toggle.reference_changed_by for toggle in toggles))
    if not any(flags):
        return "no flag known"
    return f"the candidate has no flag; the reference: {_few(flags)}" if all(flags) else "the candidate has no flag"


def _acting(toggles: Iterable[ToggleResult]) -> list[ToggleResult]:
    return [toggle for toggle in toggles if toggle.parent is None and not toggle.had_no_effect]


def _seems_large(toggle: ToggleResult, total: float) -> bool:
    return _alone(toggle, total) >= SATURATION and _remaining(toggle, total) >= SATURATION


def _alone(toggle: ToggleResult, total: float) -> float:
    return 0.0 if toggle.alone is None else toggle.alone.kl / total


def _remaining(toggle: ToggleResult, total: float) -> float:
    return 1.0 if toggle.restored is None else toggle.restored.kl / total


def _span(parts: Sequence[float]) -> str:
    least, most = min(parts), max(parts)
    return f"{least:.0%}" if f"{least:.0%}" == f"{most:.0%}" else f"{100 * least:.0f}-{most:.0%}"


def _percent(part: float) -> str:
    """`83%`; never 0% or 100% of what is not."""
    if 0 < part < _HARDLY:
        return "<1%"
    return ">99%" if 1 - _HARDLY <= part < 1 else f"{part:.0%}"


def _either(toggles: Sequence[ToggleResult]) -> str:
    names = [toggle.name for toggle in toggles]
    return " or ".join(names) if len(names) <= _NAMED else f"any of {_few(names)}"


def _few(names: Sequence[str]) -> str:
    return few(names, _NAMED)
