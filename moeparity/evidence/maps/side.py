"""A trace as one side of a comparison: its values by node and token of a grid, as grafts for walkers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from moeparity.engine.grafts import Graft
from moeparity.errors import TraceError, Where, counted
from moeparity.evidence.alignment.grid import NOWHERE, OnGrid
from moeparity.evidence.maps.forwards import Forward, forwards, map_for, refuse_other_model
from moeparity.evidence.maps.module_map import ModuleMap, ValuePlace
from moeparity.evidence.maps.values import shape_shown, shown_rows, tokens_shown
from moeparity.evidence.maps.weights import Tensors, Weights, compared
from moeparity.evidence.trace.reader import RankTrace, Trace, open_trace
from moeparity.numerics.dtypes import name_of
from moeparity.plan.address import pattern
from moeparity.plan.faults.plant import giving_width, width_of
from moeparity.plan.graph import Graph, Node
from moeparity.plan.schedule.steps import Schedule
from moeparity.plan.token_shapes import token_shapes

NAMED = 4
"""So many kinds of nodes stand in a message."""
KEPT = 4
"""So many values of a trace are held in memory at once: those of the node that is walked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSide:
    """What a trace shows of a model, on the tokens of a grid.

    grafts: what was recorded, by the name of the value. program: the program whose modules the map knows. dtype: of the
    first recorded value. forwards: sequences and tokens of each way through the model that has tokens of the grid;
    others: how many ways have no token that is not there already. tokens: how many of the grid's real tokens are shown.
    whole: whether the program got to the end of its recording. weights: those of which the trace has digests. schedule:
    what the program computed together, on the grid's tokens; None if no schedule says so. requests: what a server
    called each sequence of the grid.
    """

    folder: Path
    program: str
    dtype: str
    grafts: Mapping[str, Graft]
    forwards: tuple[tuple[int, int], ...]
    others: int
    tokens: int
    whole: bool
    weights: Weights
    schedule: Schedule | None
    requests: Mapping[int, str]
    notes: tuple[str, ...]


def recorded_side(
    folder: Path,
    graph: Graph,
    ids: torch.Tensor,
    mask: torch.Tensor,
    *,
    tensor: Tensors,
    where: Where,
    map_name: str | None = None,
) -> RecordedSide:
    """A trace on the grid of ids [B, T] int64, whose tokens are real where `mask` [B, T] bool is true; on the CPU.

    `tensor` gives the checkpoint's weights by name. `where` names the recipe, beside which a map of the user's own may
    lie. Raises TraceError for a trace of several ranks, of another model, of other weights or other tokens, without
    whole tensors, or all zero; SpecError for a map.
    """
    rank = one_rank(open_trace(folder))
    module_map = map_for(rank, map_name, where)
    module_map.refuse_unknown(graph)
    ways = forwards(rank, module_map)
    refuse_other_model(rank, module_map, graph, ways[0])
    on_grid = OnGrid([(way.ids, way.tokens) for way in ways], ids, mask)
    indices = on_grid.indices()
    _refuse_other_tokens(rank, ways, indices, ids[0][mask[0]])
    placed = [(way, index) for way, index in zip(ways, indices, strict=True) if bool((index != NOWHERE).any())]
    grafts = _grafts(rank, graph, module_map, placed, mask)
    _refuse_zeros(rank, graph, grafts)
    _refuse_other_shapes(rank, graph, module_map, placed, grafts)
    shown, logits = torch.zeros(mask.numel(), dtype=torch.bool), module_map.on(graph).get(graph.output, ())
    for _, index in placed:
        shown[index[index != NOWHERE]] = True
    return RecordedSide(
        folder=folder,
        program=module_map.file.program,
        dtype=_dtype(grafts, graph),
        grafts=grafts,
        forwards=tuple((len(way.ids), way.ids.shape[1]) for way, _ in placed),
        others=len(ways) - len(placed),
        tokens=int((shown & mask.flatten()).sum()),
        whole=rank.contents.whole,
        weights=compared(rank, graph, tensor),
        schedule=on_grid.schedule([tokens_shown(rank, way, logits).shape[1] == 1 for way in ways]),
        requests=on_grid.names if rank.contents.batches else {},
        notes=(*rank.head.unseen, *rank.contents.notes),
    )


