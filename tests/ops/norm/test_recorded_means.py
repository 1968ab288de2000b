"""The order stated of torch's mean on a GPU, held to what an H200 gave (tests/recorded/h200)."""

from __future__ import annotations

import torch

from moeparity.numerics.orders import Order, parse
from moeparity.numerics.summation import sum_axis
from moeparity.ops.norm.launches import Launch
from moeparity.ops.norm.reductions import order_of
from tests.recorded.files import count_of_others, read


def rows_of(rows: int, hidden: int) -> torch.Tensor:
    """As benchmarks/gpu/hardware.py draws them; the first 64 at most."""
    generator = torch.Generator().manual_seed(rows * 100003 + hidden)
    return torch.randint(-(2**20), 2**20, (min(rows, 64), hidden), generator=generator).float() * 2.0**-10


def means(x: torch.Tensor, order: Order) -> torch.Tensor:
    """Of each row, added up in the order."""
    total = sum_axis(x, order, -1, accumulate=x.dtype, executor="eager")
    return total * torch.tensor(1 / x.shape[-1], dtype=torch.float32)


def test_every_mean_has_the_bits_of_the_gpu() -> None:
    """A row split over a block's rows is added up along x first; the other way round most of these differ."""
    recorded, _ = read("means")
    turned = 0
    for shape, of_gpu in recorded.items():
        rows, hidden = map(int, shape.split())
        x = rows_of(rows, hidden)
        x = x if rows < 65 else x[torch.arange(min(rows, 64)) % len(x)]
        order = order_of("torch.cuda_mean", Launch(hidden=hidden, rows=rows, dtype="fp32"))
        assert count_of_others(means(x, order), of_gpu) == 0, shape
        if " | fold_hi(" in str(order):
            levels = str(order).split(" | fold_hi(")[0]
            turned += count_of_others(means(x, parse(f"{levels} | fold_hi")), of_gpu)
    assert len(recorded) == 143
    assert turned > 2000
