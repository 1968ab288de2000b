"""How much of a recorded difference each hypothesis explains, token by token, and which hypotheses remain possible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Tensor

from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval

LEVEL = 0.99
ALL = 0.9
"""A hypothesis that surely explains this fraction of a difference leaves nothing to look for."""
_EXACT_UP_TO = 12
"""Up to this many sequences, all combinations of signs are tried; for more sequences, as many combinations are drawn.
"""
_LARGEST_FACTOR = 20.0
"""A simulation that has to be scaled by more than this to come near a difference makes next to nothing, and is dropped.
"""
_SEVERAL = 2
_SAME_WAY = 0.99
"""Two simulations that correlate by more than this point in the same direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A recorded difference of two log-probabilities: d fp64 [N] in nats, token by token, and the sequence of each
    token, int64 [N].

    spread: fp64 [N] in nats, by which each token's squares are divided (`spread_of`); None: all tokens count alike.
    """

    d: Tensor
    sequence: Tensor
    spread: Tensor | None = None

    def at(self, tokens: Tensor) -> Difference:
        """The difference at some of the tokens, bool [N]."""
        spread = None if self.spread is None else self.spread[tokens]
        return Difference(d=self.d[tokens], sequence=self.sequence[tokens], spread=spread)

    def counted(self, x: Tensor) -> Tensor:
        """x, fp64 [..., N] in nats, divided by the spread of each token, as it is before it is squared."""
        return x if self.spread is None else x / self.spread

    def remains(self, x: Tensor) -> float:
        """The sum of squares that is left of the difference once x, fp64 [N] in nats, is taken away."""
        return float((self.counted(self.d - x) ** 2).sum())

    @property
    def half(self) -> Tensor:
        """int64 [N]: 0 or 1, by which half of the sequences a token belongs to.

        A sequence's half is the parity of the bits of its number (the sequence of Thue and Morse), so that no half
        coincides with something that recurs at regular distances, such as the second sequence of each pack.
        """
        rank: Tensor = torch.unique(self.sequence, return_inverse=True)[1]
        return torch.tensor([number.bit_count() % 2 for number in range(int(rank.max()) + 1)])[rank]

    def mean(self, x: Tensor) -> Interval:
        """The mean of x over the tokens, with its interval over sequences."""
        return token_mean(self._sums(x), self._sums(torch.ones_like(x)))

    def share(self, x: Tensor) -> Interval:
        """What x explains of the difference: 1 - sum (d - x)^2 / sum d^2, each token counted by its spread."""
        return self._if_equal(x) or self.advantage(x, torch.zeros_like(x))

    def advantage(self, of: Tensor, over: Tensor) -> Interval:
        """By how much more of sum d^2 `of` explains than `over`, as a fraction of it."""
        gain = self._squares(self.d - over) - self._squares(self.d - of)
        return token_mean(gain, self.squares, level=LEVEL)

    def prefers(self, x: Tensor, y: Tensor) -> bool:
        """Whether x surely explains more than y: on average, or sequence by sequence. Each sequence then counts at most
        1, and a sign test over sequences decides; an average that few sequences carry has no bounds.
        """
        left_by_x, left_by_y = (self._squares(self.d - z) for z in (x, y))
        total = left_by_x + left_by_y
        gains = torch.where(total > 0, (left_by_y - left_by_x) / total, 0.0)
        return _chance_of(gains) < (1 - LEVEL) / 2 or self.advantage(x, y).low > 0

    def explains(self, x: Tensor, least: float) -> bool:
        """Whether x surely explains more than the fraction `least` of the difference: on average, or sequence by
        sequence, where each counts at most 1.
        """
        remains, whole = self._squares(self.d - x), self.squares
        shares = torch.where(whole > 0, 1 - remains / whole, least).clamp(min=-1)
        return _chance_of(shares - least) < (1 - LEVEL) / 2 or self.share(x).low > least

    def slope(self, x: Tensor) -> Interval:
        """The factor b with which b x comes nearest to d."""
        along = self._sums(self.counted(self.d) * self.counted(x))
        return self._if_equal(x) or token_mean(along, self._squares(x), level=LEVEL)

    @property
    def squares(self) -> Tensor:
        """fp64 [B]: d^2 summed over the tokens of each sequence."""
        return self._squares(self.d)

    def _if_equal(self, x: Tensor) -> Interval | None:
        """Exactly 1 if x has the same bits as d; None if not. All sequences then agree, and an interval can't be
        estimated.
        """
        if not bool(x.any()) or not torch.equal(self.d, x):
            return None
        return Interval(estimate=1.0, low=1.0, high=1.0, level=LEVEL, method="exact", tokens=x.numel())

    def acts(self, x: Tensor) -> bool:
        """Whether x surely points the same way as the recorded difference, on average or sequence by sequence, however
        large it is.
        """
        return self._goes_along(x) or self.slope(x).low > 0

    def _goes_along(self, x: Tensor) -> bool:
        """Whether x surely has the direction of d sequence by sequence, each of which counts at most one."""
        common, size = self._sums(self.counted(self.d) * self.counted(x)), (self.squares * self._squares(x)).sqrt()
        return _chance_of(torch.where(size > 0, common / size, 0.0)) < (1 - LEVEL) / 2

    def along(self, simulated: Sequence[Tensor]) -> list[tuple[int, float]]:
        """How much of sum d^2 a multiple of each simulation explains: if one is a part of the cause, or the cause a
        part of it, that is something. Their indices, those that explain most first, without those whose factor is below
        0 or too large; it need not surely be above 0, which takes longer to tell than all else (`acts`).
        """
        d, parts = self.counted(self.d), dict[int, float]()
        for index, x in enumerate(map(self.counted, simulated)):
            common, square = float(d @ x), float(x @ x)
            if 0 < common < _LARGEST_FACTOR * square:
                parts[index] = common**2 / square
        return sorted(parts.items(), key=lambda part: -part[1])

    def leading(self, simulated: Sequence[Tensor]) -> Iterator[tuple[int, float]]:
        """Those `along` the difference that surely explain anything, if they may be scaled."""
        return (each for each in self.along(simulated) if self.acts(simulated[each[0]]))

    def directions(self, simulated: Sequence[Tensor], count: int) -> list[list[int]]:
        """Indices of the leading simulations in at most `count` groups. Each group has the one that explains most, then
        all that are nearly multiples of it.
        """
        ways: list[tuple[Tensor, list[int]]] = []
        for index, _ in self.along(simulated):
            effect = self.counted(simulated[index])
            way = effect / effect.norm()
            alike = next((those for first, those in ways if abs(float(way @ first)) > _SAME_WAY), None)
            if (alike is None and len(ways) == count) or not self.acts(simulated[index]):
                continue
            if alike is not None:
                alike.append(index)
            else:
                ways.append((way, [index]))
        return [those for _, those in ways]

    def _squares(self, x: Tensor) -> Tensor:
        """fp64 [B]: x^2 summed over the tokens of each sequence, each counted by its spread."""
        return self._sums(self.counted(x) ** 2)

    def _sums(self, x: Tensor) -> Tensor:
        """fp64 [B]: x summed over the tokens of each sequence."""
        return torch.zeros(int(self.sequence.max()) + 1, dtype=torch.float64).index_add(0, self.sequence, x)


def spread_of(engines: Tensor) -> Tensor | None:
    """The spread by which differences at each token are divided, fp64 [N] in nats; None if the engines do not differ.
    engines: log P of each engine without a mistake, fp64 [engines, N] in nats.

    A token whose routes any rounding flips tells little, and would outweigh all others. The spread is the root of the
    variance between the engines plus that of the median token, since a few engines may agree by chance.
    """
    if len(engines) < _SEVERAL:
        return None
    deviation = engines.std(0)
    middle = float(deviation.median()) or float(deviation.mean())
    return torch.sqrt(deviation**2 + middle**2) if middle > 0 else None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Hypotheses by what they explain, the best first. rivals: those that the data do not tell from the first; a
    hypothesis that one half of the sequences would choose is among them.
    """

    order: tuple[int, ...]
    rivals: tuple[int, ...]


