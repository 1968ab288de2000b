"""Gives the weights of one segment at a time, in the dtype and layout that each op takes, and prepares the next
meanwhile. `fits` says whether all weights can stay in memory between passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Literal

import torch

from moeparity.inputs.machine import available_bytes
from moeparity.inputs.weights.cache_scales import cache_scales, has_scales
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.fit import own_codes, refuse_codes
from moeparity.inputs.weights.joined import joined
from moeparity.inputs.weights.loaded import JOINED, SCALES, Loaded
from moeparity.inputs.weights.rewritten import input_scales, part_of, refuse_others, scales_of, weights_of
from moeparity.inputs.weights.source import Source
from moeparity.numerics.dtypes import torch_dtype
from moeparity.ops.memory import weight_bytes
from moeparity.plan.bound import Plan
from moeparity.plan.edits import Part
from moeparity.plan.graph import Graph, Node, Segment, WeightRef
from moeparity.progress import Callback, Progress

Residency = Literal["stream", "resident"]

SHARE = 0.5
"""Weights may take this fraction of the available memory; activations, logits and other programs need the rest."""


_FILE_NAMES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_BETWEEN_REPORTS = 0.1
"""Seconds between two reports of a pass that waits for weights."""


class WeightStore:
    """Loads a model's weights, one segment (layers that run together) at a time. `bytes_read`: from files, so far.

    residency: `stream` keeps two segments at most, the one that runs and the next one; `resident` keeps all that were
    loaded. progress: called while a pass waits for weights.
    """

    def __init__(
        self,
        checkpoint: Source,
        graph: Graph,
        device: torch.device,
        residency: Residency,
        progress: Callback | None = None,
    ) -> None:
        self.checkpoint, self.graph, self.device, self.residency = checkpoint, graph, device, residency
        self.bytes_read = 0
        self.progress = progress
        self._resident: dict[tuple[str, tuple[str, ...]], Loaded] = {}
        self._spares: dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]] = {}
        self.others: dict[str, Checkpoint] = {}

    def segments(self, dtypes: Sequence[str], *, reuse: bool = False) -> _Pass:
        """One pass over the segments in order, each with its weights in every requested dtype.

        reuse: once the next segment is asked for, the memory of a segment's experts is overwritten, so callers must not
        keep them; filling fresh memory would take several times as long.
        """
        return _Pass(self, tuple(dtypes), reuse and self.residency == "stream" and self.device.type == "cpu")

    def load(self, segment: Segment, dtypes: tuple[str, ...]) -> Loaded:
        """The weights of one segment."""
        if (segment.name, dtypes) in self._resident:
            return self._resident[segment.name, dtypes]
        nodes = {
            (node.name, dtype): weights
            for node in segment.nodes
            for dtype, weights in self._in_each(node, dtypes).items()
        }
        weights = Loaded(nodes, self.on_demand)
        self.bytes_read += sum(self._bytes(ref) for node in segment.nodes for ref in node.weights.values())
        if self.residency == "resident":
            self._resident[segment.name, dtypes] = weights
        return weights

    def recycle(self, segment: Segment, segment_weights: Loaded) -> None:
        """Keep the memory of a segment's experts for the next segment that needs as much."""
        nodes = {node.name: node for node in segment.nodes}
        for (name, _), weights in segment_weights.items():
            if any(ref.each and ref.stacked is None for ref in nodes[name].weights.values()):
                for stack in (
                    weights[port]
                    for port in {port.stack or port.name for port in nodes[name].op.weights} & weights.keys()
                ):
                    self._spares.setdefault((tuple(stack.shape), stack.dtype), []).append(stack)

    def forget(self) -> None:
        """Give back memory that was kept for a next segment."""
        self._spares.clear()

    def refuse_unfit(self, plan: Plan) -> None:
        """Raise CheckpointError if a checkpoint from which faults take weights does not fit the nodes as run, and
        RefusedError where a GEMM multiplies codes in other blocks than the checkpoint's.
        """
        for in_phase in plan.distinct:
            refuse_others(in_phase.nodes_as_run, self._other_checkpoint, self.checkpoint.entries)
            if isinstance(self.checkpoint, Checkpoint):
                refuse_codes(in_phase, self.checkpoint)

    def multiplies_codes(self, plan: Plan) -> bool:
        """Whether some GEMM of a plan multiplies the checkpoint's own codes."""
        source = self.checkpoint
        return isinstance(source, Checkpoint) and any(own_codes(in_phase, source) for in_phase in plan.distinct)

    def on_demand(self, node: Node, dtype: str) -> dict[str, torch.Tensor]:
        """The weights of a node that a fault rewrites, or of any node what `BESIDE` names. Raises CheckpointError."""
        if dtype == JOINED:
            of_file = joined(node, self.graph, self._part, self._scales_of_part)
            return {name: tensor.to(self.device) for name, tensor in of_file.items()}
        return self._scales(node) if dtype == SCALES else weights_of(node, dtype, self.device, self._read)

    def _scales(self, node: Node) -> dict[str, torch.Tensor]:
        source = self.checkpoint
        if not isinstance(source, Checkpoint):
            return {}
        if has_scales(node):
            return {name: scale.to(self.device) for name, scale in cache_scales(node, self.graph, source).items()}
        scales = scales_of(node, self._scales_of_part) if source.formats else {}
        scales |= input_scales(node, source.input_scale) if source.beside else {}
        return {name: tensor.to(self.device) for name, tensor in scales.items()}

    def _scales_of_part(self, part: Part) -> torch.Tensor | None:
        source = self._other_checkpoint(part.checkpoint) if part.checkpoint else self.checkpoint
        return source.scales(part, self._scales_in(part, source)) if isinstance(source, Checkpoint) else None

    def _read(self, part: Part) -> torch.Tensor:
        source = self._other_checkpoint(part.checkpoint) if part.checkpoint else self.checkpoint
        if part.scales and isinstance(source, Checkpoint) and source.entries[part.name].packed:
            tensor: torch.Tensor = source.rescaled(part, self._scales_in(part, source))
        else:
            tensor = source.tensor(part.name)
        self.bytes_read += tensor.nbytes
        return tensor

    def _part(self, part: Part) -> torch.Tensor:
        """A part as a fault leaves it."""
        return part_of(part, self._read)

    def _scales_in(self, part: Part, source: Checkpoint) -> Checkpoint:
        return self._other_checkpoint(part.scales_checkpoint) if part.scales_checkpoint else source

    def _other_checkpoint(self, folder: str) -> Checkpoint:
        if folder not in self.others:
            self.others[folder] = Checkpoint(Path(folder)).fit_to(self.graph)
        return self.others[folder]

    def node(self, node: Node, dtype: str, beside: Sequence[str] = (SCALES,)) -> dict[str, torch.Tensor]:
        """One node's weights by port, with what of `loaded.BESIDE` is asked for."""
        weights = self._in_each(node, (dtype,))[dtype] if node.own_weights else self.on_demand(node, dtype)
        for name in beside:
            weights |= self.on_demand(node, name)
        return weights

    def _in_each(self, node: Node, dtypes: Sequence[str]) -> dict[str, dict[str, torch.Tensor]]:
        """One node's weights by port, in each dtype; a tensor is read, or multiplied out, once for all of them."""
        if any(ref.each for ref in node.weights.values()):
            beside = {port.name for port in node.op.weights if not port.each} & node.weights.keys()
            by_port = self._experts(node, dtypes)
            by_port |= {port: self._tensors(node.weights[port], dtypes) for port in beside}
        else:
            by_port = {port: self._tensors(ref, dtypes) for port, ref in node.weights.items()}
        return {dtype: {port: tensors[dtype] for port, tensors in by_port.items()} for dtype in dtypes}

    def _tensors(self, ref: WeightRef, dtypes: Sequence[str]) -> dict[str, torch.Tensor]:
        tensor: torch.Tensor = self.checkpoint.tensor(ref.names[0])
        targets = {dtype: torch.float32 if ref.keep_fp32 else torch_dtype(dtype) for dtype in dtypes}
        return {dtype: tensor.to(device=self.device, dtype=target) for dtype, target in targets.items()}

    def _experts(self, node: Node, dtypes: Sequence[str]) -> dict[str, dict[str, torch.Tensor]]:
        """gate and up of all experts as one [E, 2I, H], down as one [E, H, I], and biases as [E, 2I] and [E, H].

        These are the stacks of transformers 5. They are made from every expert's tensors, gate first; or they are the
        file's own stacks, which keep their layout.
        """
        parts: dict[str, list[WeightRef]] = {}
        for port in node.op.weights:
            if port.stack is not None and port.name in node.weights:
                parts.setdefault(port.stack, []).append(node.weights[port.name])
        return {
            name: self._stacks(refs, dtypes) if refs[0].stacked is None else self._file_stacks(refs[0], dtypes)
            for name, refs in parts.items()
        }

    def _file_stacks(self, ref: WeightRef, dtypes: Sequence[str]) -> dict[str, torch.Tensor]:
        stacks = self._tensors(ref, dtypes)
        return {
            dtype: stack if ref.outputs_first or stack.dim() < 3 else stack.transpose(1, 2)
            for dtype, stack in stacks.items()
        }

    def _stacks(self, refs: Sequence[WeightRef], dtypes: Sequence[str]) -> dict[str, torch.Tensor]:
        rows, *columns = refs[0].shape
        shape = (len(refs[0].names), rows * len(refs), *columns)
        stacks = {dtype: self._room(shape, torch_dtype(dtype)) for dtype in dtypes}
        for part, ref in enumerate(refs):
            for expert, name in enumerate(ref.names):
                tensor = self.checkpoint.tensor(name)
                for stack in stacks.values():
                    stack[expert, part * rows : (part + 1) * rows].copy_(tensor)
        return stacks

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for a stack: that of an earlier segment's, if there is any."""
        spares = self._spares.get((shape, dtype))
        return spares.pop() if spares else torch.empty(shape, dtype=dtype, device=self.device)

    def unread(self, dtypes: Sequence[str]) -> list[WeightRef]:
        """The weights that a pass reads from the source."""
        waiting = [segment for segment in self.graph.segments if (segment.name, tuple(dtypes)) not in self._resident]
        return [ref for segment in waiting for node in segment.nodes for ref in node.weights.values()]

    def unread_bytes(self, dtypes: Sequence[str]) -> int:
        """Bytes that a pass reads from the source, whatever the number of dtypes."""
        return sum(self._bytes(ref) for ref in self.unread(dtypes))

    def made_bytes(self, ref: WeightRef, dtypes: Sequence[str]) -> int:
        """Bytes of a weight, in all of `dtypes`, that are not pages of a file, since it is stacked, cast or
        synthetic.
        """
        mapped = isinstance(self.checkpoint, Checkpoint) and self.device.type == "cpu"
        stored = _FILE_NAMES.get(self.checkpoint.entries[ref.names[0]].dtype)
        stacked_anew = ref.each and ref.stacked is None
        targets = ["fp32" if ref.keep_fp32 and not ref.each else dtype for dtype in dtypes]
        return sum(
            weight_bytes(ref.shape, ref.count, target)
            for target in targets
            if stacked_anew or not mapped or target != stored
        )

    def _bytes(self, ref: WeightRef) -> int:
        entry = self.checkpoint.entries[ref.names[0]]
        return entry.bytes * ref.count * math.prod(ref.shape) // math.prod(entry.shape)


