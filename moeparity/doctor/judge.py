"""How much of a recorded difference each hypothesis explains, token by token, and which of them that leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval

LEVEL = 0.99
LEAST = 0.5
"""A cause explains at least so much of the difference, by its whole interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A recorded difference of two log-probabilities: d fp64 [N] in nats, token by token, and the sequence of each
    token, int64 [N].

    Odd sequences judge what the even ones chose. Tokens without a finite difference are left out before.
    """

    d: Tensor
    sequence: Tensor

    @property
    def count(self) -> int:
        """How many sequences there are."""
        return int(self.sequence.max()) + 1 if self.sequence.numel() else 0

    def half(self, odd: int) -> Tensor:
        """bool [N]: the tokens of the even or of the odd sequences."""
        rank: Tensor = torch.unique(self.sequence, return_inverse=True)[1]
        return rank % 2 == odd

    def sums(self, x: Tensor, mask: Tensor) -> Tensor:
        """fp64 [B]: x summed over the tokens in `mask` of each sequence."""
        return torch.zeros(self.count, dtype=torch.float64).index_add(0, self.sequence[mask], x[mask])

    def mean(self, x: Tensor) -> Interval:
        """The mean of x over all tokens, with its interval over sequences."""
        every = torch.ones_like(self.sequence, dtype=torch.bool)
        return token_mean(self.sums(x, every), self.sums(torch.ones_like(x), every))

    def share(self, x: Tensor, odd: int) -> Interval:
        """What x explains of the difference over one half: 1 - sum (d - x)^2 / sum d^2."""
        return self.advantage(torch.zeros_like(x), x, odd)

    def advantage(self, of: Tensor, over: Tensor, odd: int) -> Interval:
        """By how much more `over` explains than `of`, as a fraction of sum d^2 over one half."""
        mask, square = self.half(odd), self.d**2
        gain = (self.d - of) ** 2 - (self.d - over) ** 2
        return token_mean(self.sums(gain, mask), self.sums(square, mask), level=LEVEL)

    def slope(self, x: Tensor) -> float:
        """The factor b with which b x comes nearest to d over all tokens."""
        square = float((x * x).sum())
        return float((self.d * x).sum()) / square if square else 0.0


@dataclass(frozen=True, slots=True)
class Ranking:
    """Hypotheses by what they explain on the even sequences, the best first; `rivals` of the first are those that the
    odd sequences do not tell from it.
    """

    names: tuple[int, ...]
    rivals: tuple[int, ...]


def ranked(difference: Difference, simulated: Sequence[Tensor], weights: Sequence[int]) -> Ranking:
    """Rank simulated differences, each fp64 [N] in nats. Of equal bits only the one of least `weight` stays, which is
    how much is said to be wrong.
    """
    distinct: dict[bytes, int] = {}
    for index in sorted(range(len(simulated)), key=lambda index: weights[index]):
        distinct.setdefault(simulated[index].numpy().tobytes(), index)
    left = [index for index in distinct.values() if bool(simulated[index].isfinite().all())]
    even = difference.half(0)
    error = {index: float(((difference.d - simulated[index])[even] ** 2).sum()) for index in left}
    order = sorted(left, key=lambda index: (error[index], weights[index]))
    first = simulated[order[0]]
    rivals = [index for index in order[1:] if not difference.advantage(simulated[index], first, 1).low > 0]
    return Ranking(tuple(order), tuple(rivals))


def legal_sizes(scores: Mapping[str, Tensor]) -> tuple[float, tuple[str, str]]:
    """The largest mean |difference| in nats of two engines without a mistake, and which two these are."""
    names = list(scores)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    sizes = {pair: float((scores[pair[0]] - scores[pair[1]]).abs().mean()) for pair in pairs}
    pair = max(sizes, key=lambda pair: sizes[pair])
    return sizes[pair], pair
