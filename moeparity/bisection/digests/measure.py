"""All digests of a run: of both sides' values at every node, of its weights and of its tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from moeparity.bisection.context import Context, Measure
from moeparity.bisection.digests.data import DIGITS, NOT_FINITE, Digests
from moeparity.bisection.study import Study
from moeparity.bisection.trials import Trials
from moeparity.bisection.watch import SectionObserver, Watch
from moeparity.engine.view import NodeView
from moeparity.inputs.machine import device_name, instruction_set
from moeparity.inputs.model import Model
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.tokens.requests import as_tensors
from moeparity.inputs.weights.source import Source
from moeparity.numerics.bits import same_bits
from moeparity.output.words import quantity
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE, SIDES
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
    """A digest of token ids, masks, records, images and requests: 16 hex digits of a SHA-256."""
    by_field = ((field.name, getattr(tokens, field.name)) for field in fields(tokens))
    tensors = [(name, value) for name, value in by_field if isinstance(value, torch.Tensor)]
    tensors += [] if tokens.images is None else tokens.images.tensors().items()
    return of_tensors([*tensors, *as_tensors(tokens.requests)])


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


@dataclass(slots=True)
class NodeDigests(SectionObserver):
    """Takes a digest of each sequence by itself, so that grouping sequences into waves has no effect.

    of_sequence: (side, node) -> sequence -> a digest of the values' bits, and whether all values are finite.
    """

    of_sequence: dict[tuple[str, str], dict[int, tuple[str, bool]]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        of_blocks: dict[tuple[int, ...], list[tuple[str, bool]]] = {}
        for side in SIDES:
            if not view.ran(side):
                continue
            blocks = tuple(id(block) for port in view.outputs[side] for block in port)
            if blocks not in of_blocks:
                of_blocks[blocks] = _of_sequences(view, side)
            rows = self.of_sequence.setdefault((side, view.node.name), {})
            rows |= dict(enumerate(of_blocks[blocks], view.wave[0]))

    def part(self, rows: slice) -> dict[tuple[str, str], dict[int, tuple[str, bool]]]:
        """What was seen of the sequences `rows`, in the form that another observer's `join` takes."""
        return self.of_sequence

    def join(self, part: dict[tuple[str, str], dict[int, tuple[str, bool]]], rows: slice) -> None:
        """Add what another observer saw of later waves, the sequences `rows`."""
        for key, digests in part.items():
            self.of_sequence.setdefault(key, {}).update(digests)

    @property
    def result(self) -> dict[tuple[str, str], str]:
        """By side and node, one digest of all sequences."""
        return {
            key: joined((digest for _, (digest, _) in sorted(rows.items())), finite=all(ok for _, ok in rows.values()))
            for key, rows in self.of_sequence.items()
        }


def joined(digests: Iterable[str], *, finite: bool = True) -> str:
    """One digest made of several, in their order."""
    text = sha256(" ".join(digests).encode()).hexdigest()[:DIGITS]
    return text if finite else text + NOT_FINITE


def _of_sequences(view: NodeView, side: str) -> list[tuple[str, bool]]:
    """A digest for each sequence of the wave, and whether its values are finite; tokens that only fill the grid are
    left out.
    """
    ports = [view.by_token(side, port) for port in range(len(view.outputs[side]))]
    output_count = len(view.node.outputs)
    # The roundings that single consumers read are ports on both sides, even if one side rounds there only. A side's
    # digest takes in those that differ from its own output.
    ports = ports[:output_count] + [port for port in ports[output_count:] if not same_bits(port, ports[0])]
    computed = ~view.tokens_of(view.grid.fillers)
    rows = (torch.cat([_row(port, computed, row) for port in ports]) for row in range(len(computed)))
    finite = [
        all(bool(port[row][computed[row]].isfinite().all()) for port in ports if port.is_floating_point())
        for row in range(len(computed))
    ]
    shapes = " ".join(f"{port.dtype} {port.shape[-1]}" for port in ports)
    digests = (sha256(f"{shapes} ".encode() + bytes(row.numpy().data)).hexdigest() for row in rows)
    return list(zip(digests, finite, strict=True))


def _row(port: Tensor, computed: Tensor, row: int) -> Tensor:
    """The bytes of one sequence at the tokens in `computed`, uint8 [n]."""
    computed_row = port[row][computed[row].to(port.device)].cpu()
    return computed_row.contiguous().reshape(-1).view(torch.uint8)


def observer(study: Study, trials: Trials) -> NodeDigests | None:
    """The observer of both sides; None if nobody asked for digests."""
    return NodeDigests() if study.digests else None


NODE_DIGESTS: Final[Watch[Mapping[tuple[str, str], str]]] = Watch("digests", observer)


def measure(of: Context) -> Digests | None:
    """The digests; None if nobody asked for them."""
    values, study = of.observed.of_watch(NODE_DIGESTS), of.study
    if values is None:
        return None
    return Digests(
        machine=machine(study.model.device),
        tokens=of_tokens(study.tokens),
        weights=of_weights(study.model),
        reference={node: digest for (side, node), digest in values.items() if side == REFERENCE},
        candidate={node: digest for (side, node), digest in values.items() if side == CANDIDATE},
    )


def machine(device: torch.device) -> str:
    """What of this machine decides bits, in words: `AuthenticAMD AVX512 avx512_bf16, torch 2.13.0+cpu, 1 thread`."""
    words = [instruction_set(), f"torch {torch.__version__}", quantity(torch.get_num_threads(), "thread")]
    return ", ".join([*words, device_name(device)] if device.type == "cuda" else words)


MEASURE = Measure(gives=Digests, measure=measure, watch=NODE_DIGESTS)
