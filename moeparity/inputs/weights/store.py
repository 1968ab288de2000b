"""Gives the weights of one segment at a time, in the dtype and layout that each op takes, and prepares the next
meanwhile.

`fits` says whether all weights can stay in memory between passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Literal

import torch

from moeparity.inputs.machine import available_bytes
from moeparity.inputs.weights.checkpoint import Checkpoint
from moeparity.inputs.weights.rewritten import other_checkpoint, refuse_others, weights_of
from moeparity.inputs.weights.source import WIDTHS, Source
from moeparity.numerics.dtypes import torch_dtype
from moeparity.ops.memory import weight_bytes
from moeparity.plan.graph import Graph, Node, Segment, WeightRef
from moeparity.progress import Callback, Progress

Weights = Mapping[str, torch.Tensor]
"""A node's weights by port."""


class Loaded(dict[tuple[str, str], Weights]):
    """(node name, dtype name) -> weights by port, for the nodes of a segment as the graph has them.

    The weights of a node that a fault rewrites are read when first asked for, and kept until the pass leaves the
    segment.
    """

    def __init__(
        self,
        weights: Mapping[tuple[str, str], Weights] | None = None,
        read: Callable[[Node, str], Weights] | None = None,
        most: int | None = None,
    ) -> None:
        """read: gives the weights of a rewritten node in a dtype. most: how many of the latest of these are kept
        (None: all).
        """
        super().__init__(weights or {})
        self._read, self._most = read, most
        self._rewritten: dict[tuple[str, str, str], Weights] = {}

    def of(self, node: Node, dtype: str) -> Weights:
        """The weights of a node as it is run (rewritten by faults)."""
        if node.own_weights:
            return self[node.name, dtype]
        key = (node.name, node.computation, dtype)
        if key not in self._rewritten:
            assert self._read is not None, "these weights were loaded without a source of others"
            if len(self._rewritten) == self._most:
                del self._rewritten[next(iter(self._rewritten))]
            self._rewritten[key] = self._read(node, dtype)
        return self._rewritten[key]

    def beside(self) -> Loaded:
        """The same weights, with a cache of its own for the latest few rewritten ones."""
        return Loaded(self, self._read, _KEPT)


Residency = Literal["stream", "resident"]

SHARE = 0.5
"""Weights may take this fraction of the available memory; activations, logits and other programs need the rest."""


_FILE_NAMES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
_KEPT = 2
"""A search keeps the rewritten weights of so many nodes, since it asks for those of one node on every micro-batch."""
_BETWEEN_REPORTS = 0.1
"""Seconds between two reports of a pass that waits for weights."""


