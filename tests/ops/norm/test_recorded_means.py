"""The order stated of torch's mean on a GPU, held to what an H200 gave (tests/recorded/h200)."""

from __future__ import annotations

import torch

from moeparity.numerics.bits import int_view
from moeparity.numerics.orders import Order, parse
from moeparity.numerics.summation import sum_axis
from moeparity.ops.norm.launches import Launch
from moeparity.ops.norm.reductions import order_of
from tests.recorded.files import read


def rows_of(rows: int, hidden: int) -> torch.Tensor:
    """As benchmarks/gpu/hardware.py draws them; the first 64 at most."""
    generator = torch.Generator().manual_seed(rows * 100003 + hidden)
    return torch.randint(-(2**20), 2**20, (min(rows, 64), hidden), generator=generator).float() * 2.0**-10


def count_of_others(x: torch.Tensor, order: Order, recorded: torch.Tensor) -> int:
    """How many of the recorded means the order gives with other bits."""
    total = sum_axis(x, order, -1, accumulate=x.dtype, executor="eager")
    mean = total * torch.tensor(1 / x.shape[-1], dtype=torch.float32)
    return int((int_view(mean) != int_view(recorded)).sum())


def test_every_mean_has_the_bits_of_the_gpu() -> None:
    """A row split over a block's rows is added up along x first; the other way round most of these differ."""
    recorded, _ = read("means")
    turned = 0
    for shape, means in recorded.items():
        rows, hidden = map(int, shape.split())
        x = rows_of(rows, hidden)
        x = x if rows < 65 else x[torch.arange(min(rows, 64)) % len(x)]
        order = order_of("torch.cuda_mean", Launch(hidden=hidden, rows=rows, dtype="fp32"))
        assert count_of_others(x, order, means) == 0, shape
        if " | fold_hi(" in str(order):
            levels = str(order).split(" | fold_hi(")[0]
            turned += count_of_others(x, parse(f"{levels} | fold_hi"), means)
    assert len(recorded) == 143
    assert turned > 2000
