"""GEMMs with operands on a grid of 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from moeparity.numerics.block_scales import Grid, Magnitude, factors_of
from moeparity.numerics.dtypes import UNROUNDED
from moeparity.numerics.quantised import Codes, by_factor, by_scale, codes_of, quantised, scaled_product
from moeparity.numerics.rounding import rounded
from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.pieces import parts
from moeparity.ops.quantised import CHECKPOINT, OPERANDS, multiplies_codes, part_of_k
from moeparity.ops.scale_choices import (
    ACTIVATIONS,
    BLOCK,
    CHANNEL,
    DELAYED,
    FP32,
    FROM_LARGEST,
    FULL,
    GIVEN,
    GROUP,
    INVERTED,
    JOINED,
    RECIPROCAL,
    REQUANTISED,
    STATIC,
    TOKEN,
    UE8M0,
    WEIGHTS,
    arrives_as_codes,
)

Tensor = torch.Tensor


class FileScales(NamedTuple):
    """Scales that a checkpoint has of a weight [.., N, K] and of what it is multiplied with.

    weight: fp32 [.., N, groups of K], one for each row and group; None: the weight is no codes there. inputs: fp32 [],
    of a stack [experts], the static scale of activations; None: there is none. joined: fp32 [2], of weights that an
    engine joins with this one the largest number and the largest scale; None: none is joined with it.
    """

    weight: Tensor | None = None
    inputs: Tensor | None = None
    joined: Tensor | None = None

    def by_outputs(self, pieces: int) -> list[FileScales]:
        """Those of each rank's part of a weight [N, K] that is cut along N."""
        if self.weight is None:
            if pieces > 1 and self.joined is not None:
                reason = "a rank's parts of joined weights have a largest number of their own. Set tensor, or one rank."
                raise RefusedError("weight_scales", reason)
            return [self] * pieces
        return [self._replace(weight=part) for part in parts(self.weight, pieces, 0)]

    def by_inputs(self, pieces: int, k: int, at: Mapping[str, Any]) -> list[FileScales]:
        """Those of each rank's part of a weight [.., N, K] that is cut along K. Raises RefusedError where groups of K
        would be cut through.
        """
        if pieces == 1 or self.weight is None or self.weight.shape[-1] == 1:
            return [self] * pieces
        width = at.get("weight_block", k)
        if k // pieces % width:
            reason = (
                f"the checkpoint's scales are for {width} inputs each, and each rank has {k // pieces}; engines refuse "
                f"this too. Set fewer ranks, or weight_codes: made."
            )
            raise RefusedError("weight_codes", reason)
        return [self._replace(weight=part) for part in parts(self.weight, pieces, -1)]


NONE = FileScales()
"""Of a checkpoint that has no such scales."""


def file_scales(w: Mapping[str, Tensor], name: str, at: Mapping[str, Any]) -> FileScales:
    """The scales of a weight among those of a node, if its operands are on grids that take them."""
    takes = at.get(WEIGHTS, UNROUNDED) != UNROUNDED and at["weight_codes"] == CHECKPOINT
    return FileScales(w.get(f"{name}_scales") if takes else None, w.get(f"{name}_input_scale"), w.get(f"{name}_joined"))


def in_8_bits(gemm: Callable[..., Tensor], at: Mapping[str, Any]) -> Callable[..., Tensor]:
    """A GEMM, of x [..., K], weight [N, K] and bias, with one or both operands on a grid; `gemm`: of plain numbers."""
    operands_of_weight = _WeightOperands(at)

    def product(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        inputs: torch.dtype,
        output: torch.dtype,
        scales: FileScales = NONE,
    ) -> Tensor:
        rows = rounded(x, inputs).reshape(-1, x.shape[-1])
        operand = operands_of_weight.latest(weight, scales)
        codes = _of_activations(rows, scales, at) if isinstance(at.get(ACTIVATIONS), torch.dtype) else None
        if isinstance(operand, Codes):
            assert codes is not None
            result = scaled_product(
                codes, operand, bias, partial(_sums, gemm), part=part_of_k(at), scaling=at["scaling"],
                addition=at["scaled_addition"], output=output,
            )  # fmt: skip
        else:
            rows = rows if codes is None else codes.multiplied_out()
            inputs = torch.float32 if at.get("scaling") == OPERANDS else inputs
            result = gemm(rows, operand, bias, inputs=inputs, output=output)
        return result.view(*x.shape[:-1], len(weight))

    return product


def dispatched(x: Tensor, at: Mapping[str, Any]) -> tuple[Tensor, Mapping[str, Any]]:
    """Rows [M, H] as they reach the ranks of their experts, and the choices of the GEMM that multiplies them there.

    Codes that the GEMM takes as they come are made by that GEMM: of the same rows, in the way of the dispatch.
    """
    if at.get("dispatch", UNROUNDED) == UNROUNDED:
        return x, at
    if arrives_as_codes(at):
        of_dispatch = {"scale": at["dispatch_scale"], "scale_by": RECIPROCAL, "quotient": FROM_LARGEST}
        of_dispatch["floor"] = at["dispatch_floor"]
        return x, {**at, **{f"activation_{name}": value for name, value in of_dispatch.items()}}
    grid = Grid(
        dtype=at["dispatch"],
        block=(1, at["dispatch_group"]),
        scale=at["dispatch_scale"],
        scale_by=RECIPROCAL,
        quotient=FROM_LARGEST,
        floor=at["dispatch_floor"],
    )
    return rounded(quantised(rounded(x, at["projections"]), grid).multiplied_out(), at["projections"]), at


