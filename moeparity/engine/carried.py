"""What one kernel call takes over from earlier steps, and where it is asked for a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from moeparity.numerics import rounding
from moeparity.numerics.dtypes import UNROUNDED
from moeparity.ops.state import BLOCK, STEP
from moeparity.plan.schedule.borders import End


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """The state of one sequence at an end: the tensor, as it was computed, and an identity among the states there."""

    tensor: torch.Tensor
    end: End
    number: int


@dataclass(frozen=True, slots=True)
class Carried:
    """What a call takes over from earlier steps, and what it is to hand on.

    rows: by sequence of the call, the state before its first token (None: it begins anew). cached: of each, whether it
    comes out of a prefix cache. ends: by the number of the call's tokens after which a state is asked for, the ends
    that are meant: in a pack of one sequence, else of several.
    """

    rows: tuple[Row | None, ...]
    cached: tuple[bool, ...]
    ends: Mapping[int, Sequence[End]]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal where equal states are taken over."""
        rows = (None if row is None else (row.end, row.number) for row in self.rows)
        return (*zip(rows, self.cached, strict=True),)

    def state(self, at: Mapping[str, Any]) -> torch.Tensor | None:
        """The state that the kernel is given, [B, ...], rounded as it was stored; None if all begin anew."""
        states = [
            None if row is None else _stored(row.tensor, (STEP, BLOCK) if is_cached else (STEP,), at)
            for row, is_cached in zip(self.rows, self.cached, strict=True)
        ]
        present = [state for state in states if state is not None]
        if not present:
            return None
        # Choices by phase may leave states in several dtypes.
        dtype = reduce(torch.promote_types, (state.dtype for state in present))
        zeros = torch.zeros_like(present[0])
        return torch.stack([(zeros if state is None else state).to(dtype) for state in states])


def _stored(state: torch.Tensor, sites: Sequence[str], at: Mapping[str, Any]) -> torch.Tensor:
    """A state after it was stored in the dtypes of these sites, in its own dtype."""
    for dtype in (at[site] for site in sites if at[site] != UNROUNDED):
        state = rounding.rounded(rounding.rounded(state, dtype), state.dtype)
    return state
