"""Where a difference lies: in which part of the sequences, and at which token ids."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from moeparity.doctor.case import Case
from moeparity.output.words import enumerated

_THIRDS = 3
_IDS = 5
_FEW = 0.5
"""Token ids are named if these few carry this fraction of the squares."""


def whereabouts(case: Case) -> tuple[str, ...]:
    """In sentences; () if there is no difference."""
    squares = case.difference.d**2
    return tuple(_sentences(case, squares)) if float(squares.sum()) > 0 else ()


def _sentences(case: Case, squares: Tensor) -> Iterator[str]:
    loss_mask = case.bench.tokens.loss_mask.cpu()
    sequence, position = (axis[case.mask] for axis in loss_mask.nonzero(as_tuple=True))
    by_third = _by_third(squares, sequence)
    words = enumerated([f"{float(part):.0%}" for part in by_third])
    yield f"{words} of the squared differences lie in the first, second and last third of the scored tokens"
    ids = case.bench.tokens.input_ids.cpu()[sequence, position]
    kinds, place = torch.unique(ids, return_inverse=True)
    sums = torch.zeros(kinds.numel(), dtype=torch.float64).index_add(0, place, squares)
    most = sums.argsort(descending=True)[:_IDS]
    carried = float(sums[most].sum() / squares.sum())
    if kinds.numel() > 2 * _IDS and carried > _FEW:
        names = enumerated([str(int(kinds[index])) for index in most if sums[index] > 0])
        yield f"{carried:.0%} of them lie at the token ids {names}, of {kinds.numel():,} that are scored"


def _by_third(squares: Tensor, sequence: Tensor) -> Tensor:
    """fp64 [3]: fractions of the squares by third of each sequence's scored tokens."""
    sums = torch.zeros(_THIRDS, dtype=torch.float64)
    for number in torch.unique(sequence):
        of_it = squares[sequence == number]
        third = torch.arange(of_it.numel()) * _THIRDS // of_it.numel()
        sums.index_add_(0, third, of_it)
    return sums / squares.sum()
