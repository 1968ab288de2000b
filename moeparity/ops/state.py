"""What an op hands from one step of a schedule to the next: a recurrent state, the last inputs of a convolution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from moeparity.ops.attribute import Value, site, stored
from moeparity.ops.memory import Shapes

STEP: Final = "step_state"
"""The site at which a step takes over the state that the step before it left."""

BLOCK: Final = "block_state"
"""The site at which a prefix cache stores a state, at the end of a block of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What an op keeps of all earlier tokens of a sequence: one tensor for each sequence.

    The kernel of such an op takes `state`, [B, ...] (None: nothing came before), and `ends`: after how many of its
    tokens a state is asked for. It gives one such tensor for each of `ends`, unrounded, behind its outputs. Whoever
    takes a state over rounds it, at `STEP` and, out of a prefix cache, at `BLOCK` before that: the op has both sites.

    says: what it holds, and the shape for one sequence.
    numbers: how many numbers it has for one sequence, from the shapes of the weights, the parameters and the widths of
        the inputs.
    """

    says: str
    numbers: Callable[[Shapes, Mapping[str, Any], Sequence[int]], int]


BORDERS: Final = (
    stored(
        STEP,
        "the state that a step takes over from the step before is stored in this dtype in between; `unrounded`: in the "
        "one that it was computed in",
    ),
    stored(
        BLOCK,
        "the state at the end of a block of a prefix cache is stored in this dtype for the sequences that begin with "
        "the same tokens; `unrounded`: as the next step takes it over",
    ),
)
"""The attributes of every op that has a state."""

INNER: Final = replace(
    site("inner", "what is read is widened to this dtype, and all of the recurrence computed in it", default="fp32"),
    values=("fp32", "fp64"),
)
"""The dtype of a recurrence that is computed wider than what it reads."""


def sees_steps(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """`sees_rows` of every op that has a state: where its steps begin and end decides where a state is rounded, so no
    two are ever computed as one.
    """
    return True
