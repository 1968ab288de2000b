"""The gated delta rule: a linear recurrence over the tokens of a sequence, token by token or in chunks of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from moeparity.ops.attribute import LOGISTIC, SOFTPLUS, Attribute, site
from moeparity.ops.declaration import Op, Parameter, Refusals, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import BORDERS, INNER, State, sees_steps

CHUNKS, TOKENS = "chunks", "tokens"
RSQRT, DIVIDE = "rsqrt", "divide"
TIMES, OVER = "times", "over"

_IN_CHUNKS: Final = {"form": (CHUNKS,)}


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[2:3]


def _state_numbers(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    """A key's width times a value's, for each head of the values."""
    return inputs[1] // int(params["key_heads"]) * inputs[2]


def _scratch(call: Call) -> int:
    """Keys, queries and values by head in fp32, several times over, and of chunks the matrices of all pairs in them."""
    heads, chunk = int(call.params["value_heads"]), int(call.active.get("chunk", 1))
    key_width = call.inputs[1] // int(call.params["key_heads"])
    padded = call.tokens + max(1, -(-call.tokens // call.length)) * (chunk - 1)
    pairs = 6 * heads * chunk * (key_width if call.params["channels"] else 1)
    return call.wide * padded * (10 * heads * key_width + 8 * call.inputs[2] + pairs)


def _misfit(params: Mapping[str, Any]) -> str | None:
    if params["value_heads"] % params["key_heads"]:
        return (
            f"value_heads is {params['value_heads']} and key_heads {params['key_heads']}; expected a multiple: each "
            "head of the keys serves as many heads of the values."
        )
    return None


GATED_DELTA = Op(
    name="gated_delta",
    says="The gated delta rule. Of each head of the values, S [Dk, Dv] = exp(g) S + k (beta (v - k exp(g) S)) token "
    "after token, and o = q S: q, k [B, T, Hk * Dk], v [B, T, Hv * Dv], and what makes the decay g and the step beta "
    "of each head, a, b [B, T, Hv] -> o [B, T, Hv * Dv]. g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b). "
    "With `channels` each row of S has a decay of its own, a [B, T, Hv * Dk] (Kimi Delta Attention). With a `bound` "
    "the decay lies above it: g = bound sigmoid(exp(a_log) (a + dt_bias)) (Ling 3.0).",
    inputs=("q", "k", "v", "a", "b"),
    weights=(
        WeightPort(name="a_log", says="as many numbers as there are heads, Hv"),
        WeightPort(name="dt_bias", says="[Hv], or of channels [Hv * Dk]", initial=1.0),
    ),
    parameters=(
        Parameter(name="key_heads", type=int, says="heads of queries and keys, Hk"),
        Parameter(name="value_heads", type=int, says="heads of values, Hv: a multiple of Hk"),
        Parameter(
            name="eps",
            type=(float, type(None)),
            says="queries and keys are divided by their lengths, with this under the root; null: they are not",
            required=False,
            default=1e-6,
        ),
        Parameter(
            name="bound",
            type=(float, type(None)),
            required=False,
            default=None,
            says="the number above which g lies, below 0; null: g is made by a softplus, which has no bound",
        ),
        Parameter(
            name="channels",
            type=bool,
            required=False,
            default=False,
            says="a decay for each channel of the keys; then chunks are solved row after row, and pairs of tokens are "
            "added up over the channels, each product with its decay",
        ),
    ),
    attributes=(
        Attribute(
            name="form",
            kind="form",
            default=CHUNKS,
            values=(CHUNKS, TOKENS),
            says="within chunks of tokens by GEMMs and a triangular solve, and chunk after chunk; or token after token",
        ),
        Attribute(
            name="chunk",
            kind="form",
            default=64,
            least=1,
            usual=(64,),
            when=_IN_CHUNKS,
            says="tokens of a chunk, counted from a step's first token on; zeros fill the last one",
        ),
        Attribute(
            name="length",
            kind="form",
            default=RSQRT,
            values=(RSQRT, DIVIDE),
            parameter="eps",
            says="queries and keys times rsqrt of their summed squares, or over the root of these",
        ),
        Attribute(
            name="scale",
            kind="form",
            default=TIMES,
            values=(TIMES, OVER),
            says="queries times Dk ** -0.5, or over Dk ** 0.5",
        ),
        INNER,
        SOFTPLUS,
        site("beta", "beta is rounded to this dtype"),
        site("decay", "g, computed in fp32, is rounded to this dtype", default="fp32"),
        site("chunk_state", "the state between the chunks of a step", default="fp32", when=_IN_CHUNKS),
        site("output", "the result is rounded to this dtype"),
        LOGISTIC,
        *BORDERS,
    ),
    tokens=Tokens(sees_rows=sees_steps, mixes=True, state=State(says="S, [Hv, Dk, Dv]", numbers=_state_numbers)),
    refusals=Refusals(parameters=_misfit),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="gated_delta:gated_delta",
    source="transformers 5.23.0, models/qwen3_next/modeling_qwen3_next.py torch_chunk_gated_delta_rule, "
    "torch_recurrent_gated_delta_rule and Qwen3NextGatedDeltaNet.forward; models/kimi_linear/modeling_kimi_linear.py "
    "chunk_kimi_delta_attention, recurrent_kimi_delta_attention and KimiLinearForgetGate.forward; "
    "models/bailing_hybrid/modeling_bailing_hybrid.py BailingHybridForgetGate.forward",
)
