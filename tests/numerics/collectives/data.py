"""Inputs on which the order of an addition over ranks shows in nearly every element."""

from __future__ import annotations

import torch

PERIOD = 10007
SPREAD = {torch.float16: 5, torch.bfloat16: 12, torch.float32: 12}


def zero_sum(
    ranks: int, elements: int, dtype: torch.dtype, *, seed: int = 0, spread: int | None = None
) -> list[torch.Tensor]:
    """One tensor a rank: pairs that nearly cancel, with wide exponents, dealt to other ranks at each element.

    Exponents reach from -`spread` to `spread`; where 16-bit values are added in fp32 it must be wide for the order to
    show at all. Random normal data would pass wrong 16-bit trees: what is left here is rounding residue. The data
    repeats after 10007 elements, a prime: large messages cost little, and no chunk starts at the same place twice.
    """
    period = min(elements, PERIOD)
    spread = SPREAD[dtype] if spread is None else spread
    draw = torch.Generator().manual_seed(seed * 1000 + ranks)
    values = torch.randn(ranks, period, generator=draw)
    values *= 2.0 ** torch.randint(-spread, spread + 1, (ranks, period), generator=draw)
    pairs = ranks // 2 if ranks > 2 else 0
    values[pairs : 2 * pairs] = -values[:pairs] * (1 + 2.0**-9)
    places = torch.rand(ranks, period, generator=draw).argsort(0)
    rows = values.gather(0, places).to(dtype)
    return [row.repeat(-(-elements // period))[:elements].clone() for row in rows]
