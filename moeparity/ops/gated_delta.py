"""The gated delta rule: a linear recurrence over the tokens of a sequence, token by token or in chunks of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from moeparity.numerics.orders import NATIVE
from moeparity.ops.attribute import EXACT, LOGISTIC, SOFTPLUS, TRITON, Attribute, Condition, site, stored, sum_order
from moeparity.ops.declaration import Op, Parameter, Refusals, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import BORDERS, INNER, State, sees_steps

CHUNKS, TOKENS = "chunks", "tokens"
RSQRT, DIVIDE, RECIPROCAL = "rsqrt", "divide", "reciprocal"
TIMES, OVER, BEHIND = "times", "over", "behind"
TRIANGULAR, ROWS, BLOCKS = "triangular", "rows", "blocks"
KEYS, SCORES, DECAYED = "keys", "scores", "decayed"
QUERIES, RESULT, VALUES = "queries", "result", "values"
FP32, TF32 = "fp32", "tf32"
NO_CONTRACTION, FMA = "none", "fma"
SEQUENTIAL = "sequential"
BLOCK = 16
"""Rows and columns of a block that `solve: blocks` solves by rows."""

_IN_CHUNKS: Final = {"form": (CHUNKS,)}
_INVERTED: Final = {**_IN_CHUNKS, "solve": (ROWS, BLOCKS)}


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


def _stored(name: str, says: str, when: Condition, **only: Any) -> Attribute:
    """A site of kernels for one decay a head."""
    return stored(name, says, when, when_parameters={"channels": (False,)}, **only)


def _order(name: str, says: str, **only: Any) -> Attribute:
    return replace(sum_order(name, says), when_parameters={"channels": (False,)}, **only)


def _form(name: str, values: tuple[str, ...], when: Condition, says: str) -> Attribute:
    """Which of several formulas a kernel for chunks has, the first of them transformers'."""
    return Attribute(
        name=name, kind="form", default=values[0], values=values, when=when, says=says,
        when_parameters={"channels": (False,)},
    )  # fmt: skip


_CHUNKED: Final = (
    _form(
        "decay_sums",
        (NATIVE, SEQUENTIAL),
        _IN_CHUNKS,
        "the decays of a chunk added up: torch's cumsum, which on CPU adds in fp64 and rounds the sums; one by one",
    ),
    _form(
        "beta_on",
        (KEYS, SCORES, DECAYED),
        _IN_CHUNKS,
        "what beta meets first in the triangular system (beta k) k^T, times the decay between two tokens: the keys, "
        "their scores k k^T, or the scores once they have decayed",
    ),
    _stored("system", "the entries of the triangular system", _IN_CHUNKS),
    _form(
        "solve",
        (TRIANGULAR, ROWS, BLOCKS),
        _IN_CHUNKS,
        "the triangular system is solved for each side by torch; or inverted row after row, and multiplied; or "
        f"inverted so in blocks of {BLOCK} on the diagonal, and the others made of these by products "
        "(flash-linear-attention)",
    ),
    _form(
        "merge",
        (FP32, TF32),
        {**_IN_CHUNKS, "solve": (BLOCKS,)},
        "what the products that make the other blocks read: fp32, or rounded to TF32",
    ),
    _stored(
        "inverse",
        "the inverse of the triangular system; by rows each before the next is made of it",
        _INVERTED,
    ),
    _stored("learnt", "beta v, and beta k with the decay since the chunk began, which the inverse meets", _IN_CHUNKS),
    _stored("new_values", "the values that are new: what the inverse makes of beta v", _IN_CHUNKS),
    _stored("state_keys", "the keys by which the state is read: what the inverse makes of beta k", _IN_CHUNKS),
    _stored("read_state", "the state, as the products with keys and queries read it", _IN_CHUNKS),
    _stored("changes", "the new values less what the state has of them", _IN_CHUNKS),
    _form(
        "decay_on",
        (QUERIES, RESULT),
        _IN_CHUNKS,
        "what meets the decay since the chunk began: the queries that read the state, or what they read",
    ),
    _stored("queries", "the queries with that decay", {**_IN_CHUNKS, "decay_on": (QUERIES,)}),
    _stored("pairs", "the scores of queries and keys of a chunk with the decay between them", _IN_CHUNKS),
    _form(
        "carry_on",
        (KEYS, VALUES),
        _IN_CHUNKS,
        "what meets the decay up to the end of the chunk before their product is added to the state: the keys, or the "
        "changes before these are rounded",
    ),
    _stored("carried", "the keys, or the changes, with that decay", _IN_CHUNKS),
)
"""What kernels for chunks do each in a way of its own, where a head has one decay."""

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
            values=(RSQRT, DIVIDE, RECIPROCAL),
            parameter="eps",
            says="queries and keys times rsqrt of their summed squares, over the root of these, or times 1 over it",
        ),
        Attribute(
            name="scale",
            kind="form",
            default=TIMES,
            values=(TIMES, OVER, BEHIND),
            says="queries times Dk ** -0.5, or over Dk ** 0.5; or what they read times Dk ** -0.5, by chunks each of "
            "its two parts",
        ),
        _stored("normalized", "queries and keys over their lengths, and scaled where they are", {}, parameter="eps"),
        _order("squares_order", "the squares whose sum is a length", parameter="eps"),
        _order(
            "order",
            "the sums over a key's channels and over the tokens of a chunk, by chunks the products of matrices, by "
            "tokens what the state has of a key and of a query",
        ),
        INNER,
        Attribute(
            name="functions",
            kind="form",
            default=NATIVE,
            values=(NATIVE, EXACT, TRITON),
            says="exp and log of what decays, and roots of lengths: torch's own, correctly rounded, or Triton's on an "
            "H200, with its quotient",
        ),
        SOFTPLUS,
        Attribute(
            name="contraction",
            kind="form",
            default=NO_CONTRACTION,
            values=(NO_CONTRACTION, FMA),
            when={"form": (TOKENS,)},
            when_parameters={"channels": (False,)},
            says="what a token adds to the state: its product is rounded, and the sum of both; or the sum alone (fma)",
        ),
        site("beta", "beta is rounded to this dtype"),
        site("decay", "g, computed in fp32, is rounded to this dtype", default="fp32"),
        site("chunk_state", "the state between the chunks of a step", default="fp32", when=_IN_CHUNKS),
        *_CHUNKED,
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
    "models/bailing_hybrid/modeling_bailing_hybrid.py BailingHybridForgetGate.forward; of chunks' other forms "
    "flash-linear-attention as in vLLM 0.33.0, third_party/flash_linear_attention/ops",
)
