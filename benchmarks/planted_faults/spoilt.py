"""What spoils a function: for some of its input only, with NaN, or otherwise whenever it is called. Free of moeparity.

Conditions take what a function is given and say which tokens are meant, [B, T] bool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
Condition = Callable[..., Tensor]


def only(*inputs: Tensor, node: Any, where: Condition, clean: Function, faulty: Function) -> Tensor:
    """What `faulty` returns for the tokens that are meant, and `clean` for all others; [B, T, ...]."""
    y, spoilt = clean(*inputs, node=node), faulty(*inputs, node=node)
    meant = where(*inputs)
    chosen: Tensor = torch.where(meant.view(*meant.shape, *(1,) * (y.dim() - 2)), spoilt, y)
    return chosen


def above(x: Tensor, *_: Tensor, channel: int, threshold: float) -> Tensor:
    """Tokens of which one channel is above a threshold."""
    return x.flatten(2)[..., channel] > threshold


def sequences(x: Tensor, *_: Tensor, channel: int, threshold: float) -> Tensor:
    """All tokens of sequences whose first token has one channel above a threshold."""
    return (x.flatten(2)[:, :1, channel] > threshold).expand(x.shape[:2])


def smaller(x: Tensor, *_: Tensor, size: int) -> Tensor:
    """All tokens where fewer sequences than `size` go together, as in the last micro-batch."""
    return torch.full(x.shape[:2], fill_value=len(x) < size)


def whole(x: Tensor, *_: Tensor, size: int) -> Tensor:
    """All tokens where as many sequences as `size` go together."""
    return ~smaller(x, size=size)


def ids_from(tokens: Tensor, *, number: int) -> Tensor:
    """Token ids from a number on."""
    return tokens >= number


def ids_equal(tokens: Tensor, *, number: int) -> Tensor:
    """One token id."""
    return tokens == number


def padded(*inputs: Tensor) -> Tensor:
    """Tokens that the mask, the last of what attention is given, leaves out."""
    return ~inputs[-1]


def poisoned(*inputs: Tensor, node: Any, of: Function, where: Condition, channel: int, value: float) -> Tensor:
    """What `of` returns with one channel of the tokens that are meant set to a value."""
    y: Tensor = of(*inputs, node=node).clone()
    flat = y.flatten(2) if y.dim() > 2 else y
    flat[..., channel] = torch.where(where(*inputs), torch.tensor(value, dtype=y.dtype), flat[..., channel])
    return flat.view(y.shape)


def unsteady(*inputs: Tensor, node: Any, of: Function, by: float) -> Tensor:
    """What `of` returns, with one token of each sequence, drawn anew at each call, multiplied by up to `by`."""
    y: Tensor = of(*inputs, node=node)
    factors = torch.ones(y.shape[:2])
    factors[torch.arange(len(y)), torch.randint(y.shape[1], (len(y),))] = 1 + (by - 1) * (0.5 + torch.rand(()) / 2)
    return (y * factors.view(*factors.shape, *(1,) * (y.dim() - 2))).to(y.dtype)
