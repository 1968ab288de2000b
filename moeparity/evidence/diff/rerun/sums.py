"""GEMMs, reductions and scattered additions, each with its sums in the order of a way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from moeparity.evidence.diff.rerun.call_arguments import Arguments
from moeparity.evidence.diff.rerun.way import NotDrawnError, Way


@dataclass(frozen=True, slots=True)
class Added:
    """A value into which rows are still to be added, which are the parts of several calls. Their order is open until
    something else reads the value.

    parts: for each call its `index`, int64 of one axis or of the source's shape, and its `source`, which is added there
    along `axis`.
    """

    base: Tensor
    axis: int
    parts: tuple[tuple[Tensor, Tensor], ...]

    def total(self, way: Way) -> Tensor:
        """Adds the calls in another order, and the rows of each call. What a call leaves is rounded to the value's own
        dtype.

        If one call adds several rows to one place, they are added as torch's CPU kernel does it, which rounds their sum
        once.
        """
        total = self.base
        for number in way.permutation(len(self.parts)).tolist():
            index, source = self.parts[number]
            order = way.permutation(source.shape[self.axis])
            source = source.index_select(self.axis, order)
            if index.dim() == 1:
                total = total.index_add(self.axis, index[order], source)
            else:
                total = total.scatter_add(self.axis, index.index_select(self.axis, order), source)
        return total


def added(a: Arguments, way: Way, base: Tensor | Added) -> Added:
    """index_add and scatter_add, of any number of calls behind each other."""
    index, source = a["index"], a["source" if a.by_name.get("source") is not None else "src"]
    whole = base.base if isinstance(base, Added) else base
    axis = a["dim"] % max(1, whole.dim())
    if a["alpha"] not in (None, 1):
        raise NotDrawnError("rows that are scaled while they are added")
    if isinstance(base, Added) and base.axis == axis:
        return Added(base.base, axis, (*base.parts, (index, source)))
    return Added(base.total(way) if isinstance(base, Added) else base, axis, ((index, source),))


def mm(a: Arguments, way: Way) -> Tensor:
    """x [M, K], weight [K, N]."""
    return way.gemm(a["self"], a["mat2"].t(), None, a.out[0])


def addmm(a: Arguments, way: Way) -> Tensor:
    """A bias [N] and a product."""
    if a["self"].dim() != 1 or not a.has(alpha=1, beta=1):
        raise NotDrawnError("a form of addmm whose orders are not drawn here")
    return way.gemm(a["mat1"], a["mat2"].t(), a["self"], a.out[0])


def linear(a: Arguments, way: Way) -> Tensor:
    """x [..., K], weight [N, K], bias [N]."""
    x, weight = a["input"], a["weight"]
    return way.gemm(x.reshape(-1, x.shape[-1]), weight, a["bias"], a.out[0]).reshape(*x.shape[:-1], len(weight))


def bmm(a: Arguments, way: Way) -> Tensor:
    """x [B, M, K], y [B, K, N]."""
    return _each(a["self"], a["mat2"], a, way)


def grouped(a: Arguments, way: Way) -> Tensor:
    """Rows x [M, K] by the group they are of, whose ends `offs` says; weights [E, K, N]. Rows of no group are zeros."""
    x, weight, ends, out = a["self"], a["mat2"], a["offs"], a.out[0]
    if a["bias"] is not None or (x.dim(), weight.dim()) not in {(2, 3), (3, 3)}:
        raise NotDrawnError("a form of grouped GEMM whose orders are not drawn here")
    if x.dim() == weight.dim():
        return _each(x, weight, a, way)
    edges = [0, *ends.tolist()]
    parts = [way.gemm(x[low:high], weight[i].t(), None, out) for i, (low, high) in enumerate(pairwise(edges))]
    rest = x.shape[0] - edges[-1]
    return torch.cat([*parts, parts[0].new_zeros(rest, parts[0].shape[1])])


def _each(x: Tensor, y: Tensor, a: Arguments, way: Way) -> Tensor:
    return torch.stack([way.gemm(rows, weight.t(), None, a.out[0]) for rows, weight in zip(x, y, strict=True)])


def reduced(a: Arguments, way: Way) -> Tensor:
    """A sum, or a mean, over some axes or all."""
    return _reduced(a, way, mean=False)


def averaged(a: Arguments, way: Way) -> Tensor:
    """The sum divided by how many were added."""
    return _reduced(a, way, mean=True)


def _reduced(a: Arguments, way: Way, *, mean: bool) -> Tensor:
    x = a["self"]
    axes = sorted({axis % max(1, x.dim()) for axis in _axes(a["dim"], x.dim())})
    others = [axis for axis in range(x.dim()) if axis not in axes]
    flat = way.wide(x).permute(*others, *axes).reshape(*(x.shape[axis] for axis in others), -1)
    total = way.sum(flat)
    total = total / math.prod(x.shape[axis] for axis in axes) if mean else total
    if a["keepdim"]:
        total = total.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)])
    return way.narrowed(total, a.out[0])


def _axes(axes: Sequence[int] | None, dim: int) -> Sequence[int]:
    return list(range(dim)) if axes is None or not len(axes) else axes