def ranked(difference: Difference, simulated: Sequence[Tensor], weights: Sequence[int]) -> Ranking:
    """Rank simulated differences, each fp64 [N] in nats. Of several with equal bits only the one with the least weight
    stays. weights: how much each hypothesis says is wrong.
    """
    distinct: dict[bytes, int] = {}
    for index in sorted(range(len(simulated)), key=lambda index: weights[index]):
        distinct.setdefault(simulated[index].numpy().tobytes(), index)
    finite = {index: simulated[index] for index in distinct.values() if bool(simulated[index].isfinite().all())}
    errors = {index: difference.remains(x) for index, x in finite.items()}
    order = sorted(finite, key=lambda index: (errors[index], weights[index]))
    unsure = rivals(difference, finite, order[0])
    return Ranking(tuple(order), tuple(index for index in order if index in unsure))


def rivals(difference: Difference, simulated: Mapping[int, Tensor], first: int) -> set[int]:
    """The hypotheses that the data do not tell from the first one; one that half of the sequences would choose is among
    them.
    """
    half = difference.half
    errors = {index: difference.counted(difference.d - x) ** 2 for index, x in simulated.items()}
    chosen = {min(simulated, key=lambda index: float(errors[index][half == which].sum())) for which in (0, 1)}
    unsure = {index for index, x in simulated.items() if not difference.prefers(simulated[first], x)}
    return (chosen | unsure) - {first}


def _chance_of(gains: Tensor) -> float:
    """The probability that gains, fp64 [B], add up to this much or more if each may as well be a loss: exact for up to
    `_EXACT_UP_TO` gains, else from seeded draws.
    """
    sizes = gains[gains != 0].abs()
    flips = _signs(len(sizes))
    if len(sizes) > _EXACT_UP_TO:
        flips = torch.cat([gains[gains != 0].sign()[None], flips])
    sums = flips @ sizes
    return float((sums >= gains.sum() - 1e-12 * sizes.sum()).double().mean())


@lru_cache(maxsize=8)
def _signs(count: int) -> Tensor:
    """Combinations of `count` signs, fp64 [combinations, count]."""
    if count <= _EXACT_UP_TO:
        return torch.tensor(list(product((-1.0, 1.0), repeat=count)), dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (2**_EXACT_UP_TO - 1, count), generator=draw).double() * 2.0 - 1


def legal_sizes(scores: Mapping[str, Tensor]) -> tuple[float, tuple[str, str]]:
    """The largest mean |difference| in nats of two engines without a mistake, and which two these are."""
    names = list(scores)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    sizes = {pair: float((scores[pair[0]] - scores[pair[1]]).abs().mean()) for pair in pairs}
    pair = max(sizes, key=lambda pair: sizes[pair])
    return sizes[pair], pair
