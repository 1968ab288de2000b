"""How many sequences and tokens differ between two walkers at a node."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.engine.view import NodeView
from moeparity.engine.walker import WalkerName
from moeparity.metrics.exact import summed
from moeparity.metrics.tokens import CHUNK
from moeparity.numerics.bits import int_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A number of tokens in a number of sequences; `pads` of the tokens are padding."""

    sequences: int = 0
    tokens: int = 0
    pads: int = 0

    def __add__(self, addend: Extent) -> Extent:
        """The sum of two extents that have no sequence in common."""
        return summed(self, addend)

    @classmethod
    def of(cls, tokens: Tensor, real: Tensor) -> Extent:
        """The extent of the tokens marked in `tokens`; `real` marks those that are not padding; both bool [B, T]."""
        return cls(sequences=int(tokens.any(-1).sum()), tokens=int(tokens.sum()), pads=int((tokens & ~real).sum()))


def other_values(view: NodeView, a: WalkerName, b: WalkerName, tokens: Tensor) -> Tensor:
    """Which of the tokens marked in `tokens` (bool [B, T] of the wave) have different values in walkers `a` and `b`.

    A token differs if it does at some port. Values are compared bit by bit; if dtypes differ, after a cast to the wider
    one. A whole value differs from one in partial sums at every token.
    """
    pairs = [(view.by_token(a, port), view.by_token(b, port)) for port in range(len(view.outputs[a]))]
    # Only sequences with a marked token are compared.
    rows = tokens.any(-1)
    marked = rows.to(pairs[0][0].device)
    differs = torch.zeros_like(tokens)
    for x, y in pairs:
        differs[rows] |= _rows_differ(x[marked], y[marked]).cpu()
    return differs & tokens


def _rows_differ(x: Tensor, y: Tensor) -> Tensor:
    """bool [B, T]: which rows of two values [B, T, N] differ; compared in chunks of tokens to save memory."""
    if x.shape != y.shape:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    wide = torch.promote_types(x.dtype, y.dtype)
    chunk = max(1, CHUNK // max(1, x.shape[-1]))
    pairs = zip(*(torch.split(value.flatten(0, 1), chunk) for value in (x, y)), strict=True)
    parts = [(int_view(ours.to(wide)) != int_view(theirs.to(wide))).any(-1) for ours, theirs in pairs]
    return torch.cat(parts).view(x.shape[:2])
