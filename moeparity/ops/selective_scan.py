"""The selective scan of Mamba 1: a linear recurrence whose state decays by a number for each of its entries, token by
token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from moeparity.ops.attribute import SOFTPLUS, Attribute, site
from moeparity.ops.declaration import Op, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import BORDERS, INNER, State, sees_steps

STATE, ZEROS = "state", "zeros"

_SOURCE: Final = "transformers 5.23.0, models/jamba/modeling_jamba.py"


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[:1]


def _state_numbers(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return prod(weights["a_log"])


def _scratch(call: Call) -> int:
    """Decays and increments of the whole state at every token, and x, dt and sums several times over."""
    entries = prod(call.weights["a_log"])
    return call.wide * (call.tokens * (5 * entries + 8 * call.inputs[0]) + 4 * entries * max(1, call.tokens))


SELECTIVE_SCAN = Op(
    name="selective_scan",
    says="The selective scan of Mamba 1. Of each channel, S [N] = exp(dt A) S + (dt B) x token after token, and "
    "o = S C + D x: x [B, T, I], b, c [B, T, N], dt [B, T, I] -> o [B, T, I]. A = -exp(a_log), "
    "dt = softplus(dt + dt_bias).",
    inputs=("x", "b", "c", "dt"),
    weights=(
        WeightPort(name="a_log", says="[I, N]"),
        WeightPort(name="dt_bias", says="[I]", initial=0.0),
        WeightPort(name="d", says="[I], what of x is added to the result", initial=1.0),
    ),
    attributes=(
        Attribute(
            name="start",
            kind="semantics",
            default=STATE,
            values=(STATE, ZEROS),
            says="a step begins from the state that the step before it left; or from zeros, whatever came before, as a "
            f"step of several tokens does in {_SOURCE} mamba_selective_scan",
        ),
        SOFTPLUS,
        site("dt", "dt + dt_bias, and its softplus, are rounded to this dtype"),
        INNER,
        site("read", "the state and C before they meet, and what comes of it, are rounded to this dtype"),
        site("skip", "D x is rounded to this dtype before it is added"),
        site("output", "the sum with D x is rounded to this dtype"),
        *BORDERS,
    ),
    tokens=Tokens(sees_rows=sees_steps, mixes=True, state=State(says="S, [I, N]", numbers=_state_numbers)),
    memory=Memory(widths=_widths, scratch=_scratch),
    kernel="selective_scan:selective_scan",
    source=f"{_SOURCE} mamba_selective_scan, mamba_selective_state_update and JambaMambaMixer.forward",
)
