"""How calls are run again: in fp64, or with every sum in another order and every function as another library's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.numerics.gemm import gemm
from moeparity.numerics.orders import parse
from moeparity.numerics.summation import sum_axis

PRODUCTS = 1 << 26
"""Products that the GEMMs of a draw add up one after the other at most: beyond, their leaves are permuted and handed to
torch's own kernel."""
LEAVES = 1 << 12
"""Leaves of a sum that is written out at most: beyond, they are permuted and handed to torch's own."""
ULPS = 4
"""How far from the exact value implementations of a function may lie, in ulps of the dtype that it is computed in: the
largest error that CUDA's programming guide has for the functions that occur here (expf, logf, rsqrtf, erff 2; powf 4).
"""


class NotDrawnError(Exception):
    """A call that can't be run again; its text says why."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run calls again: with a seed, every sum in an order that the seed draws; with None, the exact values,
    all in fp64.

    `written`: whether the sums of GEMMs are written out, product by product. `native`: whatever the seed, as torch's
    own kernels compute on this machine.
    """

    seed: int | None
    written: bool = True
    native: bool = False

    @property
    def exact(self) -> bool:
        """Whether all is computed in fp64."""
        return self.seed is None and not self.native

    def wide(self, x: Tensor) -> Tensor:
        """A floating-point value in the dtype that kernels compute in: fp32, fp64 of fp64 and of what is exact."""
        return x.double() if self.exact else x.to(torch.promote_types(x.dtype, torch.float32))

    def narrowed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """A result in the dtype that was recorded; of what is exact in fp64."""
        return x.double() if self.exact else x.to(dtype)

    def gemm(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: torch.dtype) -> Tensor:
        """x [M, K], weight [N, K], bias [N] -> [M, N]; as a kernel does, in `out` but for what is exact."""
        if self.seed is None:
            return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
        if not x.shape[-1] or not x.shape[0]:
            return torch.nn.functional.linear(x, weight, bias).to(out)
        if self.written:
            return gemm(x, weight, bias, inputs=x.dtype, output=out, order=f"unordered({self.seed})")
        order = self.permutation(x.shape[-1])
        return gemm(x[:, order], weight[:, order], bias, inputs=x.dtype, output=out)

    def sum(self, x: Tensor) -> Tensor:
        """The sum over the last axis, in `x`'s dtype; what is added is kept wide enough by who calls."""
        if self.seed is None or not x.shape[-1]:
            return x.sum(-1)
        if x.shape[-1] > LEAVES:
            return x[..., self.permutation(x.shape[-1])].sum(-1)
        return sum_axis(x, parse(f"unordered({self.seed})"), -1, accumulate=x.dtype)

    def function(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """An elementwise function of a wide value: exact, or as an implementation within `ULPS` of that has it."""
        value = function(x.double())
        if self.seed is None:
            return value
        noise = torch.rand(value.shape, generator=self.generator(), dtype=torch.float64) * 2 - 1
        return (value * (1 + noise * (ULPS * torch.finfo(x.dtype).eps / 2))).to(x.dtype)

    def permutation(self, count: int) -> Tensor:
        """The places of `count` leaves in another order, int64 [count]; as they lie for what is exact."""
        return torch.arange(count) if self.seed is None else torch.randperm(count, generator=self.generator())

    def generator(self) -> torch.Generator:
        """Draws by the seed."""
        return torch.Generator().manual_seed(0 if self.seed is None else self.seed)
