"""What the ranks of a live job computed, beside what simulated ranks did; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

RanksKind = Literal["simulated", "real"]
"""Whether all ranks are computed in one process, or also each in its own."""

SIMULATED: Final[RanksKind] = "simulated"
REAL: Final[RanksKind] = "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Sums over ranks at a node, in all layers that are alike: its role, and the order that the side states.

    call: of the backend. elements: of a rank's message, the fewest and the most. differing: messages whose sum has
    other bits than the simulated one. orders: shipped collectives with all bits of the backend's sums at this site.
    probed: the collectives that the probe named, of what the backend does with the longest message that differs.
    """

    node: str
    order: str
    call: str
    ranks: int
    dtype: str
    messages: int
    least_elements: int
    most_elements: int
    differing: int
    orders: tuple[str, ...] = ()
    probed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SideOnRanks:
    """One side: over how many ranks it lies, its sums, and how many nodes have whole values on every rank.

    unequal: those of them with other bits than simulated on some rank, in the order of the graph; "logits" is none: the
    head is one of the nodes.
    """

    side: str
    ranks: int
    nodes: int
    unequal: tuple[str, ...]
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRanks:
    """The job: its backend, its processes, and both sides; one that is not laid over ranks is not in it."""

    backend: str
    processes: int
    sides: tuple[SideOnRanks, ...]
    reading: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every value on real ranks has the bits of simulated ones."""
        return not any(side.unequal or any(site.differing for site in side.sites) for side in self.sides)
