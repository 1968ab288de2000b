"""What a fault changes of one node: which tensors its weights come from, and what is done to its inputs and result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verb = Literal["times", "filled", "transposed", "fp8", "halves", "row_halves", "pairs"]
"""What is done to a tensor. `times`: multiplied, in its own dtype. `filled`: with one number. `transposed`: read as if
its transpose were stored. `fp8`: rounded to fp8_e4m3 with a scale for each block of so many rows and columns (0: one
for all), and multiplied out again. `halves`, `row_halves`, `pairs`: gate and up exchanged, in a tensor that holds them
one behind the other in its columns (halves) or rows (row_halves), or alternating (pairs).
"""


ScaleVerb = Literal[
    "transposed", "shifted", "twice", "inverted", "missing", "blocks_twice", "blocks_inverted", "tensor_inverted",
    "tensor_missing", "times", "of", "checkpoint", "block",
]  # fmt: skip
"""What is done to the scales of a quantised weight. `transposed`: read as if their transpose were stored. `shifted`:
each block has those of the next. `twice`: applied once more. `inverted`: divided by. `missing`: not applied.
`blocks_twice`, `blocks_inverted`: those of blocks alone, beside a scale of the tensor; `tensor_inverted`,
`tensor_missing`: the latter alone; nothing, where there is none. `times`: multiplied by a number. `of`: those of
another tensor. `checkpoint`: those of another checkpoint. `block`: taken for those of blocks or groups of another size.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tensor of a checkpoint, or one expert's part of it, that a weight is made of, and what is done to it.

    expert: which part of a tensor that holds all experts (None: the whole tensor). checkpoint: the folder of another
    checkpoint; empty: the node's own. edits: verbs, each with its number, in order. amax: the folder of the checkpoint
    whose largest numbers make the scales of `fp8`; empty: its own. scales: what is done to its scales when it is read,
    each with a tensor's name, a folder, a factor or a size; nothing, if it is not quantised.
    """

    name: str
    expert: int | None = None
    checkpoint: str = ""
    edits: tuple[tuple[Verb, float], ...] = ()
    amax: str = ""
    scales: tuple[tuple[ScaleVerb, str | float], ...] = ()

    @property
    def scales_checkpoint(self) -> str:
        """The folder of the checkpoint whose scales it has; empty: that of its codes."""
        return next((str(value) for verb, value in self.scales if verb == "checkpoint"), "")


Before = Literal["of", "plus", "shifted", "filled", "opened"]
Effect = Literal["left_out", "twice"]
After = Literal["divided", "capacity", "experts"]
Border = Literal["unreset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One way in which a fault makes a node compute something else. subject: what is changed; verb: how.

    input: the kernel gets another tensor at `port`. `plus`: with `number` added; `shifted`: a mask [B, T] moved by
        `number` tokens; `filled`: a mask of nothing but `number`, 0 or 1; `opened`: the mask [B, T, T] of a pack, so
        filled; `of`: the tensor that the kernel gets at `other_port`.
    effect: the kernel does not run, and the result is the input at `port` (`left_out`); or it runs a second time, with
        its own result there (`twice`).
    result: it is `divided` by `number`. Of a router, weights become 0: of all but an expert's first `number` tokens
        (`capacity`), or of all but a token's `number` largest (`experts`).
    state: a sequence begins with the state that another sequence left behind (`unreset`).
    """

    subject: Literal["input", "effect", "result", "state"]
    verb: Before | Effect | After | Border
    port: str = ""
    other_port: str = ""
    number: float = 0
