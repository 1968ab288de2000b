"""RMSNorm and softmax as sums of values that can't be negative, probed with three leaves at a time.

n: width of a row, the leaves of its sum. M: rows of a call.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

from moeparity.errors import MoeparityError
from moeparity.numerics.bits import int_view
from moeparity.probe.calls import OfRows, Setup, parts
from moeparity.probe.reveal import NoTree
from moeparity.probe.target import Function
from moeparity.probe.triplets import Triplet

SOFTMAX_LOW = -10000.0
"""A score whose exponential is 0."""

HALF, WHOLE = 0.45 * 2.0**-23, 0.9 * 2.0**-23
"""A value that is lost beside 1 in fp32, and two of them, which are not."""

NEAR_ROOT_2 = 1.4140625
"""A number of every dtype whose square is as good as 2 beside a large number."""


_PROBES = 4
"""This many probes are part of a row's fingerprint, besides its output's bits."""


class Squares(OfRows):
    """f(x [M, n], weight [n], eps) -> [M, n].

    A unit beside a large sum of squares does not survive the root and the output's rounding. But with eps = -M / n,
    where M is the square of the large leaf, the root is of at most 0 if the sum is M, and finite if more is left.
    """

    def __init__(self, function: Function, setup: Setup) -> None:
        super().__init__(function, setup)
        self.probes, self.bits = 0, 24
        self.large, self.small, self.eps = 0.0, 1.0, 0.0
        self.at = list(range(setup.m))

    def start(self, rows: Sequence[int]) -> None:
        """Probe at these rows. Raises NoTree if no number swamps one unit and not two, as seen through the eps."""
        self.at = list(rows)
        for bits in (24, 8, 11):
            self.bits = bits
            self.large, self.small = 2.0 ** math.ceil(bits / 2), 1.0 if bits % 2 == 0 else NEAR_ROOT_2
            two = NEAR_ROOT_2 if bits % 2 == 0 else 2.0
            for eps in _near(self.large**2 / self.setup.n):
                self.eps = -eps
                if self._is_calibrated(two):
                    return
        raise NoTree("with eps = -M / n no square M hides 1 and shows 2: is eps used as it is given?")

    def _is_calibrated(self, two: float) -> bool:
        n = self.setup.n
        places = [(0, n - 1), (n - 1, 0), (n // 2, n // 3 if n > 2 else 0)]
        rows = torch.zeros(9, n, dtype=self.setup.dtype)
        for i, (k, k_beside) in enumerate(places):
            rows[3 * i : 3 * i + 3, k] = self.large
            rows[3 * i + 1, k_beside] = self.small
            rows[3 * i + 2, k_beside] = two
        finite = self._finite(rows, torch.tensor([k for k, _ in places for _ in range(3)]))
        return finite == [False, False, True] * 3

    def _finite(self, rows: torch.Tensor, at: torch.Tensor) -> list[bool]:
        flags: list[bool] = []
        ones = torch.ones(self.setup.n, dtype=self.setup.dtype)
        self.probes += len(rows)
        for batch, places in zip(parts(rows, len(self.at)), parts(at, len(self.at)), strict=True):
            indices = torch.tensor(self.at[: len(batch)])
            x = self._spread(batch, indices, self.setup.m)
            out = self._call(x, ones, self.eps, shape=(self.setup.m, self.setup.n))
            flags += out[indices, places].isfinite().tolist()
        return flags

    def ask(self, triplets: Sequence[Triplet]) -> list[bool]:
        """As `triplets.Ask`."""
        answers: list[bool] = []
        for first in range(0, len(triplets), size := len(self.at)):
            k, i, j = torch.tensor(triplets[first : first + size]).t()
            rows = torch.zeros(len(k), self.setup.n, dtype=self.setup.dtype)
            every = torch.arange(len(k))
            rows[every, k] = self.large
            rows[every, i] = rows[every, j] = self.small
            answers += self._finite(rows, k)
        return answers

    def rows(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """The callable's output for rows [P, n] -> [P, n]."""
        outputs = []
        for batch in parts(x, len(self.at)):
            indices = torch.tensor(self.at[: len(batch)])
            block = self._spread(batch, indices, self.setup.m)
            outputs.append(self._call(block, weight, eps, shape=(self.setup.m, self.setup.n))[indices])
        return torch.cat(outputs)

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """The same row [n] in all rows: an integer [M] made of each output's bits and of some probes."""
        shape = (self.setup.m, self.setup.n)
        codes = _hashes(self._call(row.expand(shape), factors, 2.0**-20, shape=shape))
        for k, i, j in _some_triplets(self.setup.n, int(row.double().abs().sum() * 64)):
            x = torch.zeros(self.setup.n, dtype=self.setup.dtype)
            x[i] = x[j] = self.small
            x[k] = self.large
            finite = self._call(x.expand(shape), torch.ones_like(x), self.eps, shape=shape)[:, k].isfinite()
            codes = codes * 2 + finite
        return codes


