"""What a pass will need at its peak, worked out before it from shapes alone, and compared with what there is.

The bound is for the worst case, in which no two walkers agree again once their numerics have differed; where nothing
differs yet they share, as in the pass itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from moeparity.engine import schedule
from moeparity.engine.lockstep import Walker
from moeparity.engine.memory import available_bytes
from moeparity.engine.sizes import Call, weight_bytes, widths
from moeparity.engine.work import Numerics, Work
from moeparity.errors import MoeparityError
from moeparity.graph.graph import SOURCES, Graph, Node, Segment
from moeparity.weights.checkpoint import Checkpoint
from moeparity.weights.store import WeightStore

# Chunks of the metrics (fp64, on a GPU larger ones), and what an allocator cannot reuse.
_FIXED = {"cpu": 128 << 20, "cuda": 2 << 30}
_SLACK = 1.1
# oneDNN compiles a kernel for every shape of a 16-bit GEMM and does not free it: up to 0.7 MB each, measured with torch
# 2.13 on a processor with AMX, and a loop over experts meets a new number of rows again and again.
_KERNEL = 720 << 10
_LOADS = 1.5
"""How many different loads of experts are met, in units of the mean load."""
_FILE_NAMES = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes at the peak: `weights` of the segment `at` and of the next, `values` of all walkers, `other` fixed."""

    at: str
    weights: int
    values: int
    other: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.values + self.other


def estimate(
    walkers: Sequence[Walker], weights: WeightStore, sequences: int, length: int, kept: Iterable[str] | None = None
) -> Footprint:
    """The most that a pass over [sequences, length] tokens needs beside what the process holds already.

    On the CPU this is anonymous memory: pages of the checkpoint's files can be dropped and read again. `kept` are
    nodes whose values an observer keeps; the logits and routes are kept with them.
    """
    walkers = [replace(walker, micro_batch=min(walker.micro_batch, sequences)) for walker in walkers]
    values = _Values(walkers, weights.graph, sequences, length)
    loaded = [_segment_bytes(weights, segment, values.dtypes) for segment in weights.graph.segments]
    other = _FIXED[weights.device.type]
    if weights.device.type == "cpu":
        other += _KERNEL * values.kernels()
    saved = 0 if kept is None else values.saved(set(kept))
    peaks = []
    for i, segment in enumerate(weights.graph.segments):
        held = sum(loaded[i : i + 2]) if weights.residency == "stream" else sum(loaded)
        size = int(_SLACK * values.peak(segment))
        peaks.append(Footprint(at=segment.name, weights=held, values=size + saved, other=other))
    return max(peaks, key=lambda peak: peak.total)


def require(
    walkers: Sequence[Walker],
    weights: WeightStore,
    sequences: int,
    length: int,
    *,
    limit: float | None = None,
    kept: Iterable[str] | None = None,
) -> Footprint:
    """The estimate of a pass. Raises MoeparityError where it does not fit.

    `limit` is the number of bytes the pass may take; None stands for what is available now, infinity for any number.
    """
    there = available_bytes(weights.device) if limit is None else limit

    def needed(walkers: Sequence[Walker], sequences: int) -> Footprint:
        return estimate(walkers, weights, sequences, length, kept)

    found = needed(walkers, sequences)
    if there is not None and found.total > there:
        variants = f"{len(walkers)} variant{'s' * (len(walkers) != 1)}"
        allowed = "are available" if limit is None else "are allowed by --memory-limit"
        raise MoeparityError(
            f"this run needs about {shown_size(found.total)} of memory at its peak, in {found.at} "
            f"({shown_size(found.weights)} of weights, {shown_size(found.values)} of values of {variants}, "
            f"{shown_size(found.other)} for compiled kernels and metrics), and "
            f"{shown_size(there)} {allowed}. {_advice(needed, walkers, sequences, there)} "
            "`--memory-limit none` runs it all the same."
        )
    return found


def shown_size(size: float) -> str:
    """`1.25 GB`, `160 MB` or `12 bytes`."""
    for unit, digits, factor in (("GB", 2, 1e9), ("MB", 0, 1e6), ("kB", 0, 1e3)):
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size:.0f} bytes"


Needed = Callable[[Sequence[Walker], int], Footprint]


def _advice(needed: Needed, walkers: Sequence[Walker], sequences: int, there: float) -> str:
    """What would fit, tried out one by one."""
    found = list(_that_fit(needed, walkers, sequences, there))
    if found:
        return f"It would fit {'; or '.join(found)}."
    return "Nothing smaller fits either: use a machine with more memory."


