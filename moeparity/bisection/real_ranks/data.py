"""What the ranks of a live job computed, compared with simulated ranks; plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

RanksKind = Literal["simulated", "real"]
"""Whether all ranks are computed in one process, or also each in a process of its own."""

SIMULATED: Final[RanksKind] = "simulated"
REAL: Final[RanksKind] = "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The sums over ranks at one node of all layers that are alike, with the order that the side states.

    call: the backend's collective. messages: how many were summed. least_elements, most_elements: of one rank's
    message.
    differing: messages whose sum has other bits than the simulated one. orders: shipped collectives that give all bits
    of the backend's sums here. probed: the collectives that the probe found for the longest message that differs.
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
    """One side: its number of ranks, its sums, and how many nodes have whole values on every rank.

    unequal: those of these nodes that have other bits than simulated on some rank, in the order of the graph.
    """

    side: str
    ranks: int
    nodes: int
    unequal: tuple[str, ...]
    sites: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRanks:
    """The job: its backend, its number of processes, and the sides that are spread over ranks."""

    backend: str
    processes: int
    sides: tuple[SideOnRanks, ...]
    reading: tuple[str, ...] = ()
