"""Which layers, or which kinds of ops, to leave as the reference rounds them: sets of places, each of which is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from moeparity.bisection.mixtures import Mixtures
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.study import Study
from moeparity.ops.quantised import GRIDS, rounds_to_grid
from moeparity.plan.address import pattern
from moeparity.plan.difference import Difference
from moeparity.plan.toggles import Toggle, toggles
from moeparity.progress import Callback
from moeparity.search.by_size import Restored, by_size
from moeparity.search.contrast import Bounds
from moeparity.search.fixes import Fixes, fix_sets
from moeparity.search.ledger import EXACT
from moeparity.search.memo import Evaluate, Memo, Mixture, Outcome
from moeparity.search.tree import Cell, Group, leaves, prefixes
from moeparity.search.waterfall import Waterfall, localise

OP, LAYER = "op", "layer"
_PLACE_OF: Final[Mapping[str, Callable[[Difference], str]]] = {
    OP: lambda difference: difference.node.op.name,
    LAYER: lambda difference: (
        difference.node.name if difference.node.layer is None else difference.node.name.partition(".")[0]
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What leaving some places as the reference rounds them does; all other differences stay as in the candidate.

    by: `op` or `layer`. toggles: the places. unquantised: restoring takes numbers off a grid of 8 or 4 bits. shares: of
    what all places make together. sets: of each number of places, the one that leaves least of those run. fixes: the
    smallest sets that bring the candidate under the gate.
    """

    by: str
    toggles: tuple[Toggle, ...]
    unquantised: bool
    shares: Waterfall
    sets: tuple[Restored, ...]
    fixes: Fixes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesSearched:
    """Both groupings, and what they ran: mixtures, passes, seconds; refused mixtures with their reasons."""

    places: tuple[Places, ...]
    mixtures: int
    passes: int
    seconds: float
    refused: tuple[str, ...]


def places(study: Study, bounds: Bounds, progress: Callback | None, store: PieceStore | None) -> PlacesSearched:
    """Search by kinds of ops and by layers, each where there are several."""
    searched = []
    runs = []
    for by, bundled in _bundled(study).items():
        mixtures = Mixtures(replace(study, toggles=tuple(bundled)), progress=progress, store=store, name=f"shares-{by}")
        searched.append(_places(by, study, bundled, mixtures, bounds))
        runs.append(mixtures)
    return PlacesSearched(
        places=tuple(searched),
        mixtures=sum(run.walked for run in runs),
        passes=sum(run.passes for run in runs),
        seconds=sum(run.seconds for run in runs),
        refused=tuple(reason for run in runs for reason in run.refused.values()),
    )


def expected_of_places(study: Study) -> tuple[int, int]:
    """The fewest and the most mixtures of a search by places."""
    trees = [_tree([toggle.name for toggle in bundled if _is_place(toggle)]) for bundled in _bundled(study).values()]
    counts, budget = [len(leaves(tree)) for tree in trees], study.recipe.mixtures
    fewest = [prefixes(tree) if prefixes(tree) <= EXACT else count for tree, count in zip(trees, counts, strict=True)]
    return sum(fewest), sum(min(2**count, 2 * budget + count) for count in counts)


def _bundled(study: Study) -> dict[str, list[Toggle]]:
    """All differences, by grouping: those of rounding by place, the others as toggles of any name. Only groupings with
    several places.
    """
    groupings = {by: toggles(study.reference, study.candidate, _by(place)) for by, place in _PLACE_OF.items()}
    return {by: bundled for by, bundled in groupings.items() if sum(map(_is_place, bundled)) > 1}


def _by(place: Callable[[Difference], str]) -> Callable[[Difference], str]:
    return lambda difference: place(difference) if _rounds(difference) else ""


def _rounds(difference: Difference) -> bool:
    return rounds_to_grid(difference.node.op, difference.attribute)


def _is_place(toggle: Toggle) -> bool:
    return any(_rounds(member) for member in toggle.members)


def _places(by: str, study: Study, bundled: Sequence[Toggle], mixtures: Mixtures, bounds: Bounds) -> Places:
    members = tuple(toggle for toggle in bundled if _is_place(toggle))
    names = tuple(toggle.name for toggle in members)
    memo = Memo(names, _beside(frozenset(toggle.name for toggle in bundled) - frozenset(names), mixtures))
    shares = localise(memo, _tree(names), bounds, budget=study.recipe.mixtures)
    return Places(
        by=by,
        toggles=members,
        unquantised=_leaves_unquantised(study, members),
        shares=shares,
        sets=by_size(memo, shares, bounds),
        fixes=fix_sets(memo, study.gate.below, budget=study.recipe.mixtures),
    )


def _beside(others: Mixture, mixtures: Mixtures) -> Evaluate:
    """Evaluates mixtures of places, with everything else as in the candidate."""

    def evaluate(of_places: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        outcomes = mixtures([mixture | others for mixture in of_places])
        return {mixture: outcomes[mixture | others] for mixture in of_places}

    return evaluate


def _leaves_unquantised(study: Study, members: Sequence[Toggle]) -> bool:
    """Whether restoring these places takes numbers off a grid: the candidate has some on one there, the reference
    none.
    """
    nodes = {member.node.name: member.node for toggle in members for member in toggle.members}.values()
    reference, candidate = (
        any(value in GRIDS for node in nodes for value in side.plan.active(node).values())
        for side in (study.reference, study.candidate)
    )
    return candidate and not reference


def _tree(names: Sequence[str]) -> Cell:
    """The places; where not all of their orders can be taken, in nested halves."""
    group = Group("all", tuple(names))
    return group if prefixes(group) <= EXACT else _halved(names)


def _halved(names: Sequence[str]) -> Cell:
    if len(names) == 1:
        return names[0]
    half = (len(names) + 1) // 2
    return Group(pattern(names), (_halved(names[:half]), _halved(names[half:])))
