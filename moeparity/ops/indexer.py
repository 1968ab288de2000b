"""The indexer of DeepSeek's sparse attention: which earlier tokens a query attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Cut, Op, Parameter, Role, Tokens, always
from moeparity.ops.memory import INTEGER, Call, Memory, Shapes
from moeparity.ops.router import TIE_BREAK


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """Its GEMMs have as many columns as a step has keys, of later tokens too, and so has the ranking."""
    return True


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [params["top_k"]]


def _scratch(call: Call) -> int:
    """Queries and keys in the dtype of the scores, keys again for each query, scores of each head, and their sum."""
    width = call.inputs[1]
    return call.wide * call.tokens * (2 * call.inputs[0] + call.length * (width + 3 * call.inputs[2] + 6))


INDEXER = Op(
    name="indexer",
    says="The keys that each query attends to, by index scores sum_h weight_h * relu(q_h @ k * D^-0.5) * H^-0.5: "
    "q [B, H, T, D], k [B, 1, T, D], weights [B, T, H], mask [B, T] -> places of keys int64 [B, T, top_k], best first; "
    "-1 where a query sees fewer.",
    inputs=("q", "k", "weights", "mask"),
    parameters=(
        Parameter(name="top_k", type=int, says="keys that a query attends to at most"),
        Parameter(
            name="relu",
            type=bool,
            required=False,
            default=True,
            says="a head whose score of a key is negative counts as 0",
        ),
    ),
    attributes=(
        site("scores", "q @ k.T, its scaling and relu are each rounded to this dtype", default="fp32"),
        site("weights", "a head's weight times H^-0.5 is rounded to this dtype", default="fp32"),
        site("total", "the sum over heads is rounded to this dtype", default="fp32"),
        TIE_BREAK,
        Attribute(
            name="allocated",
            kind="form",
            default=0,
            least=0,
            says="places of a static cache, ranked among them those that no token has filled, which are never chosen "
            "before a key that a query sees; 0: as many as there are keys",
        ),
    ),
    tokens=Tokens(
        sees_rows=_sees_rows, mixes=True, history=("k", "mask"), copies_history=always, input_axes={"q": 2, "k": 2}
    ),
    role=Role(contracted=(("q", "k"),), picks=True),
    cut=Cut(joins_heads=True),
    memory=Memory(widths=_widths, output_bytes=lambda _: [INTEGER], scratch=_scratch),
    kernel="indexer:indexer",
    source="transformers 5.23.0, models/deepseek_v32/modeling_deepseek_v32.py DeepseekV32Indexer.forward",
)