class WeightStore:
    """Gives segments' weights; `bytes_read` counts what was read from the files.

    residency: `stream` keeps at most two segments, the one in use and the next, which is being prepared; `resident`
    keeps all as long as the store lives. progress: is told by the waiting thread if a pass waits for weights. others:
    the checkpoints from which faults take weights, by folder.
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
        nodes = {(node.name, dtype): self.node(node, dtype) for node in segment.nodes for dtype in dtypes}
        weights = Loaded(nodes, self.rewritten)
        self.bytes_read += sum(self._bytes(ref) for node in segment.nodes for ref in node.weights.values())
        if self.residency == "resident":
            self._resident[segment.name, dtypes] = weights
        return weights

    def recycle(self, segment: Segment, segment_weights: Loaded) -> None:
        """Keep the memory of a segment's experts for the next segment that needs as much."""
        for (name, _), weights in segment_weights.items():
            refs = [ref for node in segment.nodes if node.name == name for ref in node.weights.values()]
            if any(ref.each and ref.stacked is None for ref in refs):
                for stack in weights.values():
                    self._spares.setdefault((tuple(stack.shape), stack.dtype), []).append(stack)

    def forget(self) -> None:
        """Give back memory that was kept for a next segment."""
        self._spares.clear()

    def refuse_unfit(self, nodes: Iterable[Node]) -> None:
        """Raise CheckpointError if a checkpoint from which faults take weights does not fit the nodes as run."""
        refuse_others(nodes, self._other_checkpoint)

    def rewritten(self, node: Node, dtype: str) -> dict[str, torch.Tensor]:
        """The weights of a node that a fault rewrites. Raises CheckpointError."""
        return weights_of(node, dtype, self.device, self._read)

    def _read(self, name: str, folder: str) -> torch.Tensor:
        source = self._other_checkpoint(folder) if folder else self.checkpoint
        tensor: torch.Tensor = source.tensor(name)
        self.bytes_read += tensor.nbytes
        return tensor

    def _other_checkpoint(self, folder: str) -> Checkpoint:
        if folder not in self.others:
            self.others[folder] = other_checkpoint(folder)
        return self.others[folder]

    def node(self, node: Node, dtype: str) -> dict[str, torch.Tensor]:
        """One node's weights by port."""
        if not node.own_weights:
            return self.rewritten(node, dtype)
        if any(ref.each for ref in node.weights.values()):
            return self._experts(node, dtype)
        return {port: self._tensor(ref, dtype) for port, ref in node.weights.items()}

    def _tensor(self, ref: WeightRef, dtype: str) -> torch.Tensor:
        target = torch.float32 if ref.keep_fp32 else torch_dtype(dtype)
        tensor: torch.Tensor = self.checkpoint.tensor(ref.names[0])
        return tensor.to(device=self.device, dtype=target)

    def _experts(self, node: Node, dtype: str) -> dict[str, torch.Tensor]:
        """gate and up of all experts as one [E, 2I, H], down as one [E, H, I], and biases as [E, 2I] and [E, H].

        These are the stacks of transformers 5. They are made from every expert's tensors, gate first; or they are the
        file's own stacks, which keep their layout, inputs before outputs.
        """
        parts: dict[str, list[WeightRef]] = {}
        for port in node.op.weights:
            if port.stack is not None and port.name in node.weights:
                parts.setdefault(port.stack, []).append(node.weights[port.name])
        return {
            name: self._stack(refs, dtype) if refs[0].stacked is None else self._file_stack(refs[0], dtype)
            for name, refs in parts.items()
        }

    def _file_stack(self, ref: WeightRef, dtype: str) -> torch.Tensor:
        stack = self._tensor(ref, dtype)
        return stack.transpose(1, 2) if stack.dim() == 3 else stack

    def _stack(self, refs: Sequence[WeightRef], dtype: str) -> torch.Tensor:
        rows, *columns = refs[0].shape
        shape = (len(refs[0].names), rows * len(refs), *columns)
        spares = self._spares.get((shape, torch_dtype(dtype)))
        stack = spares.pop() if spares else torch.empty(shape, dtype=torch_dtype(dtype), device=self.device)
        for part, ref in enumerate(refs):
            for expert, name in enumerate(ref.names):
                stack[expert, part * rows : (part + 1) * rows].copy_(self.checkpoint.tensor(name))
        return stack

    def unread(self, dtypes: Sequence[str]) -> list[WeightRef]:
        """The weights that a pass reads from the source."""
        waiting = [segment for segment in self.graph.segments if (segment.name, tuple(dtypes)) not in self._resident]
        return [ref for segment in waiting for node in segment.nodes for ref in node.weights.values()]

    def unread_bytes(self, dtypes: Sequence[str]) -> int:
        """Bytes that a pass reads from the source, which gives a tensor once for each dtype."""
        return sum(self._bytes(ref) for ref in self.unread(dtypes)) * len(dtypes)

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
        elements = torch.Size(ref.shape).numel()
        return elements * ref.count * WIDTHS[self.checkpoint.entries[ref.names[0]].dtype]


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
        weights = Loaded(self._waited_for(self.next, segment.name), self.store.rewritten)
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
    """Whether the weights in all of `dtypes` take at most half of the available memory; False if that is unknown.

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
