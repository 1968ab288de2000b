"""Turns summands into the arguments of a callable, for each kind of callable; its outputs are sums.

n: leaves of each sum. P: number of sums asked for at a time. M, N, H, E: as in `target.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from moeparity.errors import MoeparityError
from moeparity.probe.target import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the bits may depend on besides the function: shapes, dtype, alignment of the arguments, threads.

    m: rows. width: columns of the other operand (N, H or E). offset: the distance, in elements, of each argument's
    start from an address that is a multiple of 64 bytes.
    """

    n: int
    dtype: torch.dtype
    m: int
    width: int
    offset: int = 0
    threads: int | None = None


class Sums(Protocol):
    """A callable whose outputs are many sums over n leaves, one at each position of the output."""

    setup: Setup

    @property
    def positions(self) -> int:
        """The number of outputs."""

    @property
    def products(self) -> bool:
        """Whether leaves are products, so that `factors` can be given."""

    def apart(self, positions: Sequence[int]) -> list[int]:
        """Those of `positions` that can have different sums in the same call."""

    def sums(self, rows: torch.Tensor, at: Sequence[int], factors: torch.Tensor | None = None) -> torch.Tensor:
        """rows [P, n], the leaves of P sums -> the sums [P]. With `factors` [n], leaves are the products with these.

        Sums are taken at the positions `at`, as many in one call as possible; all other inputs are 0.
        """

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """The same sum at all positions -> [positions]; leaves row [n], times `factors` [n] if leaves are products."""

    def label(self, positions: Sequence[int]) -> str:
        """The positions in words."""


