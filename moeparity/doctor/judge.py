"""How much of a recorded difference each hypothesis explains, token by token, and which of them that leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval

LEVEL = 0.99
_ALL = 12
"""Of so many sequences all signs are tried; of more, as many drawn ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A recorded difference of two log-probabilities: d fp64 [N] in nats, token by token, and the sequence of each
    token, int64 [N].
    """

    d: Tensor
    sequence: Tensor

    @property
    def half(self) -> Tensor:
        """int64 [N]: 0 or 1, by which half of the sequences a token belongs to.

        A sequence's half is the parity of the bits of its number (the sequence of Thue and Morse), so that no half
        falls together with what comes at regular distances, such as the second sequence of each pack.
        """
        rank: Tensor = torch.unique(self.sequence, return_inverse=True)[1]
        return torch.tensor([number.bit_count() % 2 for number in range(int(rank.max()) + 1)])[rank]

    def mean(self, x: Tensor) -> Interval:
        """The mean of x over the tokens, with its interval over sequences."""
        return token_mean(self._sums(x), self._sums(torch.ones_like(x)))

    def share(self, x: Tensor) -> Interval:
        """What x explains of the difference: 1 - sum (d - x)^2 / sum d^2."""
        return self._if_equal(x) or self.advantage(x, torch.zeros_like(x))

    def advantage(self, of: Tensor, over: Tensor) -> Interval:
        """By how much more of sum d^2 `of` explains than `over`, as a fraction of it."""
        gain = (self.d - over) ** 2 - (self.d - of) ** 2
        return token_mean(self._sums(gain), self._sums(self.d**2), level=LEVEL)

    def prefers(self, x: Tensor, y: Tensor) -> bool:
        """Whether x surely explains more than y: on average, or sequence by sequence, each of which counts at most one,
        since an average that few of them carry has no bounds: signs are drawn anew.
        """
        left_by_x, left_by_y = (self._sums((self.d - z) ** 2) for z in (x, y))
        total = left_by_x + left_by_y
        gains = torch.where(total > 0, (left_by_y - left_by_x) / total, 0.0)
        return self.advantage(x, y).low > 0 or _chance_of(gains) < (1 - LEVEL) / 2

    def slope(self, x: Tensor) -> Interval:
        """The factor b with which b x comes nearest to d."""
        return self._if_equal(x) or token_mean(self._sums(self.d * x), self._sums(x * x), level=LEVEL)

    @property
    def squares(self) -> Tensor:
        """fp64 [B]: d^2 summed over the tokens of each sequence."""
        return self._sums(self.d**2)

    def _if_equal(self, x: Tensor) -> Interval | None:
        """1 without doubt where x is d to the last bit, which has no spread from which an interval could be made."""
        if not bool(x.any()) or not torch.equal(self.d, x):
            return None
        return Interval(estimate=1.0, low=1.0, high=1.0, level=LEVEL, method="exact", tokens=x.numel())

    def along(self, x: Tensor) -> float:
        """What x explains of sum d^2 if it may be scaled: that of which the cause is a part, or which is a part of the
        cause, explains something. 0 where the factor is not surely above 0.
        """
        common, square = float((self.d * x).sum()), float((x * x).sum())
        # An interval takes longer than all else; below 0 it is not needed.
        return common**2 / square if common > 0 and self.slope(x).low > 0 else 0.0

    def leading(self, simulated: Sequence[Tensor]) -> list[int]:
        """Which of them explain anything if they may be scaled, those that explain most first."""
        along = [self.along(x) for x in simulated]
        return sorted((index for index, part in enumerate(along) if part), key=lambda index: -along[index])

    def _sums(self, x: Tensor) -> Tensor:
        """fp64 [B]: x summed over the tokens of each sequence."""
        return torch.zeros(int(self.sequence.max()) + 1, dtype=torch.float64).index_add(0, self.sequence, x)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Hypotheses by what they explain, the best first. rivals: those that the data do not tell from the first; that
    which one half of the sequences alone would choose is among them.
    """

    order: tuple[int, ...]
    rivals: tuple[int, ...]


def ranked(difference: Difference, simulated: Sequence[Tensor], weights: Sequence[int]) -> Ranking:
    """Rank simulated differences, each fp64 [N] in nats. Of equal bits only the one of least `weight` stays, which is
    how much is said to be wrong.
    """
    distinct: dict[bytes, int] = {}
    for index in sorted(range(len(simulated)), key=lambda index: weights[index]):
        distinct.setdefault(simulated[index].numpy().tobytes(), index)
    finite = {index: simulated[index] for index in distinct.values() if bool(simulated[index].isfinite().all())}
    errors = {index: float(((difference.d - x) ** 2).sum()) for index, x in finite.items()}
    order = sorted(finite, key=lambda index: (errors[index], weights[index]))
    unsure = rivals(difference, finite, order[0])
    return Ranking(tuple(order), tuple(index for index in order if index in unsure))


def rivals(difference: Difference, simulated: Mapping[int, Tensor], first: int) -> set[int]:
    """Those that the data do not tell from the first one; that which one half of the sequences alone would choose is
    among them.
    """
    half = difference.half
    errors = {index: (difference.d - x) ** 2 for index, x in simulated.items()}
    chosen = {min(simulated, key=lambda index: float(errors[index][half == which].sum())) for which in (0, 1)}
    unsure = {index for index, x in simulated.items() if not difference.prefers(simulated[first], x)}
    return (chosen | unsure) - {first}


def _chance_of(gains: Tensor) -> float:
    """How often gains fp64 [B] add up to so much or more if each may as well be a loss: exact up to `_ALL` of them,
    else of seeded draws.
    """
    sizes, most = gains[gains != 0].abs(), 2**_ALL
    if len(sizes) <= _ALL:
        flips = torch.tensor(list(product((-1.0, 1.0), repeat=len(sizes))), dtype=torch.float64)
    else:
        flips = torch.randint(0, 2, (most - 1, len(sizes)), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
        flips = torch.cat([gains[gains != 0].sign()[None], flips.double()])
    sums = flips @ sizes
    return float((sums >= gains.sum() - 1e-12 * sizes.sum()).double().mean())


def legal_sizes(scores: Mapping[str, Tensor]) -> tuple[float, tuple[str, str]]:
    """The largest mean |difference| in nats of two engines without a mistake, and which two these are."""
    names = list(scores)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    sizes = {pair: float((scores[pair[0]] - scores[pair[1]]).abs().mean()) for pair in pairs}
    pair = max(sizes, key=lambda pair: sizes[pair])
    return sizes[pair], pair
