"""Runs collectives over simulated ranks: one tensor for each rank in, one for each rank out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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

    inputs: one tensor per rank, all of one shape and dtype (bf16, fp16 or fp32). Returns the same tensor for each rank,
    of that shape; its dtype is that of the inputs, or fp32 if the collective hands its sum on unrounded. Raises
    ValueError if the library would not take the message, or has no AVG.
    """
    if collective.scatters:
        raise ValueError(f"{collective.name} is a reduce-scatter")
    return [_sum(collective, inputs, average=average, executor=executor)] * len(inputs)


def reduce_scatter(
    collective: Collective,
    inputs: Sequence[torch.Tensor],
    *,
    average: bool = False,
    executor: Executor = "auto",
) -> list[torch.Tensor]:
    """Block r of the sum (or AVG), cut along the first axis, for each rank r.

    inputs: one tensor [n * k, ...] per rank, all of one dtype; n is the number of ranks. Returns n tensors [k, ...].
    Raises ValueError as `all_reduce`, and if the first axis does not divide by n.
    """
    if not collective.scatters:
        raise ValueError(f"{collective.name} is an all-reduce")
    if inputs[0].shape[0] % len(inputs):
        raise ValueError(f"the first axis of {list(inputs[0].shape)} does not divide by {len(inputs)} ranks")
    return list(_sum(collective, inputs, average=average, executor=executor).chunk(len(inputs)))


def arch(device: torch.device) -> str | None:
    """The name of a GPU's architecture in selection tables, such as `sm90`; None for a CPU."""
    if device.type != "cuda":
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def log_softmax(
    shards: Sequence[torch.Tensor],
    total: Callable[[torch.Tensor], torch.Tensor],
    reduce: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """Log-probabilities [..., V/n] of each rank's own part of the vocabulary, in the logits' dtype.

    shards: logits [..., V/n] of each of n ranks. total: adds up a rank's own exponentials, [..., V/n] -> [..., 1].
    reduce: adds up the n sums and gives what every rank gets. The maximum over ranks has no order; the result is
    (x - max) - log(sum). Source imitated: NVIDIA-NeMo/RL `nemo_rl/distributed/model_utils.py`
    (_compute_distributed_log_softmax) at 0433dae8dd.
    """
    maximum = torch.stack([x.amax(-1, keepdim=True) for x in shards]).amax(0)
    shifts = [x - maximum for x in shards]
    totals = reduce([total(x.exp()) for x in shifts])
    return [x - total.log() for x, total in zip(shifts, totals, strict=True)]


def _sum(collective: Collective, inputs: Sequence[torch.Tensor], *, average: bool, executor: Executor) -> torch.Tensor:
    example = inputs[0]
    if any(x.shape != example.shape or x.dtype != example.dtype for x in inputs):
        raise ValueError(f"{collective.name}: the ranks' tensors differ in shape or dtype")
    message = Message(example.numel(), example.element_size(), len(inputs))
    collective.check(message, name_of(example.dtype) or str(example.dtype))
    if average and collective.average is None:
        raise ValueError(f"{collective.name} has no AVG")
    mode = collective.average if average else None
    flat = [_rank_input(x.reshape(-1), collective.order_map.inputs, mode, len(inputs)) for x in inputs]
    return _sum_parts(collective.order_map, flat, message, mode, executor).view(example.shape)


def _sum_parts(
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
            target[span] = _rank_output(total, average, message.ranks)
    return result


def _rank_input(x: torch.Tensor, zeros: Zeros, average: Average | None, ranks: int) -> torch.Tensor:
    if average == "scaled_inputs":
        x = x * torch.tensor(1 / ranks, dtype=torch.float32).to(x.dtype)
    if zeros == "negative_to_positive" or (zeros != "keep" and x.element_size() == 4):
        return torch.where(x == 0, torch.zeros_like(x), x)
    if zeros == "negative_words_to_positive":
        words = x.clone().view(torch.int32)
        return torch.where(words == -(1 << 31), torch.zeros_like(words), words).view(x.dtype)
    return x


def _rank_output(total: torch.Tensor, average: Average | None, ranks: int) -> torch.Tensor:
    if average == "divided":
        return rounded(total.to(working(total.dtype)) / ranks, total.dtype)
    if average == "scaled_fp32":
        return total * torch.tensor(1 / ranks, dtype=torch.float32)
    return total
