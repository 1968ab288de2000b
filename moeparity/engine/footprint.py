"""Works out from shapes alone how much memory a pass will need at its peak, and compares it with what there is.

The bound is for the worst case, in which no two walkers agree again once their numerics have differed. Where nothing
differs yet they share values, as in the pass itself. For a user's function only its inputs and outputs are counted:
what else it needs is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from moeparity.engine.duration import Amounts, amounts_of, amounts_of_loading
from moeparity.engine.liveness import Values
from moeparity.engine.walker import Walker
from moeparity.engine.work import Work
from moeparity.errors import MoeparityError
from moeparity.inputs.machine import available_bytes
from moeparity.inputs.weights.store import WeightStore
from moeparity.ops.memory import weight_bytes
from moeparity.plan.graph import Segment
from moeparity.plan.schedule.steps import MicroBatches

# Chunks of the metrics (fp64, on a GPU larger ones), and memory that an allocator cannot use again.
_FIXED = {"cpu": 128 << 20, "cuda": 2 << 30}
_SLACK = 1.1
# oneDNN compiles a kernel for every shape of a 16-bit GEMM and does not free it: up to 0.7 MB each, measured with torch
# 2.13 on a processor with AMX, and a loop over experts meets a new number of rows again and again.
_KERNEL = 720 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes at the peak: `weights` of the segment `at` and of the next one, `values` of all walkers, `fixed` for any
    run. `work` is what the pass was found to do, so that the pass need not work it out again; `amounts` is how much
    that is.
    """

    at: str
    weights: int
    values: int
    fixed: int
    work: Work = field(compare=False, repr=False)
    amounts: Amounts = field(compare=False, repr=False)

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.values + self.fixed


def estimate(
    walkers: Sequence[Walker],
    weights: WeightStore,
    sequences: int,
    length: int,
    saved: Iterable[str] | None = None,
    kept_bytes: int = 0,
) -> Footprint:
    """The most memory that a pass over [sequences, length] tokens needs in addition to what the process has already.

    On the CPU this is anonymous memory: pages of the checkpoint's files can be dropped and read again. `saved` are
        nodes whose values an observer keeps; logits and routes are kept with them. `kept_bytes` is what observers keep
        per token beside that.
    """
    values = Values(walkers, weights.graph, sequences, length)
    loaded = [
        _segment_bytes(weights, segment, values.dtypes) + _rewritten_bytes(walkers, segment)
        for segment in weights.graph.segments
    ]
    further_bytes = _FIXED[weights.device.type]
    if weights.device.type == "cpu":
        further_bytes += _KERNEL * values.kernels()
    saved_bytes = kept_bytes * sequences * length + (0 if saved is None else values.saved(set(saved)))
    amounts = amounts_of(values) + amounts_of_loading(weights, values.dtypes)
    peaks = []
    for i, segment in enumerate(weights.graph.segments):
        loaded_bytes = sum(loaded[i : i + 2]) if weights.residency == "stream" else sum(loaded)
        size = int(_SLACK * values.peak(segment))
        peaks.append(
            Footprint(
                at=segment.name,
                weights=loaded_bytes,
                values=size + saved_bytes,
                fixed=further_bytes,
                work=values.work,
                amounts=amounts,
            )
        )
    return max(peaks, key=lambda peak: peak.total)


def require(
    walkers: Sequence[Walker],
    weights: WeightStore,
    sequences: int,
    length: int,
    *,
    limit: float | None = None,
    saved: Iterable[str] | None = None,
    kept_bytes: int = 0,
) -> Footprint:
    """The estimate for a pass. Raises MoeparityError if the pass does not fit. `limit` is the number of bytes the pass
    may take; None means what is available now, infinity means any number.
    """
    allowed_bytes = available_bytes(weights.device) if limit is None else limit

    def needed(walkers: Sequence[Walker], sequences: int) -> Footprint:
        return estimate(walkers, weights, sequences, length, saved, kept_bytes)

    footprint = needed(walkers, sequences)
    if allowed_bytes is not None and footprint.total > allowed_bytes:
        variants = f"{len(walkers)} variant{'s' * (len(walkers) != 1)}"
        allowed = "are available" if limit is None else "are allowed by --memory-limit"
        raise MoeparityError(
            f"this run needs about {shown_size(footprint.total)} of memory at its peak, in {footprint.at} "
            f"({shown_size(footprint.weights)} of weights, {shown_size(footprint.values)} of values of {variants}, "
            f"{shown_size(footprint.fixed)} for compiled kernels and metrics), and "
            f"{shown_size(allowed_bytes)} {allowed}. {_advice(needed, walkers, sequences, allowed_bytes)} "
            "`--memory-limit none` runs it all the same."
        )
    return footprint


