"""KL divergences of distributions that may leave out tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def divergences(
    x: Tensor, y: Tensor, gap: Tensor, left_out: Sequence[Tensor], *, rounded: bool
) -> tuple[Tensor, Tensor]:
    """KL(y || x) and KL(x || y), fp64 [N], of probabilities [N, V] and the log of their quotient x / y, which is 0
    where a side leaves the token out. rounded: probabilities need not add up to 1.
    """
    forward, backward = 0.0 - (y * gap).sum(-1), (x * gap).sum(-1)
    if not rounded:
        return forward, backward
    # Of what one side leaves out and the other keeps, only the direction in which it has no probability is finite.
    missing = [absent & ~absent_b for absent, absent_b in zip(left_out, reversed(left_out), strict=True)]
    infinite = [tokens.any(-1, keepdim=True) for tokens in missing]
    excess = x - y
    either = missing[0] | missing[1]
    forward += excess.masked_fill(either & infinite[0], 0).sum(-1)
    backward -= excess.masked_fill(either & infinite[1], 0).sum(-1)
    return forward, backward
