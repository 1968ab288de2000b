"""Trees of toggles in nested groups, and the orders of toggles that keep every group together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Container, Iterator
from dataclasses import dataclass

from moeparity.search.memo import Players


@dataclass(frozen=True, slots=True)
class Group:
    """Toggles that belong together, such as those of a fusion, a placement or an attribute, or the layers of one of
    these.

    Raises ValueError for a group without members, or with a player twice.
    """

    name: str
    members: tuple[Cell, ...]

    def __post_init__(self) -> None:
        players = leaves(self)
        if not players or len(set(players)) != len(players):
            raise ValueError(f"group {self.name!r} holds {list(players)}; players expected, each once")


Cell = Group | str
"""A group, or a player."""


def leaves(cell: Cell) -> Players:
    """The players of a cell, in order."""
    return (cell,) if isinstance(cell, str) else tuple(leaf for member in cell.members for leaf in leaves(member))


def name(cell: Cell) -> str:
    """A group's name, or the player's own."""
    return cell if isinstance(cell, str) else cell.name


def walk(cell: Cell, depth: int = 0, inside: Container[Cell] | None = None) -> Iterator[tuple[Cell, int]]:
    """A cell and all cells below it, each with its depth and before its members; with `inside`, only members of
    those groups.
    """
    yield cell, depth
    if isinstance(cell, Group) and (inside is None or cell in inside):
        for member in cell.members:
            yield from walk(member, depth + 1, inside)


def prefixes(tree: Cell) -> int:
    """How many different mixtures all orders of `every_order` pass through, first and last included."""
    return _inner(tree) + 2


def _inner(cell: Cell) -> int:
    """How many mixtures lie strictly within a cell: some members whole, and at most one other partly."""
    if isinstance(cell, str):
        return 0
    count = len(cell.members)
    return (1 << count) - 2 + sum(_inner(member) << (count - 1) for member in cell.members)


def every_order(cell: Cell) -> Iterator[Players]:
    """Every order of the players in which the players of each group, at every level, are neighbours."""
    if isinstance(cell, str):
        yield (cell,)
        return
    for members in itertools.permutations(cell.members):
        for parts in itertools.product(*(list(every_order(member)) for member in members)):
            yield tuple(itertools.chain(*parts))


def drawn_order(cell: Cell, draw: random.Random) -> Players:
    """A random one of the orders of `every_order`, all equally likely."""
    if isinstance(cell, str):
        return (cell,)
    members = draw.sample(cell.members, len(cell.members))
    return tuple(itertools.chain(*(drawn_order(member, draw) for member in members)))
