"""The forward passes of a program: a step's calls cut where token ids go in, and the tokens that each is given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from moeparity.evidence.alignment.key_masks import KeyMask, key_mask
from moeparity.evidence.alignment.tokens import Tokens, of_requests, tokens_in
from moeparity.evidence.trace.records import Batch, Call

IDS: Final = ("input_ids",)
POSITIONS: Final = ("position_ids", "positions")
MASKS: Final = ("attention_mask", "padding_mask")
STARTS: Final = ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q", "query_start_loc")

Read = Callable[[int], Tensor | None]
"""The whole value of that id, where it was kept."""


@dataclass(frozen=True, slots=True)
class Sources:
    """By their ids the values that may tell a pass its tokens; of each kind the first that can be read counts."""

    ids: Sequence[int]
    masks: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenTokens:
    """The ids that a pass was given, [B, T] or [N] int64, and its tokens.

    mask, positions: as they were recorded, the positions in the shape of the ids, int64; None where they were not.
    unknown: why an attention mask says nothing of padding; empty if it does, or if there is none.
    """

    ids: Tensor
    tokens: Tokens
    mask: KeyMask | None = None
    positions: Tensor | None = None
    unknown: str = ""


def cut(calls: Sequence[Call], entries: Sequence[str]) -> list[Sequence[Call]]:
    """The calls of one step's forward passes, as they were entered, pass by pass; what comes before the first pass is
    of that, and what comes behind a pass is of it.

    entries: paths of modules that token ids go into, of which the first that is called counts. Around each call of that
    a pass begins with the outermost call that is of it alone. If none is called, a pass begins where the module that is
    called first is called again.
    """
    modules = {call.id: call for call in calls if call.level == "module"}
    paths = {call.path for call in modules.values()}
    entry = next((path for path in entries if path in paths), None)
    tops = [call for call in modules.values() if call.inside not in modules]
    again = [call for call in tops if (call.path, call.name) == (tops[0].path, tops[0].name)]
    last, begins = -1, list[int]()
    for call in again if entry is None else [call for call in modules.values() if call.path == entry]:
        first = call
        while first.inside is not None and first.inside > last and first.inside in modules:
            first = modules[first.inside]
        begins.append(first.id)
        last = call.id
    edges = [bisect_left(calls, begin, key=lambda call: call.id) for begin in begins[1:]]
    return [calls[begin:end] for begin, end in pairwise([0, *edges, len(calls)])] if calls else []


def named_sources(calls: Sequence[Call]) -> Sources:
    """By the names that programs have for them, of any module, the outermost first; ids that have no name are the first
    that the outermost module is given, or those of an embedding.
    """
    modules = [call for call in calls if call.level == "module"]
    ids = [*_values_named(modules, IDS), *(list(modules[0].inputs.values())[:1] if modules else ())]
    ids += [call.inputs["1"] for call in calls if call.name.startswith("aten.embedding") and "1" in call.inputs][:1]
    return Sources(ids, list(_values_named(modules, MASKS)), list(_values_named(modules, POSITIONS)))


def given_tokens(sources: Sources, calls: Sequence[Call], batch: Batch | None, read: Read) -> GivenTokens | None:
    """What a pass with these calls was given; None where no ids were kept whole.

    batch: in a server the rows of its step; if these are of as many tokens as there are ids, they say whose each is.
    """
    ids = next((ids for ids in map(read, sources.ids) if ids is not None and _are_ids(ids)), None)
    if ids is None:
        return None
    ids, unknown = ids.long(), ""
    recorded_mask = next((mask for mask in map(read, sources.masks) if mask is not None), None)
    mask = None if recorded_mask is None else key_mask(recorded_mask, (ids.numel() // ids.shape[-1], ids.shape[-1]))
    if sources.masks and mask is None:
        shape = "was not kept whole" if recorded_mask is None else f"has the shape {list(recorded_mask.shape)}"
        unknown = f"its attention mask {shape}."
    spread = (_spread_over(read(number), ids) for number in sources.positions)
    positions = next((at for at in spread if at is not None), None)
    if batch is not None and sum(batch.tokens) + batch.padding == ids.numel():
        tokens = of_requests(batch, ids)
    else:
        tokens = tokens_in(ids, mask, positions, _borders(calls, ids.numel(), read))
    return GivenTokens(ids=ids, tokens=tokens, mask=mask, positions=positions, unknown=unknown)


def _values_named(calls: Sequence[Call], names: Sequence[str]) -> Iterator[int]:
    """What calls were given under one of these names."""
    return (call.inputs[name] for call in calls for name in names if name in call.inputs)


def _are_ids(ids: Tensor) -> bool:
    return ids.dtype in (torch.int64, torch.int32) and ids.dim() in (1, 2) and ids.numel() > 0


def _borders(calls: Sequence[Call], count: int, read: Read) -> Tensor | None:
    """Where sequences begin in a pack of so many places, int64 [sequences]; None where no call was given that. Borders
    that end elsewhere are of other rows, as of an image's, or of sequences that are padded apart.
    """
    candidates = map(read, _values_named([call for call in calls if call.level == "module"], STARTS))
    borders = next((borders for borders in candidates if borders is not None and not borders.is_floating_point()), None)
    if borders is None or borders.dim() != 1:
        return None
    edges = borders.tolist()
    fits = len(edges) > 1 and edges[0] == 0 and edges[-1] == count and edges == sorted(edges)
    return torch.tensor([edge for edge in edges if edge < count]) if fits else None


def _spread_over(positions: Tensor | None, ids: Tensor) -> Tensor | None:
    """Positions in the shape of ids: every sequence has those of one row; None where they are of other tokens."""
    if positions is None or positions.is_floating_point():
        return None
    if positions.numel() == ids.numel():
        return positions.reshape(ids.shape).long()
    if positions.shape[-1:] == ids.shape[-1:] and positions.numel() == ids.shape[-1]:
        return positions.reshape(-1).expand(ids.shape).long().contiguous()
    return None