class _Pass:
    """Iterates over (segment, weights); while one is in use, a thread prepares the next."""

    def __init__(self, store: WeightStore, dtypes: tuple[str, ...], reuse: bool) -> None:
        self.store, self.dtypes, self.reuse = store, dtypes, reuse
        self.segments = list(store.graph.segments)
        self.before, self.total = store.checkpoint.handed_out, store.unread_bytes(dtypes)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self.next: Future[Loaded] | None = None
        self.current: tuple[Segment, Loaded] | None = None

    def __iter__(self) -> _Pass:
        self._prefetch()
        return self

    def __next__(self) -> tuple[Segment, Loaded]:
        if self.next is None:
            self.store.forget()
            self.pool.shutdown()
            raise StopIteration
        # The thread is idle from here to the next prefetch, so it can't take memory that is being put back.
        segment = self.segments.pop(0)
        # Rewritten weights go with the pass, even if all others stay in memory.
        weights = Loaded(self._waited_for(self.next, segment.name), self.store.on_demand)
        if self.current is not None and self.reuse:
            self.store.recycle(*self.current)
        self.current = (segment, weights)
        self._prefetch()
        return self.current

    def _waited_for(self, weights: Future[Loaded], segment: str) -> Loaded:
        while self.store.progress is not None and not weights.done():
            read_bytes = self.store.checkpoint.handed_out - self.before
            self.store.progress(
                Progress(
                    step="waiting for weights",
                    at=segment,
                    done=read_bytes,
                    total=self.total,
                    work=read_bytes / 1e6,
                    unit="MB",
                )
            )
            wait([weights], timeout=_BETWEEN_REPORTS)
        return weights.result()

    def _prefetch(self) -> None:
        self.next = self.pool.submit(self.store.load, self.segments[0], self.dtypes) if self.segments else None


def fits(graph: Graph, dtypes: Sequence[str], device: torch.device, limit: float | None = None) -> bool:
    """Whether a copy of the weights in each of `dtypes`, all together, takes at most half of the memory that is free;
    False where nobody can tell how much that is.

    limit: the most bytes that may be taken (None: all that is available).
    """
    available = available_bytes(device)
    if available is None:
        return False
    return resident_bytes(graph, dtypes) <= SHARE * min(available, available if limit is None else limit)


def resident_bytes(graph: Graph, dtypes: Sequence[str]) -> int:
    """The most bytes that a resident WeightStore holds: every node's weights in every dtype."""
    refs = [ref for node in graph.nodes for ref in node.weights.values()]
    return sum(
        weight_bytes(ref.shape, ref.count, "fp32" if ref.keep_fp32 else dtype) for ref in refs for dtype in dtypes
    )
