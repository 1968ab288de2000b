"""A GEMM on the rows of several steps at once, if that gives the bits that each step's own call would give.

torch chooses a GEMM's order of additions by its number of rows M, so in principle each step needs its own call. But for
few rows the choice is mostly the same, and there the calls take longer than the sums. So the choice is tried: if a
kernel gives a row the same bits among M rows as in a block of many rows, at any place, it is called on blocks; for
every other M it is called for each step. The order does not depend on the numbers, so it is tried on numbers that show
it: every product occurs once more with the other sign, so that a sum is nothing but rounding residue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from moeparity.numerics.bits import int_view, same_bits
from moeparity.numerics.blocks import filled

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""x [M, K], weight [N, K], bias [N] -> [M, N]."""

Unary = Callable[[torch.Tensor], torch.Tensor]
Apply = Callable[[Unary, torch.Tensor], torch.Tensor]
"""Calls one of torch's elementwise functions."""
Chain = Callable[..., torch.Tensor]
Cut = Callable[..., Sequence[torch.Tensor]]

_VECTOR = 256
"""More elements than any vector in which torch computes."""

BLOCKS = (256, 32)
"""Sizes of blocks that are tried; the first that gives a step's bits is taken. No step with more rows is tried."""
DRAWS = 3

_ALIKE: dict[Hashable, bool] = {}


