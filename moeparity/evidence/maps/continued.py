"""Which forwards of a program go on from which, which tokens are padding, at which positions they stand, and which
sequences stand behind each other in a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from moeparity.errors import counted
from moeparity.evidence.alignment.streams import by_pass, earlier_passes, streams
from moeparity.evidence.maps.forwards import Forward
from moeparity.plan.schedule.recorded import phase_of
from moeparity.plan.schedule.steps import FORWARD, Phase, Span

TOKENS, COLUMNS = "tokens", "columns"
"""Where positions start: at a sequence's first token that is no padding, or at the batch's first column."""
BOTH: Final = frozenset({TOKENS, COLUMNS})
BEHIND_EACH_OTHER: Final = "Several requests stand behind each other in a step; attention is looked at by request."
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
            return None if self.unknown else self.mask
        return self.mask[:, None] & own_sequence(self.sequences)


def contexts(ways: Sequence[Forward]) -> list[Context]:
    """The context of each forward; of a server's, all of whose rows stand behind each other, attention is unknown."""
    if any(way.tokens.ends for way in ways):
        return list(_of_server(ways))
    earlier = earlier_passes([way.tokens for way in ways])
    by_forward: list[Context] = []
    starts: list[frozenset[str]] = []
    for number, way in enumerate(ways):
        before = earlier[number]
        reason = way.unknown or _unknown(way)
        if before is None and not reason:
            keys = counted(way.tokens.before, "key")
            reason = f"it reads {keys} of earlier tokens, and no recorded forward ends there."
        if reason or before is None:
            by_forward.append(Context(unknown=reason))
            starts.append(BOTH)
            continue
        masks = [ways[n].tokens.real().view(ways[n].tokens.size) for n in (*before, number)]
        context, start = _context(way, before, torch.cat(masks, dim=1), starts[before[-1]] if before else BOTH)
        by_forward.append(context)
        starts.append(start)
    continued = {number for context in by_forward for number in context.earlier}
    return [_in_phase(context, number in continued) for number, context in enumerate(by_forward)]


def _in_phase(context: Context, goes_on: bool) -> Context:
    phase: Phase = "prefill" if goes_on else FORWARD
    if context.earlier and context.mask is not None:
        phase = "decode" if context.mask.shape[1] == 1 else "chunk"
    return replace(context, phase=phase)


def _of_server(ways: Sequence[Forward]) -> Iterator[Context]:
    passes, begun = [way.tokens for way in ways], set[int]()
    for tokens, parts in zip(passes, by_pass(streams(passes), len(passes)), strict=True):
        spans = tuple(Span(run, part.start, part.start + len(part.places)) for run, part in parts)
        yield Context(
            mask=tokens.real()[None],
            positions=tokens.positions()[None],
            phase=phase_of(spans, begun),
            unknown=BEHIND_EACH_OTHER,
        )
        begun.update(span.sequence for span in spans)


def _unknown(way: Forward) -> str:
    """Why nothing can be said of a forward by itself; empty where something can."""
    if way.mask is None and way.positions is None and way.ids.shape[1] == 1:
        return "neither an attention mask nor positions of this step were recorded."
    if way.tokens.is_packed and way.tokens.before:
        return (
            "positions begin anew inside of a row that reads a cache: it is not known which sequence reads which keys."
        )
    return ""


def _context(
    way: Forward, earlier: tuple[int, ...], joined: Tensor, starts: frozenset[str]
) -> tuple[Context, frozenset[str]]:
    """What a forward stands in, and the places from which its positions may count; `joined` [b, S] bool are its tokens
    behind the earlier ones.
    """
    length, expected = way.ids.shape[1], joined[:, None]
    own_mask, sequences = joined[:, -length:], None
    if way.tokens.is_packed:
        sequences = way.tokens.numbers_in_rows()
        expected = expected & own_sequence(sequences)
    if way.mask is not None and not way.mask.is_causal(expected):
        return Context(unknown=HIDES_MORE), BOTH
    if sequences is None:
        at, starts = _as_counted(joined, length, way.positions, starts)
    else:
        # Borders of a pack don't say whether positions begin anew there.
        at = way.positions
        if at is not None:
            at = torch.where(own_mask, way.tokens.positions().view(own_mask.shape), at)
    has_mask = way.mask is not None
    return Context(mask=own_mask, positions=at, earlier=earlier, sequences=sequences, has_mask=has_mask), starts


def own_sequence(numbers: Tensor) -> Tensor:
    """Whether two tokens of a row are of one sequence, bool [b, t, t]."""
    return numbers[:, :, None] == numbers[:, None, :]


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