def refuse_without_logits(side: RecordedSide, graph: Graph, scored: torch.Tensor) -> None:
    """Refuses a trace that has logits of some tokens and lacks those that a scored token is judged by: the logits of
    the token before it.

    scored: bool [B, T]. A trace without any logits is not refused, since its nodes can still be compared. Raises
    TraceError.
    """
    graft = side.grafts.get(graph.output)
    if graft is None:
        return
    needed = torch.zeros_like(scored)
    needed[:, :-1] = scored[:, 1:]
    missing = int((needed & ~graft.is_recorded.view_as(needed)).sum())
    if missing:
        raise TraceError(
            f"{Where(side.folder)}: no logits of {counted(missing, 'scored token')} of {int(needed.sum()):,}, so there "
            "is nothing to judge. Capture the head's output whole and of every position (transformers: leave "
            "`logits_to_keep` out), or score only tokens that have them."
        )


def one_rank(trace: Trace) -> RankTrace:
    """The one rank of a trace. Raises TraceError if it has several."""
    first, *others = trace.ranks
    ranks = max(first.head.ranks, len(trace.ranks))
    if ranks > 1 or others:
        raise TraceError(
            f"{Where(trace.folder)}: a trace of {ranks} ranks, each of which may hold a part of the values. A recipe "
            "takes a trace of one rank; `moeparity diff` puts shards together by a layout."
        )
    return first


def _refuse_other_tokens(
    trace: RankTrace, ways: Sequence[Forward], indices: Sequence[torch.Tensor], first: torch.Tensor
) -> None:
    if all(bool((index == NOWHERE).all()) for index in indices):
        raise TraceError(
            f"{Where(trace.folder)}: {counted(len(ways), 'forward')}, none with the tokens of this recipe; the first "
            f"begins with {ways[0].ids[0, :8].tolist()}, the recipe's first sequence with {first[:8].tolist()}. "
            "Name the token file of that run."
        )


def _grafts(
    trace: RankTrace,
    graph: Graph,
    module_map: ModuleMap,
    placed: Sequence[tuple[Forward, torch.Tensor]],
    mask: torch.Tensor,
) -> dict[str, Graft]:
    tokens = mask.numel()
    read = lru_cache(KEPT)(lambda value: _rows(trace, placed, places[value], tokens))
    places, grafts = module_map.on(graph), {}
    multiplied = _multiplied(graph)
    for value, at in places.items():
        is_known = torch.zeros(tokens, dtype=torch.bool)
        for way, index in placed:
            flat_places = index[tokens_shown(trace, way, at).flatten()]
            is_known[flat_places[flat_places != NOWHERE]] = True
        if bool(is_known.any()):
            grafts[value] = Graft(
                read=_reader(read, value),
                is_recorded=is_known,
                where=f"{Where(trace.folder)}: {at[0]}",
                whole=bool(is_known[mask.flatten()].all()),
                cast=value in multiplied,
            )
    if not grafts:
        raise TraceError(
            f"{Where(trace.folder)}: no whole tensor of any value that the map of {module_map.file.program} names. "
            "Capture whole tensors, as by `moeparity capture --save '*'`: digests alone can't be computed with "
            "(docs/traces.md)."
        )
    return grafts


def _multiplied(graph: Graph) -> set[str]:
    """The values that go into products of matrices: the first input of a GEMM, and all that attention reads."""
    takers = [node for node in graph.nodes if node.op.role.gemm or node.op.tokens.mixes]
    return {value for node in takers for value in (node.inputs if node.op.tokens.mixes else node.inputs[:1])}


