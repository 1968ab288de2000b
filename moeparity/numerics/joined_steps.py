"""A GEMM on the rows of several steps at once, where that changes no bit of what each step's own call would give.

torch chooses how a GEMM adds by the number of its rows M, so steps go through it one by one. At most M the choice is
the same, though, and then the calls take longer than the sums. So the choice is tried: where a kernel gives a row the
same bits among M rows as in a block of many, whatever its place, it is called on blocks; at every other M for each
step. In which order a kernel adds does not go by what it adds, so it is tried on numbers that show it: every product is
there once more with the other sign, so that a sum is nothing but what was rounded on its way.
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
"""Calls an elementwise function of torch's."""
Chain = Callable[..., torch.Tensor]
Cut = Callable[..., Sequence[torch.Tensor]]

_VECTOR = 256
"""More elements than any vector has that torch computes at once."""

BLOCKS = (256, 32)
"""Rows of the blocks that are tried, the first that gives a step's bits is taken. No step of more rows is tried."""
DRAWS = 3

_ALIKE: dict[Hashable, bool] = {}


@dataclass(frozen=True, eq=False)
class Steps:
    """Rows that are handed to a kernel together, and are computed as if step after step.

    places: where in the tensor the rows lie, step after step, each in its own order, int64 [n]. sizes: how many rows
    each step has.
    """

    places: torch.Tensor
    sizes: tuple[int, ...]

    @cached_property
    def back(self) -> torch.Tensor:
        """Of each row of the tensor, its place in `places`, int64 [n]."""
        back = torch.empty_like(self.places)
        back[self.places] = torch.arange(len(self.places))
        return back

    @cached_property
    def numbers(self) -> torch.Tensor:
        """Of each row in the order of `places` the number of its step, int64 [n]."""
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes))


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows that are computed step by step: `sizes` of them at a time, in this order.

    order: which row comes where, int64 [n] (None: they lie so).
    """

    sizes: Sequence[int]
    order: torch.Tensor | None = None

    def each(self, function: Chain, cut: Cut, *whole: torch.Tensor) -> torch.Tensor:
        """An elementwise `function` of what `cut` makes of tensors [n, ..], with the bits of a call for each step.

        `function` is handed, before its operands, what calls those of its parts that torch computes otherwise in a
        vector than by itself, where a row ends; all other parts are exact up to one rounding, wherever they stand.
        """
        if len(self.sizes) == 1:
            return function(call, *cut(*whole))
        try:
            joined = function(_in_any_place, *cut(*whole))
        except _PlaceShowsError:
            return self._in_turn(function, cut, whole)
        # Of a NaN not even a rounding has the same bits everywhere.
        return self._in_turn(function, cut, whole) if bool(joined.isnan().any()) else joined

    def _in_turn(self, function: Chain, cut: Cut, whole: Sequence[torch.Tensor]) -> torch.Tensor:
        rows = whole if self.order is None else tuple(x[self.order] for x in whole)
        steps = zip(*(torch.split(x, list(self.sizes)) for x in rows), strict=True)
        computed = torch.cat([function(call, *cut(*step)) for step in steps])
        if self.order is None:
            return computed
        return torch.empty_like(computed).index_copy_(0, self.order, computed)


class _PlaceShowsError(Exception):
    """An element has other bits where it is computed in a vector."""


def call(function: Unary, x: torch.Tensor) -> torch.Tensor:
    """The function of x as it lies."""
    return function(x)


def _in_any_place(function: Unary, x: torch.Tensor) -> torch.Tensor:
    """torch's elementwise function of x, if each element of it has the same bits in a vector and by itself."""
    in_vectors = function(torch.cat([x.flatten(), x.new_zeros(_VECTOR)]))[: x.numel()].view(x.shape)
    if not same_bits(in_vectors, function(torch.stack([x, x], dim=-1)[..., 0]).contiguous()):
        raise _PlaceShowsError
    return in_vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedGemm:
    """A GEMM of steps, with what its kernel's choice depends on beside the number of its rows.

    alone: what computes a step's own rows. blocks: what computes blocks of rows. key: the dtypes and forms of both.
    """

    alone: Kernel
    blocks: Kernel
    weight: torch.Tensor
    bias: torch.Tensor | None
    key: Hashable

    def in_steps(self, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """x [n, K], the rows of step after step -> [n, N], with the bits that a call for each step would give."""
        block_of = {rows: self.block(rows, x) for rows in set(sizes)}
        if len(set(block_of.values())) == 1 and None not in block_of.values():
            return self._in_blocks(x, block_of[sizes[0]] or 0)
        parts = torch.split(x, list(sizes))
        done: dict[int, torch.Tensor] = {}
        for block in dict.fromkeys(block_of.values()):
            numbers = [i for i, rows in enumerate(sizes) if block_of[rows] == block]
            if block is None:
                # In memory of its own, as a step's rows are.
                done |= {i: self.alone(parts[i].clone(), self.weight, self.bias) for i in numbers}
            else:
                joined = self._in_blocks(torch.cat([parts[i] for i in numbers]), block)
                done |= zip(numbers, torch.split(joined, [sizes[i] for i in numbers]), strict=True)
        return torch.cat([done[i] for i in range(len(sizes))])

    def block(self, rows: int, like: torch.Tensor) -> int | None:
        """The size of blocks in which a row has the bits that it has among so many; None: no such size is known."""
        return next((size for size in BLOCKS if rows <= size and self._alike(rows, size, like)), None)

    def _in_blocks(self, x: torch.Tensor, block: int) -> torch.Tensor:
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
        """Whether one row, put into all places of a step and of a block, comes out with the same bits everywhere."""
        row, weight, bias = _cancelling(like, self.weight, self.bias, seed)
        few = self.alone(row.expand(rows, -1).contiguous(), weight, bias)
        many = self.blocks(row.expand(block, -1).contiguous(), weight, bias)
        one_row = many[:1]
        # Where nothing is left of the sums, nothing was seen of their order.
        shows = 2 * int((int_view(one_row) != 0).sum()) >= one_row.numel()
        return shows and all(same_bits(of, one_row.expand_as(of).contiguous()) for of in (few, many))


def _cancelling(
    like: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """A row [1, K] and a weight and bias like these, drawn so that each sum is 0 but for what is rounded on its way."""
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
    """Memory of the same shape and strides, as far behind the beginning of a cache line."""
    size, offset = x.element_size(), x.data_ptr() % 64
    extent = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    memory = torch.zeros(extent * size + 128, dtype=torch.uint8)
    start = (offset - memory.data_ptr()) % 64
    return memory[start : start + extent * size].view(x.dtype).as_strided(x.shape, x.stride())
