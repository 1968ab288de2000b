"""The short causal convolution before a recurrence: each channel by itself, over the last few tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from moeparity.numerics.orders import NATIVE
from moeparity.ops.attribute import LOGISTIC, Attribute, site, stored
from moeparity.ops.declaration import Op, Parameter, Tokens, WeightPort
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.state import BORDERS, State, sees_steps

TAPS, TAPS_FMA = "taps", "taps_fma"
SILU, NO_ACTIVATION = "silu", "none"

FURTHER: Final = ("second", "third")
"""The weights of channels behind those of `weight`."""

_ACTIVATED: Final = {"activation": (SILU,)}


def _window(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return inputs[0] * (weights["weight"][-1] - 1)


def _scratch(call: Call) -> int:
    """The window with the inputs behind it, products, sums and what the activation makes of them."""
    tokens = call.tokens + call.weights["weight"][-1]
    return 6 * call.wide * tokens * call.inputs[0]


SHORT_CONV = Op(
    name="short_conv",
    says="A causal depthwise convolution, and the activation behind it: [B, T, C] -> [B, T, C], output channel c at "
    "token t from input channel c at the last few tokens up to t; zeros stand before the first.",
    inputs=("x",),
    weights=(
        WeightPort(name="weight", says="[C, 1, taps], the last tap that of the token itself"),
        *(
            WeightPort(
                name=name,
                says="[.., 1, taps], that of the next channels, which have tensors of their own",
                required=False,
            )
            for name in FURTHER
        ),
        WeightPort(name="bias", says="[C]", required=False),
    ),
    parameters=(
        Parameter(
            name="activation",
            type=str,
            says="what is applied to the sum",
            required=False,
            default=SILU,
            values=(SILU, NO_ACTIVATION),
        ),
        Parameter(
            name="channels_first",
            type=bool,
            required=False,
            default=False,
            says="x is made of values that have tokens on their last axis (LFM2): of one token of one sequence it lies "
            "in memory as any other vector, and torch convolves it otherwise",
        ),
    ),
    attributes=(
        Attribute(
            name="form",
            kind="form",
            default=NATIVE,
            values=(NATIVE, TAPS, TAPS_FMA),
            says="torch's own convolution; or in fp32 tap by tap, the oldest first, after the bias where there is one, "
            "each product and each sum rounded, or both at once (fma)",
        ),
        stored(
            "product",
            "the product of an input and its tap: some Triton kernels multiply bf16 numbers as such",
            {"form": (TAPS,)},
        ),
        site("sum", "the sum is rounded to this dtype before the activation"),
        site("output", "the result is rounded to this dtype"),
        LOGISTIC,
        *BORDERS,
    ),
    tokens=Tokens(
        sees_rows=sees_steps,
        mixes=True,
        state=State(
            says="the inputs of the last tokens, one fewer than there are taps, [C, taps - 1]", numbers=_window
        ),
    ),
    memory=Memory(scratch=_scratch),
    kernel="short_conv:short_conv",
    source="transformers 5.23.0, models/qwen3_next/modeling_qwen3_next.py causal_conv1d_fn, causal_conv1d_update",
)