def multiplied_out(weight: Tensor, scales: FileScales, at: Mapping[str, Any]) -> Tensor:
    """The numbers of a weight [N, K] on its grid, fp32; the weight itself if it is on none."""
    on_grid = at.get(WEIGHTS, UNROUNDED) != UNROUNDED
    return _of_weight(weight, scales, at).multiplied_out() if on_grid else weight


class _WeightOperands:
    """What a GEMM multiplies by in place of a weight; the last is kept, since step after step asks for the same."""

    def __init__(self, at: Mapping[str, Any]) -> None:
        self._at = at
        self._of: tuple[Tensor, FileScales] | None = None
        self._operand: Codes | Tensor | None = None

    def latest(self, weight: Tensor, scales: FileScales) -> Codes | Tensor:
        """The weight's codes if the GEMM multiplies these, else the numbers that they stand for; a weight on no grid
        itself.
        """
        if self._operand is None or self._of is None or self._of[0] is not weight or self._of[1] is not scales:
            # The memory of a call has room for the operand of one weight.
            self._operand = None
            self._operand = self._operand_of(weight, scales)
            self._of = weight, scales
        return self._operand

    def _operand_of(self, weight: Tensor, scales: FileScales) -> Codes | Tensor:
        if not isinstance(self._at.get(WEIGHTS), torch.dtype):
            return weight
        codes = _of_weight(weight, scales, self._at)
        return codes if multiplies_codes(self._at) else codes.multiplied_out()


def _of_weight(weight: Tensor, scales: FileScales, at: Mapping[str, Any]) -> Codes:
    """The weight's codes: those of the checkpoint where it has any, or made of its numbers; or rounded once more."""
    grid = grid_of_weight(at)
    if scales.weight is not None:
        width = grid.block[1] or weight.shape[1]
        if scales.weight.shape != (len(weight), -(-weight.shape[1] // width)):
            reason = f"the checkpoint's scales are {list(scales.weight.shape)}, not one for each {width} of K"
            raise RefusedError("weight_scales", f"{reason}. Set its blocks, or weight_codes: made.")
        codes = codes_of(weight, scales.weight, width, grid.dtype)
        if at["weight_scales"] == JOINED:
            largest = codes.scales.max() if scales.joined is None else scales.joined[1]
            if largest.isnan():
                reason = "a weight that is joined with this one is no codes in the checkpoint. Set tensor."
                raise RefusedError("weight_scales", reason)
            codes = by_scale(rounded(codes.multiplied_out(), at["master"]), largest, grid.dtype, grid.quotient)
    else:
        if scales.joined is not None:
            amax = float(rounded(scales.joined[0], at["master"])) * grid.magnitude.number
            grid = replace(grid, magnitude=Magnitude(way=GIVEN, number=amax))
        codes = quantised(rounded(weight, at["master"]), grid)
    if at["weight_scale"] == REQUANTISED:
        codes = quantised(codes.multiplied_out(), replace(grid, scale=UE8M0, magnitude=Magnitude()))
    dtype = at["weight_scale_dtype"]
    return codes if dtype == UNROUNDED else replace(codes, scales=rounded(codes.scales, dtype).float())


def _of_activations(rows: Tensor, scales: FileScales, at: Mapping[str, Any]) -> Codes:
    """Rows [M, K] on their grid."""
    if at["activation_scales"] == DELAYED:
        return by_factor(rows, _factor_of_history(at), at[ACTIVATIONS])
    if at["activation_scales"] != STATIC:
        return quantised(rows, _grid_of_activations(at))
    if scales.inputs is None:
        raise RefusedError("activation_scales", "the checkpoint has no input_scale of this weight. Set another value.")
    return by_scale(rows, scales.inputs, at[ACTIVATIONS], at["activation_quotient"])


def _sums(gemm: Callable[..., Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """Codes [M, K] times codes [N, K], added up in fp32; whole numbers exactly, and then rounded to fp32."""
    if x.dtype == torch.int8:
        return torch.nn.functional.linear(x.double(), weight.double()).float()
    return gemm(x, weight, None, inputs=x.dtype, output=torch.float32)


def _factor_of_history(at: Mapping[str, Any]) -> Tensor:
    """What numbers are multiplied by in delayed scaling, fp32 []."""
    grid = Grid(dtype=at[ACTIVATIONS], block=(0, 0), scale=FP32, scale_by=INVERTED, quotient=FROM_LARGEST, floor=0.0)
    return factors_of(torch.tensor(float(at["activation_amax"])), grid)


def grid_of_weight(at: Mapping[str, Any]) -> Grid:
    """On which a weight's codes are made, at first where they are made twice."""
    side = at.get("weight_block", 0)
    block = {BLOCK: (side, side), GROUP: (1, side), CHANNEL: (1, 0)}.get(at["weight_scales"], (0, 0))
    way = at["weight_magnitude"]
    number = next((at[name] for name in ("weight_clip", "weight_percentile", "weight_amax") if name in at), 1.0)
    return Grid(
        dtype=at[WEIGHTS],
        block=block,
        scale=FP32 if at["weight_scale"] == REQUANTISED else at["weight_scale"],
        scale_by=at["weight_scale_by"],
        quotient=at["weight_quotient"],
        floor=at["weight_floor"],
        magnitude=Magnitude(way=way, number=float(number)),
        full=at.get("weight_range") == FULL,
        arithmetic=at["weight_arithmetic"],
    )


def _grid_of_activations(at: Mapping[str, Any]) -> Grid:
    block = {GROUP: (1, at.get("activation_group", 0)), TOKEN: (1, 0)}.get(at["activation_scales"], (0, 0))
    return Grid(
        dtype=at[ACTIVATIONS],
        block=block,
        scale=at["activation_scale"],
        scale_by=at["activation_scale_by"],
        quotient=at["activation_quotient"],
        floor=at["activation_floor"],
    )