def _that_fit(needed: Needed, walkers: Sequence[Walker], sequences: int, there: float) -> Iterator[str]:
    size = max(walker.micro_batch for walker in walkers)
    while (size := size // 2) >= 1:
        smaller = [replace(walker, micro_batch=min(walker.micro_batch, size)) for walker in walkers]
        if (total := needed(smaller, sequences).total) <= there:
            yield f"with a micro-batch of {size} ({shown_size(total)}; other batches may give other bits)"
            break
    fewer = _most(lambda count: needed(walkers, count).total <= there, sequences)
    if fewer:
        yield f"with {fewer} of the {sequences} sequences in one token file"
    # The two sides, and a shadow if there is one, always run; the rest are trials, two for each toggle.
    shadows = [walker for walker in walkers if walker.inputs_of is not None]
    variants = [walker for walker in walkers if walker.inputs_of is None]
    trials = _most(lambda n: needed([*variants[: 2 + n], *shadows], sequences).total <= there, len(variants) - 2)
    if trials:
        yield f"with {trials} instead of {len(variants) - 2} trials: fewer toggles, by `by: rule` or `by: block`"


def _most(fits: Callable[[int], bool], below: int) -> int:
    """The greatest number from 1 to `below` - 1 that fits, by halving; 0 where none does."""
    low, high = 0, max(below, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class _Values:
    """Which values can differ between walkers, and how many bytes of them are alive at each node."""

    def __init__(self, walkers: Sequence[Walker], graph: Graph, sequences: int, length: int) -> None:
        self.graph, self.work, self.sequences, self.length = graph, Work.of(walkers, graph), sequences, length
        batches = [schedule.micro_batches(sequences, walker.micro_batch) for walker in walkers]
        self.wave = max(last - first for first, last in schedule.waves(batches))
        self.dtypes = tuple(dict.fromkeys(dtype for walker in walkers for dtype in walker.plan.dtypes))
        self.widths, self.heads = widths(graph)
        # Of each walker's value: what it is, equal where two can only be equal, and the bytes of one element.
        self.known: dict[tuple[str, str], tuple[int, int]] = {}
        self.numbers: dict[object, int] = {}
        # Bytes per token of all that is kept of a value, and of all outputs of a node; bytes of scratch of a node.
        self.kept: dict[str, int] = {}
        self.shown: dict[str, int] = {}
        self.scratch: dict[str, int] = {}
        # Distinct calls of nodes with 16-bit GEMMs, by what decides the GEMMs' shapes.
        self.gemms: dict[tuple[str, int, str], set[int]] = {}
        for walker in walkers:
            numbers = {source: self._number((source, walker.micro_batch)) for source in SOURCES}
            self.known |= {(walker.name, source): (number, 8) for source, number in numbers.items()}
        ordered = sorted(walkers, key=lambda walker: walker.inputs_of is not None)
        for node in graph.nodes:
            self._walk(node, ordered)

    def _number(self, kind: object) -> int:
        return self.numbers.setdefault(kind, len(self.numbers))

    def _walk(self, node: Node, walkers: Sequence[Walker]) -> None:
        found: dict[str, dict[int, int]] = {}
        shadows: dict[str, dict[int, int]] = {}
        self.scratch[node.name] = 0
        for walker in walkers:
            task = self.work.at[walker.name, node.name]
            if task is None:
                continue
            given = [None if v is None else self.known[walker.inputs_of or walker.name, v] for v in task.reads]
            into = found if walker.inputs_of is None else shadows
            handed = zip(self.work.edge_values[node.name], task.edges, strict=True)
            computed = [(node.values, task.numerics)]
            computed += [((value,), numerics or task.numerics) for value, numerics in handed]
            for values, numerics in computed:
                kind = (node.name, numerics.key, walker.micro_batch, *(g and g[0] for g in given))
                call = self._call(walker, node, numerics, task.reads, [8 if g is None else g[1] for g in given])
                self.scratch[node.name] = max(self.scratch[node.name], call.scratch())
                if node.weights and call.dtype in {"bf16", "fp16"}:
                    self.gemms.setdefault((call.dtype, call.tokens, node.name), set()).add(self._number(kind))
                for port, (value, size) in enumerate(zip(values, call.output_bytes(), strict=False)):
                    number = self._number((port, kind))
                    into.setdefault(value, {})[number] = size * call.outputs[port]
                    if walker.inputs_of is None:
                        self.known[walker.name, value] = (number, size)
        self.kept |= {value: sum(kinds.values()) for value, kinds in found.items()}
        both = {value: kinds | shadows.get(value, {}) for value, kinds in (shadows | found).items()}
        self.shown[node.name] = sum(sum(kinds.values()) for kinds in both.values())
        # Observers put together the waves of walkers whose micro-batches are smaller: reference, candidate, shadow.
        if any(walker.micro_batch < self.wave for walker in walkers):
            largest = max(max(kinds.values()) for kinds in both.values())
            self.scratch[node.name] += 3 * largest * self.wave * self.length

    def _call(
        self, walker: Walker, node: Node, numerics: Numerics, reads: Sequence[str | None], sizes: Sequence[int]
    ) -> Call:
        # Of a user's function nothing is known: it counts as the op in whose place it closes.
        replaced = walker.plan.region(node.name) is not None
        names = node.inputs if replaced else [read or own for read, own in zip(reads, node.inputs, strict=True)]
        names = [name.partition("->")[0] for name in names]
        return Call(
            node=node,
            tokens=walker.micro_batch * self.length,
            length=self.length,
            active={} if replaced else dict(_pairs(numerics.key[1:])),
            dtype=walker.plan.dtype_of(node.name),
            input_bytes=sizes,
            inputs=[self.widths[name] * walker.plan.partials[name] for name in names],
            outputs=[self.widths[value] * walker.plan.partials[value] for value in node.values],
            heads=self.heads[names[0]],
        )

    def kernels(self) -> int:
        """About how many shapes of 16-bit GEMMs there are."""
        shapes: set[tuple[object, ...]] = set()
        loads: Counter[tuple[object, ...]] = Counter()
        most: dict[tuple[object, ...], int] = {}
        nodes = {node.name: node for node in self.graph.nodes}
        for (dtype, tokens, name), calls in self.gemms.items():
            node = nodes[name]
            if node.op.name != "experts":
                shapes |= {(dtype, tokens, ref.shape) for ref in node.weights.values() if len(ref.shape) == 2}
                continue
            experts, key = len(node.weights["down"].names), (dtype, tokens, node.weights["down"].shape)
            loads[key] += len(calls) * experts * -(-self.sequences * self.length // tokens)
            most[key] = min(tokens, int(_LOADS * tokens * self.widths[node.inputs[1]] / experts) + 1)
        return len(shapes) + sum(2 * min(count, most[key]) for key, count in loads.items())

    def saved(self, nodes: set[str]) -> int:
        """Bytes of these nodes' values, the logits and the routes, twice: in parts, and put together."""
        kept = [
            n for n in self.graph.nodes if n.name in nodes or n.op.name == "router" or self.graph.output in n.values
        ]
        return 2 * sum(self.kept[value] for node in kept for value in node.values) * self.sequences * self.length

    def peak(self, segment: Segment) -> int:
        """The most bytes of values at once, in any wave of a segment."""
        order = {node.name: i for i, node in enumerate(self.graph.nodes)}
        inside = range(order[segment.nodes[0].name], order[segment.nodes[-1].name] + 1)
        born = {v: order[node.name] for node in self.graph.nodes for v in self._values_of(node)}
        last = {value: order[name] for value, name in self.work.last_use.items()}
        dying = passing = coming = 0
        local = [value for value in born if value in last and born[value] in inside and last[value] in inside]
        for value in born.keys() & last.keys():
            dying += self.kept[value] * (born[value] < inside.start and last[value] in inside)
            passing += self.kept[value] * (born[value] < inside.start and last[value] >= inside.stop)
            coming += self.kept[value] * (born[value] in inside and last[value] >= inside.stop)
        # In the first wave nothing that comes is there yet, in the last nothing that goes is there any more.
        crossing = passing * self.sequences + max(
            dying * self.sequences + coming * self.wave, dying * self.wave + coming * self.sequences
        )
        return crossing * self.length + max(
            (self.shown[node.name] + sum(self.kept[v] for v in local if born[v] < at <= last[v]))
            * self.wave
            * self.length
            + self.scratch[node.name]
            for at, node in zip(inside, segment.nodes, strict=True)
        )

    def _values_of(self, node: Node) -> Iterator[str]:
        yield from (value for value in (*node.values, *self.work.edge_values[node.name]) if value in self.kept)


def _pairs(key: Sequence[object]) -> Iterator[tuple[str, object]]:
    for pair in key:
        assert isinstance(pair, tuple)
        yield pair


def _segment_bytes(weights: WeightStore, segment: Segment, dtypes: Sequence[str]) -> int:
    """Bytes of a segment's weights that are no pages of a file: stacked experts, and whatever is cast or made."""
    total = 0
    mapped = isinstance(weights.checkpoint, Checkpoint) and weights.device.type == "cpu"
    for node in segment.nodes:
        for ref in node.weights.values():
            stored = _FILE_NAMES.get(weights.checkpoint.entries[ref.names[0]].dtype)
            for dtype in dtypes:
                target = "fp32" if ref.keep_fp32 and not ref.each else dtype
                if ref.each or not mapped or target != stored:
                    total += weight_bytes(ref.shape, len(ref.names), target)
    return total
