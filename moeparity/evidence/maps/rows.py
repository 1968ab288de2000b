"""Tensors as a program has them, made into rows of tokens, and rows into the layout that a node's kernel gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moeparity.evidence.maps.module_map import Place
from moeparity.plan.graph import Node
from moeparity.plan.token_shapes import TokenShape


@dataclass(frozen=True, slots=True)
class Lying:
    """How a shape lies on a forward's tokens: it has the last `tokens` of each sequence, and behind them the `axes` of
    a single token. `shared`: one row stands for all sequences. `of_requests`: it has each request's last token.
    """

    tokens: int
    axes: tuple[int, ...]
    shared: bool = False
    of_requests: bool = False


def lying(shape: Sequence[int], size: tuple[int, int], place: Place, requests: int = 0) -> Lying | None:
    """How the shape of a value at a place lies on `size`, b sequences with t tokens each, in a server the tokens of so
    many requests; None if it is of no such tokens.

    The axes of the tokens come first, as [b, t, ...] or as [b * t, ...]. One row for all sequences is [1, t, ...]. A
    head that sees only the last k tokens of each sequence gives [b, k, V], with k less than t. If a value has another
    width than the place says, it is of tokens if their two axes are there, or their one axis beside the width.
    """
    shape, (sequences, length) = tuple(shape), size
    whole = place.width if place.beside is None else place.beside
    if place.of_requests and requests:
        return Lying(requests, shape[1:], of_requests=True) if shape[0] == requests else None
    for axes in range(len(shape)):
        # Several axes behind may be those of other tokens, as of what a step of decoding makes of all keys.
        fits = axes + 1 == len(shape) or whole in (None, math.prod(shape[axes:]))
        if math.prod(shape[:axes]) == sequences * length and fits:
            return Lying(length, shape[axes:])
    if len(shape) > 2 and shape[:2] == (1, length) and (len(shape) == 3 or whole in (None, math.prod(shape[2:]))):
        return Lying(length, shape[2:], shared=True)
    if len(shape) == 3 and shape[0] == sequences and 0 < shape[1] < length:
        return Lying(shape[1], shape[2:])
    # With one token a whole width behind further axes is that of other tokens, as of all keys that a cache holds.
    keys = length == 1 and shape[-1:] == (whole,)
    if len(shape) > 2 and shape[:2] == (sequences, length) and not keys:
        return Lying(length, shape[2:])
    packed = len(shape) > 1 and length > 1 and shape[0] == sequences * length
    return Lying(length, shape[1:]) if packed else None


def other_shape(axes: Sequence[int], place: Place, shape: TokenShape) -> str:
    """What a program has of a token in place of a value's `shape`, in words; empty where it has that."""
    if place.beside is not None:
        if math.prod(axes) == place.beside:
            return ""
        return f"{math.prod(axes):,} values for each token where those of the checkpoint are {place.beside:,} together"
    axes = (*axes[:-1], axes[-1] * place.repeated)
    return "" if shape.is_of(axes) else shape.beside(axes)


def token_rows(tensor: torch.Tensor, lies: Lying, sequences: int, place: Place) -> torch.Tensor:
    """A tensor at a place, which lies so on that many sequences, as rows [b, k, N] of tokens."""
    rows = tensor.reshape(1 if lies.shared else sequences, lies.tokens, -1).expand(sequences, -1, -1)
    if place.columns is not None:
        rows = rows[..., slice(*place.columns)]
    return rows.repeat(1, 1, place.repeated) if place.repeated > 1 else rows


def laid_out(rows: torch.Tensor, node: Node, shape: TokenShape) -> torch.Tensor:
    """Rows [b, t, N] as the node's kernel gives them: [b, t, heads, N / heads], or [b, heads, t, N / heads]."""
    if shape.heads is not None or node.op.token_axis > 1:
        rows = rows.reshape(*rows.shape[:2], shape.heads or 1, -1)
    return rows.movedim(1, node.op.token_axis)
