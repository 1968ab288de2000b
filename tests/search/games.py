"""Games to search: memos over a value function, some with refused mixtures, and what brute force finds in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from moeparity.search.memo import Memo, Mixture, Outcome, Players
from moeparity.search.tree import Cell, Group, every_order, leaves

Value = Callable[[Mixture], float | None]
Worth = Callable[[Mixture], Fraction]


def outcome(value: float, *, exact: bool | None = None, sums: Sequence[float] | None = None) -> Outcome:
    """Three sequences of one token and the same value each unless `sums`; exact where the value is 0."""
    sums = (value,) * 3 if sums is None else tuple(sums)
    return Outcome(
        value=value,
        k3=value,
        upper=value,
        sums=tuple(sums),
        tokens=(1.0,) * len(sums),
        exact=value == 0 if exact is None else exact,
    )


def memo_of(players: Players, value: Value) -> Memo:
    def evaluate(mixtures: Sequence[Mixture]) -> dict[Mixture, Outcome | None]:
        assert len(set(mixtures)) == len(mixtures)
        values = {mixture: value(mixture) for mixture in mixtures}
        return {mixture: None if v is None else outcome(v) for mixture, v in values.items()}

    return Memo(players, evaluate)


def names(count: int) -> Players:
    return tuple(f"t{i}" for i in range(count))


def subsets(players: Iterable[str]) -> list[Mixture]:
    players = list(players)
    sizes = range(len(players) + 1)
    return [frozenset(subset) for size in sizes for subset in itertools.combinations(players, size)]


def random_game(players: Players, seed: int) -> dict[Mixture, float]:
    """Any value for any mixture, so neither monotone nor additive."""
    draw = random.Random(seed)  # noqa: S311
    values = {c: draw.choice([draw.random(), draw.uniform(-1, 1) * 1e-3, 0.25]) for c in subsets(players)}
    return {**values, frozenset(): 0.0}


def refusing_game(players: Players, seed: int, refusal_rate: float) -> dict[Mixture, float | None]:
    """A random game that refuses a share of its mixtures, but never the two ends."""
    draw = random.Random(seed + 1)  # noqa: S311
    ends = {0, len(players)}
    game = random_game(players, seed)
    return {c: None if len(c) not in ends and draw.random() < refusal_rate else value for c, value in game.items()}


def sparse_game(players: Players, seed: int) -> dict[Mixture, float]:
    """0 where one of a few sets, or everything, is restored, else 1: restoring more nearly always makes it worse."""
    draw = random.Random(seed)  # noqa: S311
    fixes = {frozenset(player for player in players if draw.random() < 0.6) for _ in range(6)} | {frozenset(players)}
    return {mixture: float(frozenset(players) - mixture not in fixes) for mixture in subsets(players)}


def no_bounds(sums: Sequence[float], tokens: Sequence[float]) -> tuple[float, float]:
    """The estimate as its own interval: for games that are what they are, without sampling."""
    mean = sum(sums) / sum(tokens)
    return mean, mean


def shapley(players: Players, value: Mapping[Mixture, float]) -> dict[str, Fraction]:
    """The textbook's formula: marginal costs weighed with |S|! (n - |S| - 1)! / n!."""
    shares = {}
    for player in players:
        total = Fraction()
        for mixture in subsets(set(players) - {player}):
            weight = Fraction(_factorial(len(mixture)) * _factorial(len(players) - len(mixture) - 1))
            gain = Fraction(value[mixture | {player}]) - Fraction(value[mixture])
            total += weight / _factorial(len(players)) * gain
        shares[player] = total
    return shares


def owen(tree: Cell, value: Mapping[Mixture, float]) -> dict[str, Fraction]:
    """Owen's formula by recursion: Shapley among a group's members, each of which stands for all its players.

    The share of a player is the Shapley value, at its lowest level, of the game in which each set of its neighbours is
    worth what its ancestor would get at the level above if of that ancestor only this set took part.
    """

    def descend(cell: Cell, worth: Worth) -> dict[str, Fraction]:
        if isinstance(cell, str):
            return {cell: worth(frozenset({cell}))}
        shares: dict[str, Fraction] = {}
        for member in cell.members:
            siblings = [frozenset(leaves(sibling)) for sibling in cell.members if sibling is not member]
            shares |= descend(member, _among(siblings, worth))
        return shares

    return descend(tree, lambda mixture: Fraction(value[mixture]) - Fraction(value[frozenset()]))


def _among(siblings: list[Mixture], worth: Worth) -> Worth:
    """What a part of a member gets, as a player among the other whole members."""

    def part(part_of_cell: Mixture) -> Fraction:
        total = Fraction()
        count = len(siblings) + 1
        for size in range(count):
            weight = Fraction(_factorial(size) * _factorial(count - size - 1), _factorial(count))
            for predecessors in itertools.combinations(siblings, size):
                base: Mixture = frozenset().union(*predecessors)
                total += weight * (worth(base | part_of_cell) - worth(base))
        return total

    return part


def by_orders(tree: Cell, value: Mapping[Mixture, float | None]) -> tuple[dict[str, Fraction], int]:
    """Mean costs over the orders that keep groups together and meet no refused mixture, and how many these are."""
    orders = [o for o in every_order(tree) if all(value[frozenset(o[:i])] is not None for i in range(len(o) + 1))]
    shares = dict.fromkeys(leaves(tree), Fraction())
    for order in orders:
        for i, player in enumerate(order):
            value_with, value_without = (value[frozenset(order[:end])] or 0.0 for end in (i + 1, i))
            shares[player] += (Fraction(value_with) - Fraction(value_without)) / len(orders)
    return shares, len(orders)


def minimal_fixes(players: Players, value: Value, gate: float) -> set[Mixture]:
    """Every set that is a fix with no proper subset that is one, looked up among all subsets."""

    def is_fix(toggles: Mixture) -> bool:
        worth = value(frozenset(players) - toggles)
        return worth is not None and (worth == 0 or worth < gate)

    fixes = [toggles for toggles in subsets(players) if is_fix(toggles)]
    return {fix for fix in fixes if not any(smaller < fix for smaller in fixes)}


def _factorial(n: int) -> int:
    return n * _factorial(n - 1) if n else 1


def halves(label: str, players: Players) -> Cell:
    """Players in nested halves, the first being the larger, for a search among layers; one player is itself.

    Halves are named after their first and last player.
    """
    if len(players) == 1:
        return players[0]
    middle = (len(players) + 1) // 2
    parts = (players[:middle], players[middle:])
    return Group(label, tuple(halves(f"{part[0]} to {part[-1]}", part) for part in parts))
