"""Embedding look-up, sums and products of two streams, and splitting a value into named parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.dtypes import FLOAT_NAMES, MODEL, UNROUNDED
from moeparity.numerics.orders import NATIVE
from moeparity.ops import measured
from moeparity.ops.attribute import LOGISTIC, SOFTPLUS, Attribute, Condition, Value, site
from moeparity.ops.combine import ADD as BESIDE
from moeparity.ops.declaration import (
    ChoiceElsewhere,
    Cut,
    Op,
    Parameter,
    Role,
    Tokens,
    WeightPort,
    row_by_row,
    sees_rows_by_sigmoid,
)
from moeparity.ops.memory import Call, Memory, Shapes
from moeparity.ops.placement import APART, BLOCKS, ENDS, GOES_ON, HANDS_ON, STAGE, SUM, TENSOR, cut


def _carried(pieces: int, values: Mapping[str, Value], params: Mapping[str, Any], inputs: Sequence[int]) -> int:
    return max(inputs)


def _columns(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return weights["weight"][1:]


def _as_second(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs[1:2]


def _part_widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    """Of an input that is cut into heads, the parts of all heads."""
    parts = params["parts"].values()
    return [part * inputs[0] // sum(parts) for part in parts]


def _part_bytes(call: Call) -> Sequence[int]:
    return [call.input_bytes[0]] * len(call.outputs)


def _all_columns(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return [sum(inputs)]


EMBEDDING = Op(
    name="embedding",
    says="Row of the table for every token id: [B, T] int64 -> [B, T, hidden].",
    inputs=("tokens",),
    weights=(WeightPort(name="weight", says="[vocab, hidden]"),),
    attributes=(site("output", "the row is rounded to this dtype"), TENSOR),
    tokens=Tokens(sees_rows=row_by_row),
    cut=Cut(pieces=cut),
    role=Role(family="embedding"),
    integers=("tokens",),
    memory=Memory(widths=_columns),
    kernel="elementwise:embedding",
    source="torch.nn.functional.embedding",
)

_LAST: Condition = {STAGE: (ENDS,)}


ADD = Op(
    name="add",
    says="a + b, as in a residual stream; of two values in partial sums, rank by rank.",
    inputs=("a", "b"),
    cut=Cut(partials=_carried, takes_partials=("a", "b")),
    attributes=(
        site("output", "the sum is rounded to this dtype", edge=True),
        Attribute(
            name=STAGE,
            kind="placement",
            default=GOES_ON,
            values=(GOES_ON, ENDS),
            says="whether a stage of a pipeline ends with this sum: what closes its last layer. No fused kernel "
            "reaches across the border, and who reads the sum behind it reads what was stored",
        ),
        Attribute(
            name=HANDS_ON,
            kind="placement",
            default=SUM,
            values=(SUM, APART),
            when=_LAST,
            says="what a stage sends to the next: the sum, or a and b apart, which the next one adds, in a kernel that "
            "it may be fused into",
        ),
        Attribute(
            name="border",
            kind="rounding",
            default=UNROUNDED,
            values=(UNROUNDED, MODEL, *FLOAT_NAMES),
            when=_LAST,
            says="what a stage sends is rounded to this dtype and back to its own; `unrounded`: it is sent as it is",
        ),
    ),
    tokens=Tokens(sees_rows=row_by_row),
    kernel="elementwise:add",
    source="transformers 5.17.0 and 5.23.0, *DecoderLayer.forward",
)

SHARED_ADD = Op(
    name="shared_add",
    says="routed + shared: the routed experts' sum and the shared expert's output; routed alone where the combine has "
    "added the other one.",
    inputs=("routed", "shared"),
    parameters=(Parameter(name="scale", type=float, required=False, default=1.0, says="routed_scaling_factor"),),
    attributes=(site("output", "the sum is rounded to this dtype"),),
    tokens=Tokens(sees_rows=row_by_row),
    choices_elsewhere={
        "shared": ChoiceElsewhere(port="routed", default=BESIDE),
        "scaling": ChoiceElsewhere(port="routed", default="weights"),
    },
    reads={"shared": ({"shared": (BESIDE,)},)},
    cut=Cut(partials=_carried, takes_partials=("routed", "shared")),
    kernel="elementwise:shared_add",
    source="transformers 5.17.0 and 5.23.0, DeepseekV3MoE.forward; sglang 0.5.23 _scale_routed_and_add_shared, read",
)

SWIGLU = Op(
    name="swiglu",
    says="silu(gate) * up of a dense MLP or a shared expert.",
    inputs=("gate", "up"),
    parameters=(
        Parameter(
            name="halves",
            type=bool,
            required=False,
            default=False,
            says="gate and up are the halves of one projection, whose rows lie apart in memory: torch's fp32 silu on "
            "CPU begins a vector anew with each",
        ),
    ),
    attributes=(
        site(
            "activation",
            "silu(gate) is rounded to this dtype before it meets up; fp32 is the one-rounding SwiGLU",
            measured=measured.SWIGLU,
        ),
        site("output", "the product is rounded to this dtype", edge=True),
        LOGISTIC,
        replace(TENSOR, says=f"{TENSOR.says}; torch's fp32 silu on CPU differs by where a value stands in its vector"),
        BLOCKS,
    ),
    tokens=Tokens(sees_rows=sees_rows_by_sigmoid),
    cut=Cut(pieces=cut),
    kernel="elementwise:swiglu",
    source="transformers 5.17.0 and 5.23.0, Qwen3MoeMLP.forward",
)

SILU = Op(
    name="silu",
    says="silu(x), of a projection that no other meets.",
    inputs=("x",),
    attributes=(site("output", "silu(x) is rounded to this dtype"), LOGISTIC),
    tokens=Tokens(sees_rows=sees_rows_by_sigmoid),
    kernel="elementwise:silu",
    source="transformers 5.23.0, MiniMaxLightningAttention.forward",
)

RELU2 = Op(
    name="relu2",
    says="relu(x)^2, of a dense MLP or a shared expert without a gate.",
    inputs=("x",),
    attributes=(site("output", "the square is rounded to this dtype"),),
    tokens=Tokens(sees_rows=row_by_row),
    kernel="elementwise:relu2",
    source="transformers 5.23.0, activations.py ReLUSquaredActivation",
)

SIGMOID, SOFTPLUS_OF, NONE = "sigmoid", "softplus", "none"
"""What is made of a gate."""


def _sees_gates(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """torch's own softplus depends on where a number stands too."""
    return sees_rows_by_sigmoid(values, params) or values.get(SOFTPLUS.name) == NATIVE


