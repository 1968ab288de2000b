"""Which forwards of a program go on from which, which tokens are padding, at which positions they stand, and which
sequences stand behind each other in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from moeparity.errors import counted
from moeparity.evidence.maps.attention_masks import KeyMask, key_mask
from moeparity.evidence.maps.forwards import Forward
from moeparity.evidence.maps.module_map import ModuleMap
from moeparity.evidence.trace.reader import RankTrace
from moeparity.plan.schedule.steps import FORWARD, Phase

TOKENS, COLUMNS = "tokens", "columns"
"""Where positions start: at a sequence's first token that is no padding, or at the batch's first column."""
BOTH: Final = frozenset({TOKENS, COLUMNS})
HIDES_MORE: Final = "its attention mask of four axes hides more than padding, what comes later and other sequences."


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a forward's tokens stand in: their padding, positions and earlier keys.

    mask: which tokens are no padding, bool [b, t]; None if that is not known. positions: int64 [b, t], counted on from
    the earlier tokens, whatever the program has in their place; None if unknown. earlier: the numbers of the forwards
    before this one whose keys it reads, row i on row i. sequences: in rows of several sequences, the number in its row
    of each token's, int64 [b, t]; positions begin anew with each. has_mask: whether an attention mask was recorded.
    unknown: why the mask, or which keys it reads, is not known; empty if it is known.
    """

    mask: Tensor | None = None
    positions: Tensor | None = None
    earlier: tuple[int, ...] = ()
    sequences: Tensor | None = None
    has_mask: bool = False
    phase: Phase = FORWARD
    unknown: str = ""

    @property
    def visible(self) -> Tensor | None:
        """What attention is told of the keys: bool [b, t], or [b, t, t] where a token sees those of its sequence."""
        if self.sequences is None or self.mask is None:
            return self.mask
        return self.mask[:, None] & own_sequence(self.sequences)


@dataclass(slots=True, kw_only=True)
class _Run:
    """Forwards each of which continues the one before. `mask` [b, S] bool is of all their tokens; `starts` are the
    places from which their positions may count.
    """

    numbers: list[int] = field(default_factory=list)
    mask: Tensor
    starts: frozenset[str] = BOTH


def contexts(trace: RankTrace, module_map: ModuleMap, ways: Sequence[Forward]) -> list[Context]:
    """The context of each forward. A forward continues the latest one of as many sequences whose number of keys fits:
    the number of columns that its attention mask has before its own tokens, or the position at which its own begin.
    """
    runs: list[_Run] = []
    by_forward: list[Context] = []
    for number, way in enumerate(ways):
        mask, positions = key_mask(trace, module_map, way), _positions(trace, module_map, way)
        by_forward.append(_context(number, way, mask, positions, runs))
    continued = {number for context in by_forward for number in context.earlier}
    return [_in_phase(context, number in continued) for number, context in enumerate(by_forward)]


def _in_phase(context: Context, goes_on: bool) -> Context:
    phase: Phase = "prefill" if goes_on else FORWARD
    if context.earlier and context.mask is not None:
        phase = "decode" if context.mask.shape[1] == 1 else "chunk"
    return replace(context, phase=phase)


def _context(number: int, way: Forward, mask: KeyMask | None, positions: Tensor | None, runs: list[_Run]) -> Context:
    """What a forward stands in; the run that it goes on, or begins, is longer by it then."""
    sequences, length = way.ids.shape
    own_mask = torch.ones_like(way.ids, dtype=torch.bool) if mask is None else mask.own_mask
    before = _before(length, mask, positions)
    if positions is not None and not before:
        numbers = _sequences(positions, own_mask)
        if bool(numbers.any()):
            return _packed(numbers, mask, own_mask, positions)
    run = _run_of(runs, sequences, before, mask) if before else _Run(mask=own_mask.new_empty(sequences, 0))
    unknown = _unknown(way, mask, positions, own_mask)
    if run is None and not unknown:
        unknown = f"it reads {counted(before, 'key')} of earlier tokens, and no recorded forward ends there."
    if unknown or run is None:
        return Context(unknown=unknown)
    joined = torch.cat([run.mask, own_mask], dim=1)
    if mask is not None and not mask.is_causal(joined[:, None]):
        return Context(unknown=HIDES_MORE)
    at, starts = _as_counted(joined, length, positions, run.starts)
    earlier = tuple(run.numbers)
    if not before:
        runs.append(run)
    run.numbers.append(number)
    run.mask, run.starts = joined, starts
    return Context(mask=own_mask, positions=at, earlier=earlier, has_mask=mask is not None)