def shown_size(size: float) -> str:
    """`1.25 GB`, `160 MB` or `12 bytes`."""
    for unit, digits, factor in (("GB", 2, 1e9), ("MB", 0, 1e6), ("kB", 0, 1e3)):
        if size >= factor:
            return f"{size / factor:.{digits}f} {unit}"
    return f"{size:.0f} bytes"


Needed = Callable[[Sequence[Walker], int], Footprint]


def _advice(needed: Needed, walkers: Sequence[Walker], sequences: int, limit: float) -> str:
    """What would fit instead: the suggestions are tried one by one."""
    proposals = list(_that_fit(needed, walkers, sequences, limit))
    if proposals:
        return f"It would fit {'; or '.join(proposals)}."
    return "Nothing smaller fits either: use a machine with more memory."


def _that_fit(needed: Needed, walkers: Sequence[Walker], sequences: int, limit: float) -> Iterator[str]:
    sizes = [walker.schedule.size for walker in walkers if isinstance(walker.schedule, MicroBatches)]
    size = min(max(sizes, default=0), sequences)
    while (size := size // 2) >= 1:
        smaller = [_in_smaller_batches(walker, size) for walker in walkers]
        if (total := needed(smaller, sequences).total) <= limit:
            yield f"with a micro-batch of {size} ({shown_size(total)}; other batches may give other bits)"
            break
    fewer = greatest(lambda count: needed(walkers, count).total <= limit, sequences)
    if fewer:
        yield f"with {fewer} of the {sequences} sequences in one token file"
    # The two sides, and a shadow if there is one, always run; the rest are trials, two for each toggle.
    shadows = [walker for walker in walkers if walker.inputs_of is not None]
    variants = [walker for walker in walkers if walker.inputs_of is None]
    trials = greatest(lambda n: needed([*variants[: 2 + n], *shadows], sequences).total <= limit, len(variants) - 2)
    if trials:
        yield f"with {trials} instead of {len(variants) - 2} trials: fewer toggles, by `by: rule` or `by: block`"


def _in_smaller_batches(walker: Walker, size: int) -> Walker:
    if not isinstance(walker.schedule, MicroBatches):
        return walker
    return replace(walker, schedule=replace(walker.schedule, size=min(walker.schedule.size, size)))


def greatest(fits: Callable[[int], bool], below: int) -> int:
    """The greatest number from 1 to `below` - 1 that fits, by halving; 0 where none does."""
    low, high = 0, max(below, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _rewritten_bytes(walkers: Sequence[Walker], segment: Segment) -> int:
    """Bytes of the weights in a segment that faults of some plan rewrite: each is written anew, whole."""
    rewritten = {
        (node.name, as_run.computation, plan.dtype_of(node.name)): as_run
        for plan in {id(plan): plan for walker in walkers for plan in walker.plans.values()}.values()
        for node in segment.nodes
        if not (as_run := plan.as_run(node)).own_weights
    }
    return sum(
        weight_bytes(ref.shape, ref.count, dtype)
        for (_, _, dtype), node in rewritten.items()
        for ref in node.weights.values()
    )


def _segment_bytes(weights: WeightStore, segment: Segment, dtypes: Sequence[str]) -> int:
    """Bytes of a segment's weights that are not pages of a file: stacked experts, and whatever is cast or generated."""
    return sum(weights.made_bytes(ref, dtypes) for node in segment.nodes for ref in node.weights.values())
