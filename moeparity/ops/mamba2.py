"""The scan of Mamba 2: a linear recurrence whose state decays by one number for each head, token by token or in chunks
of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from moeparity.ops.attribute import SOFTPLUS, Attribute, site
from moeparity.ops.declaration import Op, Parameter, Refusals, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import BORDERS, INNER, State, sees_steps

CHUNKS, TOKENS = "chunks", "tokens"
CONFIG, NO_FLOOR = "config", "none"

_IN_CHUNKS: Final = {"form": (CHUNKS,)}
_BY_TOKEN: Final = {"form": (TOKENS,)}


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[:1]


def _state_numbers(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    """A head's channels times the width of B, for each head."""
    return inputs[0] * (inputs[1] // int(params["groups"]))


def _scratch(call: Call) -> int:
    """By head x, B and C and what is made of them, several times over, of chunks the products of all pairs in them and
    a state for each; of tokens all of a state several times over.
    """
    heads, groups, chunk = int(call.params["heads"]), int(call.params["groups"]), call.active.get("chunk", 1)
    chunk = int(call.params["chunk"] if chunk == CONFIG else chunk)
    sequences = max(1, call.tokens // call.length)
    width, state = call.inputs[1] // groups, call.inputs[0] * (call.inputs[1] // groups)
    padded = call.tokens + sequences * (chunk - 1)
    of_tokens = padded * (10 * call.inputs[0] + 8 * heads * width + 6 * heads * chunk)
    return call.wide * (of_tokens + 6 * state * (padded // chunk + 2 * sequences))


def _misfit(params: Mapping[str, Any]) -> str | None:
    if params["heads"] % params["groups"]:
        return (
            f"heads is {params['heads']} and groups {params['groups']}; expected a multiple: the heads of a group "
            "share B and C."
        )
    return None


MAMBA2 = Op(
    name="mamba2",
    says="The scan of Mamba 2 (state space duality). Of each head, S [P, N] = exp(dt A) S + (dt x) B token after "
    "token, and o = S C + D x: x [B, T, H * P], b, c [B, T, G * N] of groups, dt [B, T, H] -> o [B, T, H * P]. "
    "A = -exp(a_log), dt = softplus(dt + dt_bias).",
    inputs=("x", "b", "c", "dt"),
    weights=(
        WeightPort(name="a_log", says="[H]"),
        WeightPort(name="dt_bias", says="[H]", initial=1.0),
        WeightPort(name="d", says="[H], what of x is added to the result", initial=1.0),
    ),
    parameters=(
        Parameter(name="heads", type=int, says="how many heads there are, H"),
        Parameter(name="groups", type=int, says="how many groups of heads, G, share B and C: a divisor of H"),
        Parameter(name="chunk", type=int, says="tokens of a chunk, as config.json has it"),
        Parameter(name="floor", type=float, required=False, default=0.0, says="the least dt of config.json"),
    ),
    attributes=(
        Attribute(
            name="form",
            kind="form",
            default=CHUNKS,
            values=(CHUNKS, TOKENS),
            says="within chunks of tokens by GEMMs, and the states between the chunks by another one; or token after "
            "token",
        ),
        Attribute(
            name="chunk",
            kind="form",
            default=CONFIG,
            values=(CONFIG,),
            least=1,
            usual=(64, 128, 256),
            when=_IN_CHUNKS,
            says="tokens of a chunk, counted from a step's first token on; zeros fill the last one; `config`: as many "
            "as config.json says",
        ),
        Attribute(
            name="floor",
            kind="semantics",
            default=CONFIG,
            values=(CONFIG, NO_FLOOR),
            parameter="floor",
            says="whether dt is at least the number that config.json has",
        ),
        SOFTPLUS,
        site("dt", "dt + dt_bias, and its softplus, are rounded to this dtype"),
        INNER,
        site("chunk_state", "the state between the chunks of a step", default="fp32", when=_IN_CHUNKS),
        site("increment", "dt B, and its product with x, are each rounded to this dtype", when=_BY_TOKEN),
        site(
            "read", "the state and C before they meet, and what comes of it, are rounded to this dtype", when=_BY_TOKEN
        ),
        site("skip", "D x is rounded to this dtype before it is added"),
        site("output", "the sum with D x is rounded to this dtype"),
        *BORDERS,
    ),
    tokens=Tokens(sees_rows=sees_steps, mixes=True, state=State(says="S, [H, P, N]", numbers=_state_numbers)),
    refusals=Refusals(parameters=_misfit),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="mamba2:mamba2",
    source="transformers 5.23.0, models/granitemoehybrid/modeling_granitemoehybrid.py mamba2_chunk_scan, "
    "mamba2_selective_state_update and GraniteMoeHybridMambaLayer.forward; models/nemotron_h/modeling_nemotron_h.py",
)
