"""The oracle of a search: mixtures of two sides, evaluated in batches and never twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Players = tuple[str, ...]
"""Names of toggles, in the order a report tells them."""

Coalition = frozenset[str]
"""The toggles at the candidate's value; all others are at the reference's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one mixture of both sides shows against the reference.

    value: full-vocabulary KL, nats per scored token; the quantity that is shared out.
    k3: the gate's estimator on the recipe's tokens, nats per scored token.
    upper: upper 95 % bound of the gate's metric, infinite where there are too few sequences for a verdict; what a fix
        set compares with the gate.
    sums, tokens: [B]; the sum of `value`'s KL over the scored tokens of each sequence, and their number.
    exact: the reference's bits at every node.
    """

    value: float
    k3: float
    upper: float
    sums: tuple[float, ...]
    tokens: tuple[float, ...]
    exact: bool


Evaluate = Callable[[Sequence[Coalition]], Mapping[Coalition, Outcome | None]]
"""Evaluates different mixtures, all in one batch; None where an op refuses the mixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a search asked that was not known before: mixtures, and the batches they were asked in.

    A batch is one pass over the weights; naive ablation takes a pass for each mixture.
    """

    mixtures: int
    batches: int


class Oracle:
    """A memo around `evaluate`, which is asked in batches and never twice for one mixture.

    `players` are all toggles, without repeats. `mixtures` and `batches` count what was asked so far.
    Raises ValueError for repeated players.
    """

    def __init__(self, players: Players, evaluate: Evaluate) -> None:
        if len(set(players)) != len(players):
            raise ValueError(f"players are {list(players)}; every name once expected")
        self.players = players
        self.mixtures = 0
        self.batches = 0
        self._evaluate = evaluate
        self._known: dict[Coalition, Outcome | None] = {}

    @property
    def everything(self) -> Coalition:
        """The candidate itself: every toggle at the candidate's value."""
        return frozenset(self.players)

    @property
    def known(self) -> Mapping[Coalition, Outcome | None]:
        """All mixtures evaluated so far, in the order they were asked."""
        return self._known

    def unknown(self, coalitions: Iterable[Coalition]) -> list[Coalition]:
        """The mixtures that asking would evaluate: without repeats, in the order given."""
        return [coalition for coalition in dict.fromkeys(coalitions) if coalition not in self._known]

    def ask(self, coalitions: Iterable[Coalition]) -> list[Outcome | None]:
        """The outcome of each mixture, in the order given; what is not known is evaluated in one batch.

        Raises ValueError for a mixture with a toggle that is no player, and where `evaluate` leaves one out.
        """
        wanted = list(coalitions)
        new = self.unknown(wanted)
        if new:
            strangers = sorted(frozenset().union(*new) - self.everything)
            if strangers:
                raise ValueError(f"mixtures of {strangers}; only players expected: {list(self.players)}")
            self._learn(new, self._evaluate(new))
        return [self._known[coalition] for coalition in wanted]

    def _learn(self, asked: Sequence[Coalition], answers: Mapping[Coalition, Outcome | None]) -> None:
        missing = [sorted(coalition) for coalition in asked if coalition not in answers]
        if missing:
            raise ValueError(f"no answer for {missing}; an outcome or None for each mixture expected")
        self._known.update({coalition: answers[coalition] for coalition in asked})
        self.mixtures += len(asked)
        self.batches += 1

    def __getitem__(self, coalition: Coalition) -> Outcome | None:
        return self.ask([coalition])[0]

    def since(self, earlier: Spent) -> Spent:
        """What was asked since the oracle's `spent` was `earlier`."""
        return Spent(mixtures=self.mixtures - earlier.mixtures, batches=self.batches - earlier.batches)

    @property
    def spent(self) -> Spent:
        """What was asked so far."""
        return Spent(mixtures=self.mixtures, batches=self.batches)