def _unknown(way: Forward, mask: KeyMask | None, positions: Tensor | None, own_mask: Tensor) -> str:
    """Why nothing can be said of a forward by itself; empty where something can."""
    if mask is not None and mask.unknown:
        return mask.unknown
    if mask is None and positions is None and way.ids.shape[1] == 1:
        return "neither an attention mask nor positions of this step were recorded."
    if positions is not None and bool(_sequences(positions, own_mask).any()):
        return (
            "positions begin anew inside of a row that reads a cache: it is not known which sequence reads which keys."
        )
    return ""


def _sequences(positions: Tensor, own_mask: Tensor) -> Tensor:
    """The number of each token's sequence in its row, int64 [b, t]: positions that begin anew are those of another."""
    begins = (positions == 0) & own_mask & own_mask.roll(1, 1)
    begins[:, 0] = False
    return begins.long().cumsum(1)


def own_sequence(numbers: Tensor) -> Tensor:
    """Whether two tokens of a row are of one sequence, bool [b, t, t]."""
    return numbers[:, :, None] == numbers[:, None, :]


def _packed(numbers: Tensor, mask: KeyMask | None, own_mask: Tensor, positions: Tensor) -> Context:
    """Rows of several sequences, each of which sees itself alone; none of them goes on."""
    if mask is not None and (mask.unknown or not mask.is_causal(own_mask[:, None] & own_sequence(numbers))):
        return Context(unknown=mask.unknown or HIDES_MORE)
    real = own_mask.long().cumsum(1) - 1
    first = torch.zeros_like(real).scatter_reduce(1, numbers, real, "amin", include_self=False).clamp_min(0)
    at = torch.where(own_mask, real - first.gather(1, numbers), positions)
    return Context(mask=own_mask, positions=at, sequences=numbers, has_mask=mask is not None)


def _before(length: int, mask: KeyMask | None, positions: Tensor | None) -> int:
    """How many keys of earlier tokens a forward reads."""
    if mask is not None:
        return mask.keys - length
    return 0 if positions is None else int(positions[:, 0].min())


def _run_of(runs: Sequence[_Run], sequences: int, before: int, mask: KeyMask | None) -> _Run | None:
    """The latest run of so many sequences and keys, of those whose padding is as this forward says, if it does."""
    fitting = [run for run in runs if run.mask.shape == (sequences, before)]
    mask_before = None if mask is None else mask.before
    alike = [run for run in fitting if mask_before is not None and torch.equal(run.mask, mask_before)]
    return max(alike or fitting, key=lambda run: run.numbers[-1], default=None)


def _as_counted(
    joined: Tensor, length: int, positions: Tensor | None, starts: frozenset[str]
) -> tuple[Tensor | None, frozenset[str]]:
    """The positions of the last `length` tokens, counted as the program counts, and the place from which it may count.

    Padding has the positions that the program gives it. None if padding comes first and no positions were recorded.
    """
    real = joined[:, -length:]
    counted_from = dict(_counted(joined, length))
    alike = torch.equal(*(at[real] for at in counted_from.values()))
    if positions is None:
        return (counted_from[COLUMNS] if alike else None), starts
    fitting = frozenset(start for start in starts if torch.equal(counted_from[start][real], positions[real]))
    # Where they are as no start has them, that is for the search to explain.
    starts = fitting or starts
    at = counted_from[TOKENS if TOKENS in starts else COLUMNS]
    return torch.where(real, at, positions), starts


def _counted(joined: Tensor, length: int) -> Iterator[tuple[str, Tensor]]:
    yield TOKENS, (joined.long().cumsum(1) - 1)[:, -length:]
    yield COLUMNS, torch.arange(joined.shape[1]).expand(joined.shape)[:, -length:].contiguous()


def _positions(trace: RankTrace, module_map: ModuleMap, way: Forward) -> Tensor | None:
    """The positions [b, t] int64 that were recorded at the first place that has them."""
    for place in module_map.positions:
        value = way.value(place, trace.contents.values)
        tensor = None if value is None else trace.tensor(value)
        if tensor is not None and not tensor.is_floating_point() and tensor.dim() in (1, 2):
            rows = tensor.long().reshape(-1, tensor.shape[-1])
            if rows.shape[1] == way.ids.shape[1] and len(rows) in (1, len(way.ids)):
                return rows.expand(way.ids.shape).contiguous()
    return None
