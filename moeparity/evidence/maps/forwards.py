"""The calls of a program's modules, cut into its forwards: each begins with the module that token ids go in at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from moeparity.errors import TraceError, Where, counted
from moeparity.evidence.maps.module_map import ModuleMap, Place
from moeparity.evidence.trace.reader import RankTrace
from moeparity.evidence.trace.records import Call, Value
from moeparity.plan.graph import Graph


@dataclass(frozen=True, slots=True)
class Forward:
    """One way through the model: its token ids [b, t] int64, and its calls of modules by path.

    `flat`: whether the ids are one row of tokens without an axis of sequences.
    """

    ids: torch.Tensor
    flat: bool
    calls: Mapping[str, Sequence[Call]]

    def value(self, place: Place, values: Mapping[int, Value]) -> Value | None:
        """What is shown at a place. None if nothing is; also if the module was called several times with different
        values, since it is not known which is meant.
        """
        ids = [place.value_of(call) for call in self.calls.get(place.module, ())]
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
    """The forwards of a trace, in order.

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
    return [
        _forward(trace, place, entry, calls[first:end]) for entry, first, end in zip(entries, firsts, ends, strict=True)
    ]


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


def _forward(trace: RankTrace, place: Place, entry: Call, calls: Sequence[Call]) -> Forward:
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
    return Forward(ids.long().reshape(-1, ids.shape[-1]), ids.dim() == 1, by_path)


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
