"""The forward passes of a program with its map: the calls of each, and the tokens that it was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby

import torch

from moeparity.errors import TraceError, Where, counted
from moeparity.evidence.alignment.key_masks import KeyMask
from moeparity.evidence.alignment.passes import GivenTokens, Read, Sources, cut, given_tokens, named_sources
from moeparity.evidence.alignment.tokens import Tokens
from moeparity.evidence.maps.module_map import ModuleMap, ValuePlace, load_map, map_of
from moeparity.evidence.trace.reader import Contents, RankTrace
from moeparity.evidence.trace.records import Call, Value
from moeparity.plan.graph import Graph


@dataclass(frozen=True, slots=True)
class Forward:
    """One way through the model: its token ids [b, t] int64, its calls of modules by path, and those of ops by path and
    name.

    tokens: which sequences the rows are of. mask, positions: as they were recorded, int64 [b, t]; None where they were
    not. unknown: why an attention mask says nothing of padding; empty if it does, or if there is none.
    """

    ids: torch.Tensor
    tokens: Tokens
    calls: Mapping[str, Sequence[Call]]
    ops: Mapping[tuple[str, str], Sequence[Call]] = field(default_factory=dict)
    mask: KeyMask | None = None
    positions: torch.Tensor | None = None
    unknown: str = ""

    def value(self, place: ValuePlace, values: Mapping[int, Value]) -> Value | None:
        """What is shown at a place. None if nothing is; also if the module was called several times with different
        values, since it is not known which is meant. A server's head is called first for the last tokens of requests.
        """
        calls = self.calls.get(place.module, ()) if place.op is None else self.ops.get((place.module, place.op), ())
        calls = calls[:1] if place.of_requests and self.tokens.ends else calls
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


def map_for(trace: RankTrace, name: str | None, where: Where) -> ModuleMap:
    """The map of that name, beside the file `where` if it is the user's own; None: the shipped one of the program.

    Raises TraceError, SpecError.
    """
    return map_of(module_calls(trace), Where(trace.folder)) if name is None else load_map(name, where)


def passes(calls: Iterable[Call], module_map: ModuleMap | None) -> Iterator[Sequence[Call]]:
    """The calls of each forward pass, as they were entered, of calls in forwards; pass by pass of each step."""
    entries = [] if module_map is None else [place.module for place in module_map.tokens]
    for _, of_step in groupby(sorted(calls, key=lambda call: (call.step, call.id)), lambda call: call.step):
        yield from cut(list(of_step), entries)


def tokens_of(
    calls: Sequence[Call], module_map: ModuleMap | None, contents: Contents, read: Read
) -> GivenTokens | None:
    """What a pass with these calls was given, as the map says or else by usual names; None where no ids were kept."""
    sources = named_sources(calls)
    if module_map is not None:
        places = module_map.tokens, module_map.mask, module_map.positions
        ids, masks, positions = (list(chain.from_iterable(place.values_of(calls) for place in of)) for of in places)
        by_name = () if module_map.mask else sources.masks
        sources = Sources([*ids, *sources.ids], [*masks, *by_name], [*positions, *sources.positions])
    return given_tokens(sources, calls, contents.batches.get(calls[0].step), read)


def forwards(trace: RankTrace, module_map: ModuleMap) -> list[Forward]:
    """The forwards of a trace, in order; of a server's trace the first of each step that has its rows recorded.

    Raises TraceError where there is none, or the ids of one were not kept, or rows are not its tokens.
    """
    calls = [call for call in trace.contents.calls if call.phase == "forward" and call.level in ("module", "op")]
    entries = {place.module for place in module_map.tokens}
    every = [part for part in passes(calls, module_map) if any(c.level == "module" and c.path in entries for c in part)]
    if not every:
        raise TraceError(
            f"{Where(trace.folder)}: no call of {module_map.tokens[0].module}, into which the token ids go by the map "
            f"of {module_map.file.program}. Capture a whole forward, or name another map with `map:`."
        )
    if trace.contents.batches:
        firsts = {part[0].step: part for part in reversed(every)}
        every = [firsts[step] for step in sorted(firsts.keys() & trace.contents.batches.keys())]
    return [_forward(trace, module_map, part) for part in every]


def _forward(trace: RankTrace, module_map: ModuleMap, calls: Sequence[Call]) -> Forward:
    values, batch = trace.contents.values, trace.contents.batches.get(calls[0].step)
    inputs = tokens_of(calls, module_map, trace.contents, lambda n: trace.tensor(values[n]) if n in values else None)
    if inputs is None:
        raise TraceError(
            f"{Where(trace.folder)}: the token ids, {module_map.tokens[0]}, were not kept whole. Capture whole tensors "
            f"of {module_map.tokens[0].module}: which token a row is of is known by them alone."
        )
    ids = inputs.ids.reshape(-1, inputs.ids.shape[-1])
    rows = ids.numel() if batch is None else sum(batch.tokens) + batch.padding
    if rows != ids.numel():
        raise TraceError(
            f"{Where(trace.folder)}: step {calls[0].step} has rows of {counted(rows, 'token')}, and its forward "
            f"{ids.numel():,}: the trace is damaged, or its engine computes a step in several forwards."
        )
    of_modules: dict[str, list[Call]] = {}
    of_ops: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        if call.level == "module":
            of_modules.setdefault(call.path, []).append(call)
        elif call.inside is not None:
            of_ops.setdefault((call.path, call.name), []).append(call)
    positions = None if inputs.positions is None else inputs.positions.reshape(ids.shape)
    return Forward(ids, inputs.tokens, of_modules, of_ops, inputs.mask, positions, inputs.unknown)


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
