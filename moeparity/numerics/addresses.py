"""Where a tensor lies in memory, since the bits of some fp32 kernels on CPUs depend on its address modulo 64."""

from __future__ import annotations

import torch

_PLACES = 64
"""In bytes: kernels may depend on an address modulo this."""


def placed(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The values, contiguous, at the same address modulo 64 as another tensor."""
    width = values.element_size()
    room = torch.empty(values.numel() + _PLACES // width, dtype=values.dtype, device=values.device)
    start = (like.data_ptr() - room.data_ptr()) % _PLACES // width
    return room[start : start + values.numel()].view(values.shape).copy_(values)
