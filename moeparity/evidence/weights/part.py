"""What a rank holds of one tensor: a rectangle of it, as sums that add up to those of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from moeparity.errors import WeightsError
from moeparity.evidence.trace.element_sums import element_sums, rows_sum

PartKind = Literal["parameter", "buffer", "computed"]
"""`computed`: a buffer that no checkpoint keeps."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A rectangle of a tensor. Tensors of fewer than two axes are a column.

    shape: the tensor's own. start, size: the first index and the width in each axis.
    sums: of each row of the rectangle, int64 [product of `size` but its last], columns counted as in the tensor.
    alike: 64 bits that do not depend on where the rectangle lies. constant: all its elements are one number.
    """

    tensor: str
    kind: PartKind
    dtype: str
    shape: Shape
    start: Shape
    size: Shape
    sums: torch.Tensor
    alike: int
    constant: bool

    @property
    def total(self) -> int:
        """Its sum modulo 2^64; those of rectangles that lie beside each other add up to the tensor's."""
        return rows_sum(self.sums, numbers(self.shape, self.start, self.size))


def matrix(shape: Shape) -> Shape:
    """The axes that rectangles are counted by: a tensor's own, or of one with fewer than two those of a column."""
    return shape if len(shape) > 1 else (math.prod(shape), 1)


def part(
    name: str,
    values: torch.Tensor,
    *,
    shape: Shape | None = None,
    start: Shape | None = None,
    kind: PartKind = "parameter",
) -> Part:
    """What of the tensor `name` these values are, which begin at `start`; all of it where nothing else is said.

    Raises WeightsError for a dtype that has no bits of its own, and for values that are nowhere.
    """
    if values.is_meta:
        raise WeightsError(f"{name}: it is on the device meta, which holds no values. Load the weights first.")
    if values.element_size() > 8:
        raise WeightsError(f"{name}: {values.dtype} is no dtype that fingerprints are taken of.")
    shape = tuple(values.shape) if shape is None else shape
    rectangle = values.detach().reshape(matrix(tuple(values.shape)))
    size = tuple(rectangle.shape)
    start = (0,) * len(size) if start is None else start
    sums = element_sums(rectangle, start[-1]).cpu()
    own_sums = sums if start[-1] == 0 else element_sums(rectangle).cpu()
    flat = rectangle.reshape(-1)
    return Part(
        tensor=name,
        kind=kind,
        dtype=str(values.dtype).removeprefix("torch."),
        shape=shape,
        start=start,
        size=size,
        sums=sums,
        alike=rows_sum(own_sums, torch.arange(len(own_sums))),
        constant=flat.numel() < 2 or bool((flat == flat[0]).all()),
    )


def numbers(shape: Shape, start: Shape, size: Shape) -> torch.Tensor:
    """The numbers of a rectangle's rows in their tensor, int64, in the order of its rows."""
    axes = matrix(shape)[:-1]
    places = torch.zeros((1,) * len(axes), dtype=torch.int64)
    stride = 1
    for axis in reversed(range(len(axes))):
        offsets = torch.arange(start[axis], start[axis] + size[axis]) * stride
        places = places + offsets.reshape([-1 if index == axis else 1 for index in range(len(axes))])
        stride *= axes[axis]
    return places.reshape(-1)
