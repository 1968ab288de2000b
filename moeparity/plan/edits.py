"""What a fault makes of one node: where parts of its weights come from, and what becomes of what goes in and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verb = Literal["times", "filled", "transposed", "halves", "pairs"]
"""What becomes of a tensor: multiplied, in its own dtype; filled with one number; read as if its transpose lay there;
of a tensor in which gate and up of an expert lie beside each other, or alternate, these exchanged.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A weight of a node, or one expert's part of it, as it lies in a checkpoint, and what becomes of it.

    expert: which part of a tensor that holds every expert's (None: the whole tensor). checkpoint: the folder of another
    checkpoint; empty: the node's own. edits: verbs, each with its number, in order.
    """

    name: str
    expert: int | None = None
    checkpoint: str = ""
    edits: tuple[tuple[Verb, float], ...] = ()


Before = Literal["of", "plus", "shifted", "filled"]
Effect = Literal["left_out", "twice"]
After = Literal["divided", "capacity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Something done to what a node reads, to its effect, or to its result.

    input `plus`, `shifted` (by `number` tokens), `filled` (with `number`, of a mask 0 or 1), `of` another port: before
    the kernel.
    effect `left_out`: what was read at `port` stands in place of the result; `twice`: the kernel once more, on its
    result in place of what was read at `port`.
    result `divided` by `number`; `capacity`: of a router, weights 0 for all but the first `number` tokens of an expert.
    """

    subject: Literal["input", "effect", "result"]
    verb: Before | Effect | After
    port: str = ""
    other_port: str = ""
    number: float = 0
