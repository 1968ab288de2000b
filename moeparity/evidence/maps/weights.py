"""Whether a program had the checkpoint's weights: digests of what its ops read, if these were recorded, against digests
of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from moeparity.errors import TraceError, Where, counted
from moeparity.evidence.trace.digest import row_digests, value_digest
from moeparity.evidence.trace.reader import RankTrace
from moeparity.evidence.trace.records import Call, Value
from moeparity.plan.graph import Graph

Tensors = Callable[[str], torch.Tensor]
"""A tensor of the checkpoint by its name."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How many weights a trace has the digests of, and the names of those with other bits than the checkpoint's."""

    compared: int
    others: tuple[str, ...]


def compared(trace: RankTrace, graph: Graph, tensor: Tensors) -> Weights:
    """Compares the weights of modules that are named as in the checkpoint, as the first op that reads each of them had
    them.

    Raises TraceError if all of several weights differ: then it is another checkpoint.
    """
    first = _first_calls(trace)
    same: dict[str, bool] = {}
    for name in _names(graph):
        inside = first.get(name.removesuffix(".weight"), ())
        own_tensor = tensor(name) if inside else None
        read = [] if own_tensor is None else [value for call in inside for value in _read(trace, call, own_tensor)]
        if own_tensor is not None and read:
            same[name] = any(value.digest == _digest(own_tensor, value.dtype) for value in read)
    others = tuple(name for name, equal in same.items() if not equal)
    if len(others) == len(same) > 1:
        raise TraceError(
            f"{Where(trace.folder)}: none of the {counted(len(same), 'weight')} whose digests it has is the "
            f"checkpoint's; the first is {others[0]}. Name the checkpoint that this program ran."
        )
    return Weights(len(same), others)


def _names(graph: Graph) -> Iterator[str]:
    """The weights that are one tensor of one module."""
    refs = (ref for node in graph.nodes for ref in node.weights.values())
    single = (ref for ref in refs if not ref.each and ref.stacked is None)
    yield from dict.fromkeys(name for ref in single for name in ref.names if name.endswith(".weight"))


def _first_calls(trace: RankTrace) -> Mapping[str, list[Call]]:
    """The ops of each module, by path, of its first step: later an optimizer may have changed what they read."""
    calls: dict[str, list[Call]] = {}
    for call in trace.contents.calls:
        if call.level == "op" and call.phase == "forward":
            inside = calls.setdefault(call.path, [])
            if not inside or inside[0].step == call.step:
                inside.append(call)
    return calls


def _read(trace: RankTrace, call: Call, own_tensor: torch.Tensor) -> Iterator[Value]:
    """What an op reads that has the shape of the weight, be it through a view."""
    values = trace.contents.values
    for number in call.inputs.values():
        value = values[number]
        value = values[value.base] if value.base is not None else value
        if value.shape == tuple(own_tensor.shape) and value.digest is not None:
            yield value


def _digest(own_tensor: torch.Tensor, dtype: str) -> str:
    cast = own_tensor.to(getattr(torch, dtype))
    return value_digest(row_digests(cast), tuple(cast.shape), dtype)
