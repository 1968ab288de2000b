"""Collectives run over simulated ranks: one tensor for each rank in, one for each rank out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from moeparity.numerics.collectives.declaration import Average, Collective
from moeparity.numerics.compiled import Executor
from moeparity.numerics.dtypes import name_of
from moeparity.numerics.order_map import Message, OrderMap, Zeros
from moeparity.numerics.rounding import rounded, working
from moeparity.numerics.summation import at_once, sum_leaves


def all_reduce(
    collective: Collective,
    inputs: Sequence[torch.Tensor],
    *,
    average: bool = False,
    executor: Executor = "auto",
) -> list[torch.Tensor]:
    """The sum (or AVG) of the ranks' tensors as `collective` forms it.

    `inputs`: one tensor a rank, all of one shape and dtype (bf16, fp16 or fp32). Returns one and the same tensor for
    each rank, of that shape, in that dtype or in fp32 where the collective hands its sum on unrounded. ValueError where
    the library would not take the message, or has no AVG.
    """
    if collective.scatters:
        raise ValueError(f"{collective.name} is a reduce-scatter")
    return [_reduced(collective, inputs, average=average, executor=executor)] * len(inputs)


def reduce_scatter(
    collective: Collective,
    inputs: Sequence[torch.Tensor],
    *,
    average: bool = False,
    executor: Executor = "auto",
) -> list[torch.Tensor]:
    """Block r of the sum (or AVG), cut along the first axis, for rank r.

    `inputs`: one tensor [n * k, ...] a rank, where n is the number of ranks, of one dtype. Returns n tensors [k, ...];
    errors as for `all_reduce`, and ValueError where the first axis does not divide by n.
    """
    if not collective.scatters:
        raise ValueError(f"{collective.name} is an all-reduce")
    if inputs[0].shape[0] % len(inputs):
        raise ValueError(f"the first axis of {list(inputs[0].shape)} does not divide by {len(inputs)} ranks")
    return list(_reduced(collective, inputs, average=average, executor=executor).chunk(len(inputs)))


def _reduced(
    collective: Collective, inputs: Sequence[torch.Tensor], *, average: bool, executor: Executor
) -> torch.Tensor:
    first = inputs[0]
    if any(x.shape != first.shape or x.dtype != first.dtype for x in inputs):
        raise ValueError(f"{collective.name}: the ranks' tensors differ in shape or dtype")
    message = Message(first.numel(), first.element_size(), len(inputs))
    collective.check(message, name_of(first.dtype) or str(first.dtype))
    if average and collective.average is None:
        raise ValueError(f"{collective.name} has no AVG")
    mode = collective.average if average else None
    flat = [_entering(x.reshape(-1), collective.order_map.inputs, mode, len(inputs)) for x in inputs]
    return _summed(collective.order_map, flat, message, mode, executor).view(first.shape)


def _summed(
    order_map: OrderMap, flat: Sequence[torch.Tensor], message: Message, average: Average | None, executor: Executor
) -> torch.Tensor:
    dtype = flat[0].dtype
    accumulate = dtype if order_map.accumulate == "io" else torch.float32
    result = flat[0].new_empty(message.elements, dtype=dtype if order_map.output == "io" else torch.float32)
    start = 0.0 if order_map.from_zero else None
    for part, tree in order_map.trees(message):
        pieces = [x[part.start : part.stop] for x in flat]
        target = result[part.start : part.stop]
        for span in at_once(part.stop - part.start, message.ranks):
            total = sum_leaves([x[span] for x in pieces], tree, accumulate=accumulate, start=start, executor=executor)
            target[span] = _leaving(total, average, message.ranks)
    return result


def _entering(x: torch.Tensor, zeros: Zeros, average: Average | None, ranks: int) -> torch.Tensor:
    if average == "scaled_inputs":
        x = x * torch.tensor(1 / ranks, dtype=torch.float32).to(x.dtype)
    if zeros == "negative_to_positive" or (zeros != "keep" and x.element_size() == 4):
        return torch.where(x == 0, torch.zeros_like(x), x)
    if zeros == "negative_words_to_positive":
        words = x.clone().view(torch.int32)
        return torch.where(words == -(1 << 31), torch.zeros_like(words), words).view(x.dtype)
    return x


def _leaving(total: torch.Tensor, average: Average | None, ranks: int) -> torch.Tensor:
    if average == "divided":
        return rounded(total.to(working(total.dtype)) / ranks, total.dtype)
    if average == "scaled_fp32":
        return total * torch.tensor(1 / ranks, dtype=torch.float32)
    return total
