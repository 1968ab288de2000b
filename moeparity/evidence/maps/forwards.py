"""The calls of a program's modules, cut into its forwards: each begins with the module that token ids go in at."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch

from moeparity.errors import TraceError, Where, counted
from moeparity.evidence.maps.module_map import ModuleMap, Place
from moeparity.evidence.trace.reader import RankTrace
from moeparity.evidence.trace.records import Batch, Call, Value
from moeparity.plan.graph import Graph


@dataclass(frozen=True, slots=True)
class Forward:
    """One way through the model: its token ids [b, t] int64, its calls of modules by path, and those of ops by path and
    name.

    `flat`: whether the ids are one row of tokens without an axis of sequences. `batch`: in a server, which tokens of
    which requests the rows are.
    """

    ids: torch.Tensor
    flat: bool
    calls: Mapping[str, Sequence[Call]]
    ops: Mapping[tuple[str, str], Sequence[Call]] = field(default_factory=dict)
    batch: Batch | None = None

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """In a server, each request, the position of its first token and how many there are, in the order of rows."""
        batch = self.batch
        return [] if batch is None else list(zip(batch.requests, batch.starts, batch.tokens, strict=True))

    @property
    def ends(self) -> list[int]:
        """In a server, the row of each request's last token."""
        return [] if self.batch is None else [end - 1 for end in accumulate(self.batch.tokens)]

    def value(self, place: Place, values: Mapping[int, Value]) -> Value | None:
        """What is shown at a place. None if nothing is; also if the module was called several times with different
        values, since it is not known which is meant. A server's head is called first for the last tokens of requests.
        """
        calls = self.calls.get(place.module, ()) if place.op is None else self.ops.get((place.module, place.op), ())
        calls = calls[:1] if place.of_requests and self.batch is not None else calls
        ids = [place.value_of(call) for call in calls]
        shown = [values[number] for number in ids if number is not None and number in values]
        if not shown or len(shown) != len(ids):
            return None
        first = shown[0]
        same = len(shown) == 1 or (first.digest is not None and {value.digest for value in shown} == {first.digest})
        return first if same else None


def module_calls(trace: RankTrace) -> list[Call]:
    """The calls of modules in forwards, as they were entered. Raises TraceError."""
    calls = (call for call in trace.contents.calls if call.level == "module" and call.phase == "forward")
    return sorted(calls, key=lambda call: call.id)


def forwards(trace: RankTrace, module_map: ModuleMap) -> list[Forward]:
    """The forwards of a trace, in order; of a server's trace those of its steps, each of which has its rows recorded.

    Raises TraceError where there is none, or the ids of one were not kept.
    """
    calls, place, where = module_calls(trace), module_map.tokens, Where(trace.folder)
    entries = [call for call in calls if call.path == place.module]
    if not entries:
        raise TraceError(
            f"{where}: no call of {place.module}, into which the token ids go by the map of {module_map.file.program}. "
            "Capture a whole forward, or name another map with `map:`."
        )
    number_of = {call.id: number for number, call in enumerate(calls)}
    firsts = [number_of[call.id] for call in _firsts(calls, entries)]
    ends = [*firsts[1:], len(calls)]
    ops = _ops(trace)
    # Up to the next forward: a server's sampler, behind the model, calls ops and no module.
    bounds = [bisect_left(ops, calls[first].id, key=lambda op: op.id) for first in firsts]
    every = [
        _forward(trace, place, entry, calls[first:end], ops[begin:behind])
        for entry, first, end, begin, behind in zip(entries, firsts, ends, bounds, [*bounds[1:], len(ops)], strict=True)
    ]
    return _of_steps(trace, every, entries) if trace.contents.batches else every


def _of_steps(trace: RankTrace, every: Sequence[Forward], entries: Sequence[Call]) -> list[Forward]:
    """The first forward of each step of a server, with its rows. Raises TraceError where they are not its tokens."""
    ways: dict[int, Forward] = {}
    for way, entry in zip(every, entries, strict=True):
        batch = trace.contents.batches.get(entry.step)
        if batch is None or entry.step in ways:
            continue
        rows = sum(batch.tokens) + batch.padding
        if way.ids.numel() != rows:
            raise TraceError(
                f"{Where(trace.folder)}: step {entry.step} has rows of {counted(rows, 'token')}, and its forward "
                f"{way.ids.numel():,}: the trace is damaged, or its engine computes a step in several forwards."
            )
        ways[entry.step] = replace(way, batch=batch)
    return list(ways.values())


def _ops(trace: RankTrace) -> list[Call]:
    """The ops inside modules in forwards, as they were entered."""
    calls = (call for call in trace.contents.calls if call.level == "op" and call.phase == "forward")
    return sorted((call for call in calls if call.inside is not None), key=lambda call: call.id)


def _firsts(calls: Sequence[Call], entries: Sequence[Call]) -> Iterator[Call]:
    """Of each call that the token ids go into the outermost call around it that is of this forward alone."""
    by_id = {call.id: call for call in calls}
    last = -1
    for entry in entries:
        first = entry
        while first.inside is not None and first.inside > last and first.inside in by_id:
            first = by_id[first.inside]
        yield first
        last = entry.id


def _forward(trace: RankTrace, place: Place, entry: Call, calls: Sequence[Call], ops: Sequence[Call]) -> Forward:
    values = trace.contents.values
    number = place.value_of(entry)
    value = None if number is None else values.get(number)
    ids = None if value is None else trace.tensor(value)
    if ids is None or ids.dtype not in (torch.int64, torch.int32) or ids.dim() not in (1, 2) or not ids.numel():
        raise TraceError(
            f"{Where(trace.folder)}: the token ids, {place}, were not kept whole. Capture whole tensors of "
            f"{place.module}: which token a row is of is known by them alone."
        )
    by_path: dict[str, list[Call]] = {}
    for call in calls:
        by_path.setdefault(call.path, []).append(call)
    by_name: dict[tuple[str, str], list[Call]] = {}
    for call in ops:
        by_name.setdefault((call.path, call.name), []).append(call)
    return Forward(ids.long().reshape(-1, ids.shape[-1]), ids.dim() == 1, by_path, by_name)


def refuse_other_model(trace: RankTrace, module_map: ModuleMap, graph: Graph, way: Forward) -> None:
    """Raises TraceError for modules that are of nodes this model has not."""
    has = {(place.module, place.side) for places in module_map.on(graph).values() for place in places}
    for path, side, value in module_map.every(graph.model_type, graph.layers + 1):
        if path in way.calls and (path, side) not in has:
            raise TraceError(
                f"{Where(trace.folder)}: it has the module {path}, which by the map of {module_map.file.program} makes "
                f"{value}; this checkpoint, a {graph.model_type} of {counted(graph.layers, 'layer')}, has no such "
                "value. Is it a trace of another model?"
            )
