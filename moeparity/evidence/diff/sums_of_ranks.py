"""Ranks' parts of one sum, added up in the order that a layout declares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moeparity.errors import TraceError
from moeparity.numerics.collectives.execute import all_reduce
from moeparity.numerics.collectives.registry import COLLECTIVES, SELECTIONS, find
from moeparity.numerics.order_map import Message
from moeparity.numerics.orders import parse, tree
from moeparity.numerics.rounding import rounded
from moeparity.numerics.summation import sum_leaves


def summed(parts: Sequence[Tensor], order: str, where: str) -> Tensor:
    """The sum of the ranks' parts, all of one shape and dtype: by a collective, or in an order over the ranks, which is
    added in fp32 (fp64 of fp64) where it says nothing else; rounded to the parts' dtype.

    Raises TraceError where the order is of another number of ranks, or the collective does not take such a message.
    """
    first = parts[0]
    try:
        if order in COLLECTIVES or order in SELECTIONS:
            width = first.shape[-1] if first.dim() else 1
            message = Message(first.numel(), first.element_size(), len(parts), width)
            return all_reduce(find(order, message), [part.contiguous() for part in parts])[0]
        wide = torch.promote_types(first.dtype, torch.float32)
        return rounded(sum_leaves(parts, tree(parse(order), len(parts)), accumulate=wide), first.dtype)
    except ValueError as error:
        why = str(error).rstrip(".")
        raise TraceError(f"--layout: the sum of {where} over {len(parts)} ranks: {why}. Mend the rule.") from None
