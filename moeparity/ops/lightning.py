"""Lightning attention: a linear recurrence whose state only decays, token by token or in blocks of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from moeparity.ops.attribute import Attribute, site
from moeparity.ops.declaration import Op, Parameter, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import BORDERS, State, sees_steps

BLOCKS, TOKENS = "blocks", "tokens"
_IN_BLOCKS: Final = {"form": (BLOCKS,)}


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [inputs[0] // 3]


def _state_numbers(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    """The square of a head's width, for each head."""
    heads = int(params["heads"])
    return heads * (inputs[0] // (3 * heads)) ** 2


def _scratch(call: Call) -> int:
    """Queries, keys and values by head, several times over, and of a block the products of all pairs in it."""
    heads, block = int(call.params["heads"]), call.weights["diagonal_decay"][-1]
    return call.wide * call.tokens * (4 * call.inputs[0] + 3 * heads * block)


LIGHTNING = Op(
    name="lightning",
    says="Lightning attention. Of each head, S [D, D] = exp(-slope) S + k v token after token, and o = q S: qkv [B, T, "
    "H * 3 D], of each head q, k and v side by side -> o [B, T, H * D].",
    inputs=("qkv",),
    weights=(
        WeightPort(name="slope", says="[H, 1, 1]"),
        WeightPort(name="query_decay", says="[H, block, 1], exp(-slope i) of the token i of a block, from 1 on"),
        WeightPort(name="key_decay", says="[H, block, 1], exp(-slope (block - i))"),
        WeightPort(name="diagonal_decay", says="[1, H, block, block], exp(-slope (i - j)), 0 where j is later"),
    ),
    parameters=(Parameter(name="heads", type=int, says="how many heads there are, H"),),
    attributes=(
        Attribute(
            name="form",
            kind="form",
            default=TOKENS,
            values=(BLOCKS, TOKENS),
            says="within blocks of tokens by GEMMs, with the decays that the checkpoint has, and block after block; or "
            "token after token, with exp(-slope)",
        ),
        site("inner", "everything that is read, and each product, sum and exponential of it, is rounded to this dtype"),
        site("block_sum", "the state between the blocks of a step", when=_IN_BLOCKS),
        site("output", "the result is rounded to this dtype"),
        *BORDERS,
    ),
    tokens=Tokens(sees_rows=sees_steps, mixes=True, state=State(says="S, [H, D, D]", numbers=_state_numbers)),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="lightning:lightning",
    source="transformers 5.23.0, models/minimax/modeling_minimax.py MiniMaxLightningAttention.forward",
)