SIGMOID_GATE = Op(
    name="sigmoid_gate",
    says="sigmoid(gate) * x, or another function of it: gate [B, T, 1], [B, T, heads] or [B, T, hidden], perhaps in "
    "heads, x [B, T, hidden] -> [B, T, hidden], how much of a shared expert, or of an attention's output, is used.",
    inputs=("gate", "x"),
    cut=Cut(partials=_carried, takes_partials=("x",), joins_heads=True),
    parameters=(
        Parameter(
            name="function",
            type=str,
            required=False,
            default=SIGMOID,
            values=(SIGMOID, SOFTPLUS_OF, NONE),
            says="what is made of the gate first: its sigmoid, its softplus (Laguna), or nothing (LFM2)",
        ),
    ),
    attributes=(
        replace(
            site("activation", "the gate's function, computed in fp32 (in fp64 for fp64), is rounded to this dtype"),
            when_parameters={"function": (SIGMOID, SOFTPLUS_OF)},
        ),
        site("output", "the product is rounded to this dtype", edge=True),
        replace(LOGISTIC, when_parameters={"function": (SIGMOID,)}),
        replace(SOFTPLUS, when_parameters={"function": (SOFTPLUS_OF,)}),
    ),
    tokens=Tokens(sees_rows=_sees_gates),
    memory=Memory(widths=_as_second),
    kernel="elementwise:sigmoid_gate",
    source="transformers 5.17.0 and 5.23.0, Qwen2MoeSparseMoeBlock.forward; 5.23.0, Qwen3NextAttention.forward",
)

SCALE = Op(
    name="scale",
    says="x times a factor, or over a divisor, where a model multiplies its embedding, a residual branch or its logits "
    "by a number of config.json.",
    inputs=("x",),
    parameters=(
        Parameter(name="factor", type=float, required=False, default=1.0, says="what x is multiplied by"),
        Parameter(name="divisor", type=float, required=False, default=1.0, says="what x is divided by"),
    ),
    attributes=(site("output", "the product is rounded to this dtype"),),
    tokens=Tokens(sees_rows=row_by_row),
    cut=Cut(keeps_heads=True),
    kernel="elementwise:scale",
    source="transformers 5.23.0, forward of GraniteMoeModel, GraniteMoeDecoderLayer and GraniteMoeForCausalLM; "
    "MiMoV2FlashAttention.forward",
)

CLAMP = Op(
    name="clamp",
    says="x held between -limit and limit.",
    inputs=("x",),
    parameters=(Parameter(name="limit", type=float, says="largest magnitude that is left as it is"),),
    attributes=(site("output", "x and the limit are rounded to this dtype first"),),
    tokens=Tokens(sees_rows=row_by_row),
    cut=Cut(keeps_heads=True),
    kernel="elementwise:clamp",
    source="transformers 5.17.0 and 5.23.0, OlmoeAttention.forward, clip_qkv",
)

SPLIT = Op(
    name="split",
    says="Cuts the last axis into named parts, as views.",
    inputs=("x",),
    outputs=(),
    outputs_from="parts",
    parameters=(
        Parameter(name="parts", type=dict, says="part name: width, in order"),
        Parameter(
            name="heads", type=dict, required=False, says="part name: the heads into which it is cut, afterwards"
        ),
    ),
    tokens=Tokens(sees_rows=row_by_row),
    memory=Memory(widths=_part_widths, output_bytes=_part_bytes, scratch=lambda _: 0),
    kernel="elementwise:split",
    source="torch.split",
)

JOIN = Op(
    name="join",
    says="Puts values side by side along the last axis, each with its heads joined: [B, T, A], [B, T, B], .. -> "
    "[B, T, A + B + ..].",
    inputs=("a", "b", "c"),
    optional=("c",),
    tokens=Tokens(sees_rows=row_by_row),
    cut=Cut(joins_heads=True),
    memory=Memory(widths=_all_columns),
    kernel="elementwise:join",
    source="transformers 5.23.0, Qwen3NextGatedDeltaNet.forward",
)

MASK_PADDING = Op(
    name="mask_padding",
    says="x at real tokens, zeros at padding, which no mask hides from a recurrence: x [B, T, hidden], mask [B, T].",
    inputs=("x", "mask"),
    tokens=Tokens(sees_rows=row_by_row),
    kernel="elementwise:mask_padding",
    source="transformers 5.23.0, models/qwen3_next/modeling_qwen3_next.py apply_mask_to_padding_states",
)
