"""The memo of a search: mixtures of two sides, evaluated in batches and never twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

Players = tuple[str, ...]
"""Names of toggles, in the order of a report."""

Names = Callable[[str], str]
"""Toggle -> its name in a report."""

Mixture = frozenset[str]
"""The toggles at the candidate's value; all others are at the reference's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one mixture of both sides shows against the reference.

    value: full-vocabulary KL in nats per scored token; shares are shares of it.
    k3: the gate's estimator on the recipe's tokens, nats per scored token.
    upper: upper 95 % bound of the gate's metric, which a fix set has to bring under the gate; infinite if there are too
        few sequences for a verdict.
    sums, tokens: [B], the KL summed over the scored tokens of each sequence, and their number.
    exact: the reference's bits at every node.
    unchanged: the candidate's bits at every node; None if that was not observed.
    """

    value: float
    k3: float
    upper: float
    sums: tuple[float, ...]
    tokens: tuple[float, ...]
    exact: bool
    unchanged: bool | None = None


Evaluate = Callable[[Sequence[Mixture]], Mapping[Mixture, Outcome | None]]
"""Evaluates different mixtures, all in one batch; None where an op refuses the mixture."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What a search asked for that was not known before: mixtures, and the batches in which they were asked for.

    A batch is one pass over the weights or a few; without batches each mixture would take a pass.
    """

    mixtures: int
    batches: int


class Memo:
    """A memo of `evaluate`, which is called in batches and never twice for one mixture.

    players: all toggles, without repeats. mixtures, batches: how many were asked for so far.
    Raises ValueError for repeated players.
    """

    def __init__(self, players: Players, evaluate: Evaluate) -> None:
        if len(set(players)) != len(players):
            raise ValueError(f"players are {list(players)}; every name once expected")
        self.players = players
        self.mixtures = 0
        self.batches = 0
        self._evaluate = evaluate
        self._outcomes: dict[Mixture, Outcome | None] = {}

    @property
    def everything(self) -> Mixture:
        """The candidate itself: every toggle at the candidate's value."""
        return frozenset(self.players)

    @property
    def outcomes(self) -> Mapping[Mixture, Outcome | None]:
        """All mixtures evaluated so far, in order."""
        return self._outcomes

    def additions(self, mixtures: Iterable[Mixture]) -> list[Mixture]:
        """The mixtures that `ask` would evaluate: the new ones, without repeats, in the order given."""
        return [mixture for mixture in dict.fromkeys(mixtures) if mixture not in self._outcomes]

    def ask(self, mixtures: Iterable[Mixture]) -> list[Outcome | None]:
        """The outcome of each mixture, in the order given; new ones are evaluated in one batch.

        Raises ValueError for a mixture with a toggle that is not a player, and if `evaluate` leaves one out.
        """
        wanted = list(mixtures)
        additions = self.additions(wanted)
        if additions:
            strangers = sorted(frozenset().union(*additions) - self.everything)
            if strangers:
                raise ValueError(f"mixtures of {strangers}; only players expected: {list(self.players)}")
            self._learn(additions, self._evaluate(additions))
        return [self._outcomes[mixture] for mixture in wanted]

    def _learn(self, mixtures: Sequence[Mixture], answers: Mapping[Mixture, Outcome | None]) -> None:
        unanswered = [sorted(mixture) for mixture in mixtures if mixture not in answers]
        if unanswered:
            raise ValueError(f"no answer for {unanswered}; an outcome or None for each mixture expected")
        self._outcomes.update({mixture: answers[mixture] for mixture in mixtures})
        self.mixtures += len(mixtures)
        self.batches += 1

    def __getitem__(self, mixture: Mixture) -> Outcome | None:
        return self.ask([mixture])[0]

    def since(self, earlier: Effort) -> Effort:
        """What was asked for since the memo's `effort` was `earlier`."""
        return Effort(mixtures=self.mixtures - earlier.mixtures, batches=self.batches - earlier.batches)

    @property
    def effort(self) -> Effort:
        """What was asked for so far."""
        return Effort(mixtures=self.mixtures, batches=self.batches)