class Calls:
    """A callable in one setup; its arguments are copied to addresses as the setup says."""

    def __init__(self, function: Function, setup: Setup) -> None:
        self.function, self.setup = function, setup
        self._memory: dict[tuple[int, tuple[int, ...]], torch.Tensor] = {}
        self._blank: torch.Tensor | None = None

    def apart(self, positions: Sequence[int]) -> list[int]:
        """As `Sums.apart`: all positions."""
        return list(positions)

    @property
    def products(self) -> bool:
        """As `Sums.products`."""
        return self.function.kind.products

    def _call(self, *arguments: torch.Tensor | float, shape: tuple[int, ...]) -> torch.Tensor:
        """What the function returns for copies of `arguments`, placed in memory as the setup says."""
        copies = [self._aligned_copy(i, x) if isinstance(x, torch.Tensor) else x for i, x in enumerate(arguments)]
        before = torch.get_num_threads()
        if self.setup.threads is not None:
            torch.set_num_threads(self.setup.threads)
        try:
            return self.function(*copies, shape=shape)
        finally:
            torch.set_num_threads(before)

    def _spread(self, rows: torch.Tensor, places: torch.Tensor, height: int) -> torch.Tensor:
        """[height, n] with `rows` [P, n] at `places` and 0 elsewhere; `rows` themselves if they fill it."""
        if len(rows) == height and torch.equal(places, torch.arange(height)):
            return rows
        if self._blank is None:
            self._blank = torch.empty(height, rows.shape[1], dtype=rows.dtype)
        return self._blank.zero_().index_copy_(0, places, rows)

    def _aligned_copy(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """A contiguous copy of argument `number` that starts `offset` elements after a multiple of 64 bytes."""
        key = (number, tuple(x.shape))
        if key not in self._memory:
            size, offset = x.element_size(), self.setup.offset
            memory = torch.empty(x.numel() + offset + 64 // size, dtype=x.dtype)
            start = -(memory.data_ptr() // size) % (64 // size) + offset
            self._memory[key] = memory[start : start + x.numel()].view(x.shape)
        return self._memory[key].copy_(x)


class OfRows(Calls):
    """A callable with an output for each row of its first argument."""

    @property
    def positions(self) -> int:
        """One per row."""
        return self.setup.m

    def label(self, positions: Sequence[int]) -> str:
        """The rows in words."""
        return f"rows {runs(positions)}"


class RowSums(OfRows):
    """f(x [M, n]) -> [M]."""

    def sums(self, rows: torch.Tensor, at: Sequence[int], factors: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """As `Sums.sums`."""
        outputs = []
        for batch in parts(rows, len(at)):
            places = torch.tensor(at[: len(batch)])
            outputs.append(self._call(self._spread(batch, places, self.setup.m), shape=(self.setup.m,))[places])
        return torch.cat(outputs)

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """As `Sums.everywhere`."""
        return self._call(row.expand(self.setup.m, -1), shape=(self.setup.m,))


class Dot(Calls):
    """f(a [n], b [n]) -> a number."""

    positions = 1

    def sums(self, rows: torch.Tensor, at: Sequence[int], factors: torch.Tensor | None = None) -> torch.Tensor:  # noqa: ARG002
        """As `Sums.sums`, with one call for each sum."""
        first = torch.ones(self.setup.n, dtype=self.setup.dtype) if factors is None else factors
        return torch.stack([self._call(first, row, shape=()) for row in rows])

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """As `Sums.everywhere`."""
        return self._call(factors, row, shape=()).view(1)

    def label(self, positions: Sequence[int]) -> str:  # noqa: ARG002
        """The only output in words."""
        return "the result"


class Linear(Calls):
    """f(x [M, n], weight [N, n]) -> [M, N]; position (row, column) is row * N + column."""

    @property
    def positions(self) -> int:
        """One per output element."""
        return self.setup.m * self.setup.width

    def apart(self, positions: Sequence[int]) -> list[int]:
        """As `Sums.apart`: the first position in each column."""
        return list({place % self.setup.width: place for place in reversed(positions)}.values())[::-1]

    def sums(self, rows: torch.Tensor, at: Sequence[int], factors: torch.Tensor | None = None) -> torch.Tensor:
        """As `Sums.sums`: each sum has its leaves in a row of the weight, and every row of x has the factors."""
        m, width = self.setup.m, self.setup.width
        first = torch.ones(self.setup.n, dtype=self.setup.dtype) if factors is None else factors
        outputs = []
        for batch in parts(rows, len(at)):
            places = torch.tensor(at[: len(batch)])
            out = self._call(first.expand(m, -1), self._spread(batch, places % width, width), shape=(m, width))
            outputs.append(out.reshape(-1)[places])
        return torch.cat(outputs)

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """As `Sums.everywhere`."""
        m, columns = self.setup.m, self.setup.width
        return self._call(factors.expand(m, -1), row.expand(columns, -1), shape=(m, columns)).reshape(-1)

    def label(self, positions: Sequence[int]) -> str:
        """The rows in words, and the columns if not all are meant."""
        return grid(positions, self.setup.m, self.setup.width, "columns")


class Combine(Calls):
    """f(rows [M, n, H], weights [M, n]) -> [M, H]; position (token, element) is token * H + element."""

    @property
    def positions(self) -> int:
        """One per output element."""
        return self.setup.m * self.setup.width

    def sums(self, rows: torch.Tensor, at: Sequence[int], factors: torch.Tensor | None = None) -> torch.Tensor:
        """As `Sums.sums`: the factors are every token's weights."""
        m, n, width = self.setup.m, self.setup.n, self.setup.width
        first = torch.ones(n, dtype=self.setup.dtype) if factors is None else factors
        outputs = []
        for batch in parts(rows, len(at)):
            places = torch.tensor(at[: len(batch)])
            block = self._spread(batch, places, m * width).view(m, width, n).transpose(1, 2)
            out = self._call(block, first.expand(m, -1), shape=(m, width))
            outputs.append(out.reshape(-1)[places])
        return torch.cat(outputs)

    def everywhere(self, row: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        """As `Sums.everywhere`."""
        m, width = self.setup.m, self.setup.width
        rows = row.view(1, -1, 1).expand(m, -1, width)
        return self._call(rows, factors.expand(m, -1), shape=(m, width)).reshape(-1)

    def label(self, positions: Sequence[int]) -> str:
        """The tokens in words, and the elements if not all are meant."""
        return grid(positions, self.setup.m, self.setup.width, "elements", rows="tokens")


def parts(rows: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """Consecutive parts of `size` rows; the last one has the remainder."""
    return (rows[first : first + size] for first in range(0, len(rows), size))


def sums_of(function: Function, setup: Setup) -> Sums:
    """The callable as sums whose leaves may have any sign. Raises MoeparityError if n is less than 2."""
    if setup.n < 2:
        raise MoeparityError(f"--n {setup.n}: a sum of {setup.n} has no order; expected at least 2.")
    classes: dict[str, type[RowSums | Dot | Linear | Combine]] = {
        "sum": RowSums,
        "dot": Dot,
        "linear": Linear,
        "combine": Combine,
    }
    return classes[function.kind.name](function, setup)


def runs(numbers: Sequence[int]) -> str:
    """`0 to 3, 8, 10 to 11`; long lists are shortened."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in spans]
    return ", ".join(texts if len(texts) <= 6 else [*texts[:5], f"... ({len(texts) - 5} more runs)"])


def grid(positions: Sequence[int], height: int, width: int, columns: str, *, rows: str = "rows") -> str:
    """Positions of a grid in words: `rows 0 to 3`, `rows 4 to 5, columns 0 to 2`."""
    by_row: dict[int, list[int]] = {}
    for place in positions:
        by_row.setdefault(place // width, []).append(place % width)
    rows_by_columns: dict[tuple[int, ...], list[int]] = {}
    for row, numbers in by_row.items():
        rows_by_columns.setdefault(tuple(sorted(numbers)), []).append(row)
    return "; ".join(
        f"{rows} {runs(having)}" + ("" if len(numbers) == width else f", {columns} {runs(numbers)}")
        for numbers, having in rows_by_columns.items()
    )
