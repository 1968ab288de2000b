"""Orders that profiles state of torch's own CUDA kernels, read in their source: whether these kernels add so here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from moeparity.numerics.bits import int_view
from moeparity.numerics.summation import sum_axis
from moeparity.ops.norm.launches import Launch
from moeparity.ops.norm.reductions import order_of

EPS = 1e-6

# Few rows and many, short and long, and the shapes at which the launch changes.
SHAPES = (
    *((rows, hidden) for hidden in (2048, 4096, 7168) for rows in (1, 4, 15, 64)),
    *((1, 8192), (4, 8192), (64, 8192), (15, 2880), (512, 2880), (40, 96), (7, 32), (3, 132), (4096, 128)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A kernel on fp32 rows [rows, hidden] against the order stated of it: the share of results that differ."""

    order: str
    kernel: str
    rows: int
    hidden: int
    share: float


def kernel_rows(device: torch.device) -> list[KernelRow]:
    """Every kernel on every shape, normal fp32 numbers."""
    generator = torch.Generator().manual_seed(0)
    kernels = []
    for rows, hidden in SHAPES:
        x = torch.randn(rows, hidden, generator=generator).to(device)
        launch = Launch(hidden=hidden, rows=rows, dtype="fp32")
        for order, (kernel, live, stated) in KERNELS.items():
            different = int_view(live(x)) != int_view(stated(x, launch))
            share = different.double().mean().item()
            kernels.append(KernelRow(order=order, kernel=kernel, rows=rows, hidden=hidden, share=share))
    return kernels


def _mean(x: torch.Tensor) -> torch.Tensor:
    return (x * x).mean(-1)


def _stated_mean(x: torch.Tensor, launch: Launch) -> torch.Tensor:
    order = order_of("torch.cuda_mean", launch)
    return sum_axis(x * x, order, -1, accumulate=x.dtype, executor="eager") * (1 / launch.hidden)


def _rms_norm(x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, x.shape[-1:], torch.ones_like(x[0]), EPS)


def _stated_rms_norm(x: torch.Tensor, launch: Launch) -> torch.Tensor:
    order = order_of("torch.cuda_rms_norm", launch)
    total = sum_axis(x, order, -1, accumulate=x.dtype, times=x, executor="eager").unsqueeze(-1)
    # A tensor, since torch's GPU kernel multiplies by the reciprocal of a number.
    return x * torch.rsqrt(total / torch.full_like(total, launch.hidden) + EPS)


KERNELS: Mapping[
    str, tuple[str, Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor, Launch], torch.Tensor]]
] = {
    "torch.cuda_mean": ("(x * x).mean(-1)", _mean, _stated_mean),
    "torch.cuda_rms_norm": ("F.rms_norm", _rms_norm, _stated_rms_norm),
}
"""By the order's name: the kernel in words, what runs it, and what its results are by the order stated."""
