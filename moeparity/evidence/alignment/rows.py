"""Which token each row of a value is of: by its axes and width where it is known what it is, else by its axes alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.evidence.alignment.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Lying:
    """How a shape lies on the tokens of a pass: of which `places`, int64 [sequences, tokens], it has a row each, and
    behind these the `axes` of a single token. One row may stand for all sequences.
    """

    places: Tensor
    axes: tuple[int, ...]

    def rows(self, tensor: Tensor) -> Tensor:
        """A tensor that lies so, as rows of tokens [sequences, tokens, N]."""
        sequences, tokens = self.places.shape
        return tensor.reshape(-1, tokens, math.prod(self.axes)).expand(sequences, -1, -1)


def last_tokens(tokens: Tokens, count: int) -> Tensor:
    """The places of those that a head is given, int64 [sequences, tokens]: the last so many of each sequence, padding
    counted, in a server the last one of each request.
    """
    if tokens.ends:
        return torch.tensor([tokens.ends])
    return torch.arange(tokens.count).view(tokens.size)[:, tokens.grid[-1] - count :]


def lying(shape: Sequence[int], tokens: Tokens, width: int | None, *, of_requests: bool = False) -> Lying | None:
    """How the shape of a value of which a token has so many numbers (None: any) lies on tokens; None if it does not.

    The axes of the tokens come first, as [b, t, ...] or as [b * t, ...]. One row for all sequences is [1, t, ...]. A
    head that sees only the last k tokens of each sequence gives [b, k, V], with k less than t; `of_requests`: in a
    server it has those of requests alone. If a value has another width, it is of tokens if their two axes are there, or
    their one axis beside the width.
    """
    shape, (sequences, length) = tuple(shape), tokens.size
    every = torch.arange(tokens.count).view(tokens.size)
    if of_requests and tokens.ends:
        return Lying(last_tokens(tokens, 1), shape[1:]) if shape[:1] == (len(tokens.ends),) else None
    for axes in range(len(shape)):
        # Several axes behind may be those of other tokens, as of what a step of decoding makes of all keys.
        fits = axes + 1 == len(shape) or width in (None, math.prod(shape[axes:]))
        if math.prod(shape[:axes]) == tokens.count and fits:
            return Lying(every, shape[axes:])
    if len(shape) > 2 and shape[:2] == (1, length) and (len(shape) == 3 or width in (None, math.prod(shape[2:]))):
        return Lying(every, shape[2:])
    if len(shape) == 3 and shape[0] == sequences and 0 < shape[1] < length:
        return Lying(every[:, -shape[1] :], shape[2:])
    # With one token a whole width behind further axes is that of other tokens, as of all keys that a cache holds.
    keys = length == 1 and shape[-1:] == (width,)
    if len(shape) > 2 and shape[:2] == (sequences, length) and not keys:
        return Lying(every, shape[2:])
    packed = len(shape) > 1 and length > 1 and shape[0] == tokens.count
    return Lying(every, shape[1:]) if packed else None


def token_of_rows(shape: Sequence[int], tokens: Tokens) -> Tensor | None:
    """The flat place of the token to which each row of a value belongs, int64 [rows]; None if its axes do not tell.

    The number of rows is the product of all axes but the last. Axes that could be those of tokens in two ways tell
    nothing, but for a batch of sequences, which is the first axis of all that have its size, and for a pass of a single
    token, to which all rows belong. In a server a row for each request is that of its last token.
    """
    rows, grid, count, ends = tuple(shape[:-1]), tokens.grid, tokens.count, tokens.ends
    if count == 1:
        return torch.zeros(torch.Size(rows).numel(), dtype=torch.long) if 1 in rows else None
    places = torch.arange(count)
    candidates = [axis for axis, size in enumerate(rows) if size == count]
    if ends and not candidates and rows == (len(ends),):
        return torch.tensor(ends)
    if len(grid) == 2 and grid[0] > 1:
        if grid[1] == 1 and rows[:1] == (count,):
            return _spread(rows, (0,), places)
        pairs = [(b, t) for b in range(len(rows)) for t in range(len(rows)) if b != t]
        fitting = [(b, t) for b, t in pairs if (rows[b], rows[t]) == tuple(grid)]
        is_first = len(fitting) > 1 and fitting[0][0] == 0 and len({t for _, t in fitting}) == 1
        if (len(fitting) == 1 or is_first) and not candidates:
            return _spread(rows, fitting[0], places.reshape(tuple(grid)))
    if len(grid) == 2 and grid[0] == 1 and len(candidates) > 1 and rows[0] == 1:
        return None
    return _spread(rows, (candidates[0],), places) if len(candidates) == 1 else None


def _spread(rows: tuple[int, ...], axes: tuple[int, ...], places: Tensor) -> Tensor:
    """The places [tokens by their axes] along all axes of the rows."""
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    shape = [1] * len(rows)
    for axis, size in zip(axes, places.shape, strict=True):
        shape[axis] = size
    return places.permute(order).reshape(shape).expand(rows).reshape(-1)
