"""One row of the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.peers.cases import Case, Plant


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one tool in one setting said of one case. Seconds and bytes include both sides' dumps.

    `location` is where the tool itself points; `first` the first nonzero difference in execution order in what it
    wrote, which a reader can look up; `places` and `first_places` are the modules or nodes these two mean.
    """

    tool: str
    verdict: str
    location: str = "-"
    places: tuple[str, ...] = ()
    first: str = "-"
    first_places: tuple[str, ...] = ()
    attribute: str = "-"
    attributes: tuple[str, ...] = ()
    code: int | None = None
    seconds: float = 0.0
    written: int = 0
    lines: tuple[str, ...] = ()


def culprits_named(case: Case, places: Iterable[str]) -> str:
    """How many culprits are among the places, as `1 of 2`; `-` or `false alarm` in a clean pair.

    A place inside the module that holds a culprit counts, as does the input of a module inside it (`before ...`).
    """
    flagged = set(places)
    if not case.plants:
        return "false alarm" if flagged else "-"
    hits = sum(any(_hits(plant, place) for place in flagged) for plant in case.plants)
    return f"{hits} of {len(case.plants)}"


def _hits(plant: Plant, place: str) -> bool:
    inside = place.removeprefix("before ").startswith(f"{plant.module}.")
    return inside or place in {plant.module, _node(plant.attribute)}


def named_attributes(case: Case, attributes: Iterable[str]) -> str:
    """How many culprits' attributes are named."""
    if not case.plants:
        return "false alarm" if tuple(attributes) else "-"
    return f"{len({plant.attribute for plant in case.plants} & set(attributes))} of {len(case.plants)}"


def _node(attribute: str | None) -> str | None:
    return None if attribute is None else attribute.partition(":")[0]
