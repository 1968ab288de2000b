"""A GEMM as one of cuBLASLt's kernels on CUDA cores adds it up: exact products, added in fp32."""

from __future__ import annotations

from math import prod

import torch

from moeparity.numerics.tensor_core.cuda_core_plans import BUTTERFLY, CudaCorePlan, Level

_MOST = 1 << 22
"""Products that are held at once."""


def cuda_core_product(x: torch.Tensor, weight: torch.Tensor, plan: CudaCorePlan) -> torch.Tensor:
    """x [M, K], weight [N, K], of 16 bits -> fp32 [M, N]."""
    levels = plan.levels(x.shape[1])
    places = _places(levels, x.shape[1]).to(x.device)
    columns = max(1, _MOST // (len(x) * places.numel()))
    rows = _spread(x, places)
    parts = (_summed(rows[:, None] * _spread(of, places)[None], levels) for of in torch.split(weight, columns))
    return torch.cat(list(parts), dim=1)


def _places(levels: tuple[Level, ...], k: int) -> torch.Tensor:
    """Where in K each product of the sum is, an axis for each level; K itself where there is none."""
    place, inside = torch.zeros((), dtype=torch.int64), torch.ones((), dtype=torch.bool)
    for level in reversed(levels):
        if level.bounded:
            inside = inside & (place < level.digits[0][1])
        starts = torch.zeros(1, dtype=torch.int64)
        for size, step in level.digits:
            starts = (starts[:, None] + torch.arange(size) * step).flatten()
        place = starts.view(-1, *[1] * place.dim()) + place
        inside = inside.expand(place.shape)
    return torch.where(inside & (place < k), place, k)


def _spread(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """x [R, K] -> fp32 [R, ..places]."""
    padded = torch.nn.functional.pad(x.float(), (0, 1))
    return padded[:, places.flatten()].view(len(x), *places.shape)


def _summed(products: torch.Tensor, levels: tuple[Level, ...]) -> torch.Tensor:
    """[.., levels] -> [..], the last level first; a chain begins with +0."""
    for level in reversed(levels):
        size = prod(size for size, _ in level.digits)
        if level.how == BUTTERFLY:
            while size > 1:
                size //= 2
                products = products[..., :size] + products[..., size:]
            products = products[..., 0]
            continue
        total = torch.zeros_like(products[..., 0])
        for part in products.unbind(-1):
            total = total + part
        products = total
    return products