class Exponentials(OfRows):
    """f(x [M, n]) -> [M, n], in fp32: the large leaf's share is 1 if nothing else is left of the sum."""

    def __init__(self, function: Function, setup: Setup) -> None:
        super().__init__(function, setup)
        self.probes, self.bits = 0, 24
        self.at = list(range(setup.m))

    def start(self, rows: Sequence[int]) -> None:
        """Probe at these rows. Raises NoTree if sums are not in fp32, MoeparityError if the output is not."""
        self.at = list(rows)
        n = self.setup.n
        values = torch.full((3, n), SOFTMAX_LOW)
        values[:, 0] = 0.0
        values[1:, n - 1] = torch.tensor([HALF, WHOLE]).log()
        if self._shares(values.to(self.setup.dtype), torch.zeros(3, dtype=torch.long)) != [False, False, True]:
            raise NoTree("beside exp(0), half a unit in the last place of fp32 is not lost, or a whole one is")

    def _shares(self, rows: torch.Tensor, at: torch.Tensor) -> list[bool]:
        flags: list[bool] = []
        self.probes += len(rows)
        for batch, places in zip(parts(rows, len(self.at)), parts(at, len(self.at)), strict=True):
            indices = torch.tensor(self.at[: len(batch)])
            x = self._spread(batch, indices, self.setup.m)
            out = self._call(x, shape=(self.setup.m, self.setup.n))
            if out.dtype not in {torch.float32, torch.float64}:
                raise MoeparityError(
                    f"{self.function.name}: its output is {out.dtype}, in which one unit of the sum does not show. "
                    "Probe softmax with --dtype fp32, or return fp32."
                )
            flags += (out[indices, places] < 1).tolist()
        return flags

    def ask(self, triplets: Sequence[Triplet]) -> list[bool]:
        """As `triplets.Ask`."""
        answers: list[bool] = []
        for first in range(0, len(triplets), size := len(self.at)):
            k, i, j = torch.tensor(triplets[first : first + size]).t()
            rows = torch.full((len(k), self.setup.n), SOFTMAX_LOW, dtype=self.setup.dtype)
            every = torch.arange(len(k))
            rows[every, i] = rows[every, j] = math.log(HALF)
            rows[every, k] = 0.0
            answers += self._shares(rows, k)
        return answers

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """The same row [n], mapped into [0, 4), in all rows: an integer [M] made of each output's bits."""
        shape = (self.setup.m, self.setup.n)
        return _hashes(self._call((row % 4).expand(shape), shape=shape))


def _near(value: float) -> list[float]:
    """fp32 numbers around a quotient, the nearest first, since kernels divide in several ways."""
    bits = torch.tensor(value).view(torch.int32)
    return [float((bits + step).view(torch.float32)) for step in (0, 1, -1, 2, -2)]


def _hashes(out: torch.Tensor) -> torch.Tensor:
    """An integer for the bits of each row."""
    bits = int_view(out).long()
    draw = torch.Generator().manual_seed(0)
    return (bits * torch.randint(1 << 62, (bits.shape[1],), generator=draw)).sum(1)


def _some_triplets(n: int, seed: int) -> list[Triplet]:
    draw = random.Random(seed)  # noqa: S311
    samples = [draw.sample(range(n), 3) for _ in range(_PROBES)] if n > 2 else []
    return [(k, i, j) for k, i, j in samples]
