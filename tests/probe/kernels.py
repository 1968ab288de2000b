"""Callables to probe, each as its kind is called; `moeparity kernel probe kernels:NAME` finds them from this folder."""

from __future__ import annotations

import atexit
import functools
import sys

import torch
import torch.nn.functional as F


def row_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def mean(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1)


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().sum(0)


def accumulated(x: torch.Tensor) -> torch.Tensor:
    """index_put_ with the rows' values mixed, so that two threads add to the same outputs."""
    m, n = x.shape
    index = torch.arange(m).repeat(n)
    return torch.zeros(m, dtype=x.dtype).index_put_((index,), x.t().reshape(-1), accumulate=True)


def by_address(x: torch.Tensor) -> torch.Tensor:
    """One order where x starts at a multiple of 64 bytes, another elsewhere."""
    return x.sum(-1) if x.data_ptr() % 64 == 0 else functools.reduce(torch.add, x.unbind(-1))


def dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.dot(a, b)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight)


def linear_in_lanes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """In an order that no processor chooses: eight lanes, each product rounded, folded from the upper half."""
    lanes = torch.zeros(x.shape[0], weight.shape[0], 8)
    for products in (x[:, None] * weight).split(8, dim=-1):
        lanes = lanes + products
    while lanes.shape[-1] > 1:
        lower, upper = lanes.chunk(2, dim=-1)
        lanes = lower + upper
    return lanes[..., 0]


def transposed_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.t().contiguous()


def combine(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mnh,mn->mh", rows, weights)


def combine_in_12_bits(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Products are rounded to 12 bits, which no dtype of ours has, and added in fp32."""
    products = rows.double() * weights.double()[..., None]
    scaled = products * (2.0**41 + 1)
    return (scaled - (scaled - products)).float().sum(1).to(rows.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def hf_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def all_reduce(x: torch.Tensor) -> None:
    torch.distributed.all_reduce(x)


@functools.cache
def tell_at_exit() -> None:
    atexit.register(lambda: print(f"group left: {torch.distributed.is_initialized()}", file=sys.stderr))


def all_reduce_and_tell(x: torch.Tensor) -> None:
    """As all_reduce; when the process ends, it tells whether a process group is left."""
    tell_at_exit()
    torch.distributed.all_reduce(x)


def raises(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such luck")


def leaves(x: torch.Tensor) -> torch.Tensor:
    raise SystemExit(0)


def wrong_shape(x: torch.Tensor) -> torch.Tensor:
    return x[:, :2]


def no_tensor(x: torch.Tensor) -> str:
    return "sum"


def many(first: int, two: int, three: int, four: int) -> None:
    pass


def no_sum(x: torch.Tensor) -> torch.Tensor:
    """A sum of squares is none of x."""
    return (x * x).sum(-1)


number = 3
