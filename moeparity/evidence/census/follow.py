"""Two censuses around an update: which tensors followed the weights that they were made of, and which did not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from moeparity.evidence.census.census import Census, Entry
from moeparity.evidence.census.forms import Making
from moeparity.evidence.census.lanes import TOTAL, Lanes
from moeparity.evidence.census.outcome import Derived, Outcome
from moeparity.output.words import few

_LANES = {2: "rows", 1: "columns", 0: "lanes along its first axis", TOTAL: "elements"}


def followed(before: Census, after: Census) -> list[Derived]:
    """What became of each tensor that was there before and that is a weight's view, was made of weights, or is unknown;
    views and copies that followed by themselves among them.
    """
    return [*_tensors(before, after), *_moved(before, after)]


def _tensors(before: Census, after: Census) -> Iterator[Derived]:
    for path, old in before.entries.items():
        new = after.entries.get(path)
        if new is None:
            continue
        if old.twins:
            yield from _twins(old, after)
        if old.view_of:
            yield _view(old, new, before, after)
        elif old.origin is not None:
            yield _copy(old, new, before, after)
        elif old.kind == "attribute":
            changed = "changed" if old.bits != new.bits else "did not change"
            yield Derived(path=path, kind=old.kind, sources=(), outcome="unknown", says=changed)


def _view(old: Entry, new: Entry, before: Census, after: Census) -> Derived:
    """A view of a weight's storage, which follows by itself unless one of them is moved."""
    weight, place = after.entries.get(old.view_of), before.entries[old.view_of].storage
    outcome: Outcome = "followed"
    if before.process == after.process and weight is not None and new.storage == old.storage != weight.storage:
        outcome = "parted" if place == old.storage else "followed"
    says = "it keeps the storage that the weight has left" if outcome == "parted" else "a view"
    return Derived(path=old.path, kind=old.kind, sources=(old.view_of,), outcome=outcome, says=says)


def _twins(old: Entry, after: Census) -> Iterator[Derived]:
    """Further names of a weight, under which another is registered now."""
    for name in old.twins:
        new, weight = after.entries.get(name), after.entries.get(old.path)
        if new is not None and weight is not None and new.storage != weight.storage:
            says = "they were one tensor and are two"
            yield Derived(path=name, kind=old.kind, sources=(old.path,), outcome="parted", says=says)


def _copy(old: Entry, new: Entry, before: Census, after: Census) -> Derived:
    """A tensor that was made of weights, by the sums of its lanes."""
    assert old.origin is not None
    origin, old_lanes, new_lanes = old.origin, old.lanes, new.lanes
    makings = [making for making in origin.makings if making in before.values]
    gone = [making for making in makings if making not in after.values]
    outcome: Outcome = "apart"
    sources, says = origin.sources, _how(origin.makings)
    if old_lanes is None or new_lanes is None or gone or new.origin != origin:
        says = "what it was made of is gone" if gone else "it has another shape"
        return Derived(path=old.path, kind=old.kind, sources=sources, outcome="apart", says=says)
    was = {making: _lanes(before.values[making], origin.axis) for making in makings}
    current = torch.cat([_lanes(after.values[making], origin.axis) for making in makings])
    former = torch.cat(list(was.values()))
    # What did not change though its weight did is stale too, if it is no value of the weight that was seen.
    former = former if torch.equal(former, current) else torch.cat((former, old_lanes))
    lanes = new_lanes[new_lanes != 0]
    old_values = torch.isin(lanes, former) & ~torch.isin(lanes, current)
    if bool(old_values.any()):
        outcome = "stale"
        sources = _blamed(lanes[old_values], was, current)
        part = f"{int(old_values.sum())} of its {len(lanes)} {_LANES[origin.axis]}"
        part = "all of it" if bool(old_values.all()) else part
        says = f"{part}: {says}"
    elif bool(torch.isin(lanes, current).all()):
        outcome = "unmoved" if torch.equal(old_lanes, new_lanes) else "followed"
    return Derived(path=old.path, kind=old.kind, sources=sources, outcome=outcome, says=says)


def _blamed(stale: torch.Tensor, was: Mapping[Making, torch.Tensor], current: torch.Tensor) -> tuple[str, ...]:
    """The sources of those makings that gave the lanes which are stale."""
    makings = [making for making, sums in was.items() if bool(torch.isin(stale, sums).any())]
    return tuple(dict.fromkeys(name for making in makings or was for name in making.sources))


def _lanes(lanes: Lanes, axis: int) -> torch.Tensor:
    if axis == TOTAL:
        return lanes.total
    parts = [sums for place, sums in lanes.sums.items() if place != TOTAL]
    return torch.cat(parts) if parts else lanes.total


def _how(makings: tuple[Making, ...]) -> str:
    return few(list(dict.fromkeys(making.form for making in makings)), 2)


def _moved(before: Census, after: Census) -> Iterator[Derived]:
    """Tensors that lie elsewhere while a graph lives on that was captured before: it reads the old addresses."""
    graphs = [path for path, number in before.graphs.items() if after.graphs.get(path) == number]
    if not graphs or before.process != after.process:
        return
    for path, old in before.entries.items():
        new = after.entries.get(path)
        if new is not None and old.address and new.address and old.address != new.address:
            says = f"{few(graphs, 2)}, captured before, reads the old address"
            yield Derived(path=path, kind=old.kind, sources=(), outcome="moved", says=says)