@dataclass(frozen=True, eq=False)
class Steps:
    """Rows that a kernel gets together, and that have to come out as if computed step after step.

    places: int64 [n], the indices of the rows in the tensor, step after step, in each step's order. sizes: rows per
    step.
    """

    places: torch.Tensor
    sizes: tuple[int, ...]

    @cached_property
    def back(self) -> torch.Tensor:
        """int64 [n]: for each row of the tensor, its index in `places`."""
        back = torch.empty_like(self.places)
        back[self.places] = torch.arange(len(self.places))
        return back

    @cached_property
    def numbers(self) -> torch.Tensor:
        """int64 [n]: for each row in the order of `places`, the number of its step."""
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows that are computed step by step, `sizes` of them at a time.

    order: int64 [n], the rows in the order of steps (None: they lie in it).
    """

    sizes: Sequence[int]
    order: torch.Tensor | None = None

    def each(self, function: Chain, cut: Cut, *whole: torch.Tensor) -> torch.Tensor:
        """An elementwise `function` of what `cut` makes of tensors [n, ..], with the bits of a separate call for each
        step.

        torch may compute an element otherwise at the end of a row than inside a vector. `function` gets, before its
        operands, a callable that it must use for those of its parts; all its other parts must be correctly rounded
        operations.
        """
        if len(self.sizes) == 1:
            return function(call, *cut(*whole))
        try:
            joined = function(_in_any_place, *cut(*whole))
        except _PlaceShowsError:
            return self._in_turn(function, cut, whole)
        # With a NaN, not even correctly rounded operations have the same bits everywhere.
        return self._in_turn(function, cut, whole) if bool(joined.isnan().any()) else joined

    def _in_turn(self, function: Chain, cut: Cut, whole: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = whole if self.order is None else tuple(x[self.order] for x in whole)
        steps = zip(*(torch.split(x, list(self.sizes)) for x in rows), strict=True)
        computed = torch.cat([function(call, *cut(*step)) for step in steps])
        if self.order is None:
            return computed
        return torch.empty_like(computed).index_copy_(0, self.order, computed)


class _PlaceShowsError(Exception):
    """An element has other bits by itself than inside a vector."""


def call(function: Unary, x: torch.Tensor) -> torch.Tensor:
    """The function of x, called directly."""
    return function(x)


def _in_any_place(function: Unary, x: torch.Tensor) -> torch.Tensor:
    """torch's elementwise function of x, if each element has the same bits inside a vector and by itself."""
    in_vectors = function(torch.cat([x.flatten(), x.new_zeros(_VECTOR)]))[: x.numel()].view(x.shape)
    if not same_bits(in_vectors, function(torch.stack([x, x], dim=-1)[..., 0]).contiguous()):
        raise _PlaceShowsError
    return in_vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGemm:
    """A GEMM of several steps, with everything on which its kernel's choice depends besides the number of rows.

    alone: computes a step's own rows. blocks: computes blocks of rows (None: every step is computed by itself). key:
    the dtypes and forms of both.
    """

    alone: Kernel
    blocks: Kernel | None
    weight: torch.Tensor
    bias: torch.Tensor | None
    key: Hashable

    def in_steps(self, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """x [n, K], the rows of step after step -> [n, N], with the bits of a separate call for each step."""
        block_of = {rows: self.block(rows, x) for rows in set(sizes)}
        if len(set(block_of.values())) == 1 and None not in block_of.values():
            return self._in_blocks(x, block_of[sizes[0]] or 0)
        parts = torch.split(x, list(sizes))
        done: dict[int, torch.Tensor] = {}
        for block in dict.fromkeys(block_of.values()):
            numbers = [i for i, rows in enumerate(sizes) if block_of[rows] == block]
            if block is None:
                # Copied to memory of their own, as a step's rows are.
                done |= {i: self.alone(parts[i].clone(), self.weight, self.bias) for i in numbers}
            else:
                joined = self._in_blocks(torch.cat([parts[i] for i in numbers]), block)
                done |= zip(numbers, torch.split(joined, [sizes[i] for i in numbers]), strict=True)
        return torch.cat([done[i] for i in range(len(sizes))])

    def block(self, rows: int, like: torch.Tensor) -> int | None:
        """The size of blocks in which a row has the bits that it has among `rows` rows; None if no such size is
        known.
        """
        if self.blocks is None:
            return None
        return next((size for size in BLOCKS if rows <= size and self._alike(rows, size, like)), None)

    def _in_blocks(self, x: torch.Tensor, block: int) -> torch.Tensor:
        assert self.blocks is not None
        starts = range(0, x.shape[0], block)
        results = [self.blocks(filled(x[start : start + block], block), self.weight, self.bias) for start in starts]
        return torch.cat(results)[: x.shape[0]]

    def _alike(self, rows: int, block: int, like: torch.Tensor) -> bool:
        weight, bias = self.weight, self.bias
        operand = (weight.shape, weight.stride(), weight.dtype, weight.data_ptr() % 64, bias is None)
        tried = (self.key, rows, block, like.dtype, operand, torch.get_num_threads())
        if tried not in _ALIKE:
            _ALIKE[tried] = all(self._gives_one_row(rows, block, like, seed) for seed in range(DRAWS))
        return _ALIKE[tried]

    def _gives_one_row(self, rows: int, block: int, like: torch.Tensor, seed: int) -> bool:
        """Whether one row, put into all places of a step and of a block, has the same bits everywhere."""
        assert self.blocks is not None
        row, weight, bias = _cancelling(like, self.weight, self.bias, seed)
        few = self.alone(row.expand(rows, -1).contiguous(), weight, bias)
        many = self.blocks(row.expand(block, -1).contiguous(), weight, bias)
        one_row = many[:1]
        # Sums that come out as 0 say nothing about their order.
        shows = 2 * int((int_view(one_row) != 0).sum()) >= one_row.numel()
        return shows and all(same_bits(of, one_row.expand_as(of).contiguous()) for of in (few, many))


def _cancelling(
    like: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A row [1, K], and a weight and bias like these, drawn so that each sum is 0 except for its rounding residue."""
    outputs, inputs = weight.shape
    start = torch.Generator().manual_seed(seed)
    pairs = torch.randperm(inputs, generator=start)
    first, second = pairs[: inputs // 2], pairs[inputs // 2 : 2 * (inputs // 2)]
    row, drawn = torch.zeros(1, inputs), torch.zeros(outputs, inputs)
    row[:, first] = row[:, second] = _of_many_exponents(start, 1, len(first))
    drawn[:, first] = _of_many_exponents(start, outputs, len(first))
    drawn[:, second] = -drawn[:, first].to(weight.dtype).float()
    small = None if bias is None else (_of_many_exponents(start, outputs) * 2.0**-24).to(bias.dtype)
    return row.to(like.dtype), _laid_out_as(weight).copy_(drawn), small


def _of_many_exponents(start: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=start) * torch.exp2(torch.randint(-9, 10, shape, generator=start))


def _laid_out_as(x: torch.Tensor) -> torch.Tensor:
    """Memory of the same shape and strides, and the same offset from the beginning of a cache line."""
    size, offset = x.element_size(), x.data_ptr() % 64
    extent = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    memory = torch.zeros(extent * size + 128, dtype=torch.uint8)
    start = (offset - memory.data_ptr()) % 64
    return memory[start : start + extent * size].view(x.dtype).as_strided(x.shape, x.stride())
