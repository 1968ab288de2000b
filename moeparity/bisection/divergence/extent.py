"""In how many sequences and tokens two walkers differ at a node."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.engine.view import NodeView
from moeparity.engine.walker import Name
from moeparity.metrics.tokens import CHUNK
from moeparity.numerics.bits import int_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """So many tokens, of which `pads` are padding, in so many sequences."""

    sequences: int = 0
    tokens: int = 0
    pads: int = 0

    def __add__(self, addend: Extent) -> Extent:
        """Both together, of different sequences."""
        return Extent(
            sequences=self.sequences + addend.sequences,
            tokens=self.tokens + addend.tokens,
            pads=self.pads + addend.pads,
        )

    @classmethod
    def of(cls, tokens: Tensor, real: Tensor) -> Extent:
        """That of the tokens marked in `tokens`; `real` marks those that are no padding; both bool [B, T]."""
        return cls(sequences=int(tokens.any(-1).sum()), tokens=int(tokens.sum()), pads=int((tokens & ~real).sum()))


def other_values(view: NodeView, a: Name, b: Name, tokens: Tensor) -> Tensor:
    """Which of some tokens, bool [B, T] of the wave, have different values at some port of two walkers.

    Values are compared bit by bit, of different dtypes after a cast to the wider one. A whole value and one in partial
    sums differ at every token.
    """
    pairs = [(view.by_token(a, port), view.by_token(b, port)) for port in range(len(view.outputs[a]))]
    # Only sequences of which some token is asked for are compared.
    rows = tokens.any(-1)
    marked = rows.to(pairs[0][0].device)
    differs = torch.zeros_like(tokens)
    for x, y in pairs:
        differs[rows] |= _rows_differ(x[marked], y[marked]).cpu()
    return differs & tokens


def _rows_differ(x: Tensor, y: Tensor) -> Tensor:
    """Bool [B, T] of values [B, T, N], some tokens at a time."""
    if x.shape != y.shape:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    wide = torch.promote_types(x.dtype, y.dtype)
    chunk = max(1, CHUNK // max(1, x.shape[-1]))
    pairs = zip(*(torch.split(value.flatten(0, 1), chunk) for value in (x, y)), strict=True)
    parts = [(int_view(ours.to(wide)) != int_view(theirs.to(wide))).any(-1) for ours, theirs in pairs]
    return torch.cat(parts).view(x.shape[:2])
