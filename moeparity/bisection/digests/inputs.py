"""Digests of a run's inputs: the weights of each node, and the tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from hashlib import sha256
from weakref import WeakKeyDictionary

import torch

from moeparity.bisection.digests.data import DIGITS
from moeparity.inputs.model import Model
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.weights.source import Source
from moeparity.plan.graph import Node
from moeparity.progress import Callback, Progress

_of_source: WeakKeyDictionary[Source, dict[tuple[str, ...], str]] = WeakKeyDictionary()
"""Digests by opened checkpoint and names of a node's tensors, so that no weight is read twice."""


def of_weights(model: Model, progress: Callback | None = None) -> dict[str, str]:
    """By node that has weights: a digest (16 hex digits of a SHA-256) of its tensors as they lie in the checkpoint. How
    the tensors are spread over files has no effect. Reads every weight, once for each opened checkpoint.
    """
    source, segments = model.weights.checkpoint, model.graph.segments
    digests: dict[str, str] = {}
    for number, segment in enumerate(segments):
        digests |= {node.name: _of_node(source, node) for node in segment.nodes if node.weights}
        if progress is not None:
            done = number + 1
            step = "digests of the weights"
            progress(Progress(step=step, at=segment.name, done=done, total=len(segments), work=done, unit="segments"))
    return digests


def of_tokens(tokens: TokenSet) -> str:
    """A digest of token ids, masks and records: 16 hex digits of a SHA-256."""
    by_field = ((field.name, getattr(tokens, field.name)) for field in fields(tokens))
    return of_tensors((name, value) for name, value in by_field if isinstance(value, torch.Tensor))


def of_tensors(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """A digest of the names, dtypes, shapes and bits of tensors, in their order. Holds one tensor at a time."""
    digest = sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:DIGITS]


def _of_node(source: Source, node: Node) -> str:
    names = tuple(sorted(name for ref in node.weights.values() for name in ref.names))
    of_names = _of_source.setdefault(source, {})
    if names not in of_names:
        of_names[names] = of_tensors((name, source.tensor(name)) for name in names)
    return of_names[names]
