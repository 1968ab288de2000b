"""Compares the weights that all ranks of a job hold with a contract, by sums of parts, which add up to the sum of the
whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar

import torch.distributed as dist
from torch import nn

from moeparity.errors import WeightsError, counted
from moeparity.evidence.weights.part import Part, PartKind, Shape, matrix
from moeparity.evidence.weights.weight_layout import WeightLayout
from moeparity.output.words import few
from moeparity.ranks.contract import TensorClaim, WeightsClaim
from moeparity.ranks.holding import Breach, Holding

Answer = TypeVar("Answer")

_ROOM = 1 << 64


@dataclass(frozen=True, slots=True)
class Sum:
    """What ranks tell each other about a part of a tensor."""

    tensor: str
    kind: PartKind
    dtype: str
    shape: Shape
    start: Shape
    size: Shape
    total: int


def hold_weights(claim: WeightsClaim, layout: WeightLayout, modules: Sequence[nn.Module]) -> Holding:
    """Compare what the ranks of this job hold together, tensor by tensor. It is a collective if there are several
    ranks.
    """
    holding = Holding()
    if not modules:
        holding.unchecked.append("weights: no module was given")
        return holding
    ranks, failures = _gathered(layout, modules)
    holding.breaches += [
        Breach(section="weights", choice="layout", claimed="one that fits", present=words) for words in failures
    ]
    if failures:
        return holding
    by_tensor: dict[str, list[Sum]] = {}
    for rank_parts in ranks:
        for part in rank_parts:
            by_tensor.setdefault(part.tensor, []).append(part)
    parallel = max(over for _, over in layout.ranks.values())
    torn: list[str] = []
    same = 0
    for name, tensor in claim.tensors.items():
        parts = by_tensor.get(name)
        own_sum = "no rank has it" if parts is None else _mismatch(tensor, parts)
        if own_sum == _TORN or (parts is None and parallel > len(ranks)):
            torn.append(name)
        elif own_sum is not None:
            holding.breaches.append(Breach(section="weights", choice=name, claimed=_claimed(tensor), present=own_sum))
        else:
            same += 1
    if same:
        holding.keep("weights", f"{counted(same, 'tensor')}, by the sums of {counted(len(ranks), 'rank')}")
    if torn:
        holding.unchecked.append(f"weights: {few(torn, 3)}, which the ranks of this job do not hold whole")
    _unclaimed(claim, by_tensor, holding)
    return holding


_TORN = "torn"


def _mismatch(claim: TensorClaim, parts: Sequence[Sum]) -> str | None:
    """What differs from the claim; None if nothing does, `_TORN` if the parts do not make a whole."""
    first = parts[0]
    if (first.dtype, first.shape) != (claim.dtype, claim.shape):
        return f"{first.dtype} {list(first.shape)}"
    places = {(part.start, part.size): part for part in parts}
    if any(places[part.start, part.size].total != part.total for part in parts):
        return "ranks that hold the same part have other bits"
    elements = sum(math.prod(part.size) for part in places.values())
    if elements != math.prod(matrix(claim.shape)) or any(_meet(a, b) for a, b in combinations(places.values(), 2)):
        return _TORN
    bits = f"{sum(part.total for part in places.values()) % _ROOM:016x}"
    return None if bits == claim.bits else f"bits {bits}"


def _meet(a: Sum, b: Sum) -> bool:
    axes = zip(a.start, a.size, b.start, b.size, strict=True)
    return all(
        low < second_low + width and second_low < low + first_width for low, first_width, second_low, width in axes
    )


def _claimed(claim: TensorClaim) -> str:
    return f"{claim.dtype} {list(claim.shape)}, bits {claim.bits}"


def _unclaimed(claim: WeightsClaim, by_tensor: dict[str, list[Sum]], holding: Holding) -> None:
    """Parameters that the contract does not know are breaches, unless they are a second name of one that it knows."""
    claimed_sums = {(tensor.shape, tensor.bits) for tensor in claim.tensors.values()}
    buffers = []
    for name, parts in by_tensor.items():
        if name in claim.tensors:
            continue
        whole = parts[0].size == matrix(parts[0].shape) and (parts[0].shape, f"{parts[0].total:016x}") in claimed_sums
        if parts[0].kind != "parameter":
            buffers.append(name)
        elif not whole:
            holding.breaches.append(
                Breach(section="weights", choice=name, claimed="no such parameter", present="there is one")
            )
    if buffers:
        holding.unchecked.append(
            f"weights: {counted(len(buffers), 'buffer')} that the checkpoint does not have: {few(buffers, 3)}"
        )


def _gathered(layout: WeightLayout, modules: Sequence[nn.Module]) -> tuple[list[list[Sum]], list[str]]:
    """By rank, the parts that it holds; and why some could not be taken."""
    failure = ""
    try:
        own_parts = [_sum(part) for part in layout.parts(modules)]
    except WeightsError as error:
        own_parts, failure = [], str(error)
    answers = gathered((own_parts, failure))
    return [parts for parts, _ in answers], sorted({words for _, words in answers if words})


def _sum(part: Part) -> Sum:
    return Sum(part.tensor, part.kind, part.dtype, part.shape, part.start, part.size, part.total)


def gathered(own_answer: Answer) -> list[Answer]:
    """Every rank's answer, on every rank; without a job only this process's."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [own_answer]
    answers: list[Answer] = [own_answer] * dist.get_world_size()
    dist.all_gather_object(answers, own_answer)
    return answers