def _reader(read: Callable[[str], torch.Tensor], value: str) -> Callable[[], torch.Tensor]:
    return lambda: read(value)


def _rows(
    trace: RankTrace, placed: Sequence[tuple[Forward, torch.Tensor]], places: tuple[ValuePlace, ...], tokens: int
) -> torch.Tensor:
    """All recorded rows of a value on the grid, [B * T, N]."""
    rows: torch.Tensor | None = None
    for way, index in placed:
        shown = shown_rows(trace, way, places)
        if shown is None:
            continue
        flat_places = index[tokens_shown(trace, way, places).flatten()]
        real, flat = flat_places != NOWHERE, shown.flatten(0, 1)
        rows = (
            flat.new_zeros(tokens, flat.shape[1])
            if rows is None
            else rows.to(torch.promote_types(rows.dtype, flat.dtype))
        )
        rows[flat_places[real]] = flat[real].to(rows.dtype)
    assert rows is not None, "only values that are there are read"
    return rows


def _refuse_zeros(trace: RankTrace, graph: Graph, grafts: Mapping[str, Graft]) -> None:
    """Raises TraceError where the logits, or the first values there are, are all zero."""
    for value in dict.fromkeys((*_first_floats(graph, grafts), graph.output)):
        if value in grafts and not bool(grafts[value].read()[grafts[value].is_recorded].any()):
            raise TraceError(
                f"{Where(trace.folder)}: all values of {value} are zero. Such a capture saw memory before it was "
                "written, or nothing at all: capture again."
            )


def _dtype(grafts: Mapping[str, Graft], graph: Graph) -> str:
    """The dtype of the embedding, or of the first value that was recorded, by its short name."""
    value = next(_first_floats(graph, grafts), next(iter(grafts)))
    dtype = grafts[value].read().dtype
    return name_of(dtype) or str(dtype)


def _first_floats(graph: Graph, grafts: Mapping[str, Graft]) -> Iterator[str]:
    values = (v for node in graph.nodes if "tokens" in node.inputs for v in node.values)
    yield from (value for value in values if value in grafts)


def _refuse_other_shapes(
    trace: RankTrace,
    graph: Graph,
    module_map: ModuleMap,
    placed: Sequence[tuple[Forward, torch.Tensor]],
    grafts: Mapping[str, Graft],
) -> None:
    """Raises TraceError if a token has another shape of a value than the checkpoint says, so that the value can't stand
    in place of what is computed. Tables made of positions alone may have another width if every token was recorded.
    """
    shapes, places = token_shapes(graph), module_map.on(graph)
    nodes_by_words: dict[str, list[str]] = {}
    for value, graft in grafts.items():
        node = graph.makers[value]
        shown = (shape_shown(trace, way, places[value], shapes[value]) for way, _ in placed)
        words = next(filter(None, shown), "")
        if words and not (graft.whole and width_of(node) is not None):
            nodes_by_words.setdefault(words + _faults(graph, node, graft), []).append(node.name)
    if nodes_by_words:
        sentences = [f"{pattern(dict.fromkeys(names))}: {words}" for words, names in nodes_by_words.items()]
        further = f"; and {counted(len(sentences) - NAMED, 'other shape')} more" if len(sentences) > NAMED else ""
        raise TraceError(
            f"{Where(trace.folder)}: other shapes than this checkpoint's config.json says: "
            f"{'; '.join(sentences[:NAMED])}{further}. "
            "Name the checkpoint that this program ran; where it chose another number itself, "
            "`moeparity explain` looks at each node."
        )


def _faults(graph: Graph, node: Node, graft: Graft) -> str:
    """The faults that give a table as many columns as were recorded of some tokens, in words."""
    if width_of(node) is None:
        return ""
    faults = " or ".join(f"{plant} ({plant.in_words})" for plant in giving_width(graph, node, graft.read().shape[1]))
    return f", as with {faults}; of some tokens it was not recorded" if faults else ""
