"""Embedding look-up, sums and products of two streams, and splitting a value into named parts."""

from __future__ import annotations

from moeparity.ops.declaration import Op, Parameter, WeightPort, site

EMBEDDING = Op(
    name="embedding",
    says="Row of the table for every token id: [B, T] int64 -> [B, T, hidden].",
    inputs=("tokens",),
    weights=(WeightPort(name="weight", says="[vocab, hidden]"),),
    attributes=(site("output", "the row is rounded to this dtype"),),
    kernel="elementwise:embedding",
    source="torch.nn.functional.embedding",
)

ADD = Op(
    name="add",
    says="a + b, as in a residual stream.",
    inputs=("a", "b"),
    attributes=(site("output", "the sum is rounded to this dtype", edge=True),),
    kernel="elementwise:add",
    source="transformers 5.17.0 and 5.23.0, *DecoderLayer.forward",
)

SWIGLU = Op(
    name="swiglu",
    says="silu(gate) * up of a dense MLP or a shared expert.",
    inputs=("gate", "up"),
    attributes=(
        site("activation", "silu(gate) is rounded to this dtype before it meets up; fp32 is the one-rounding SwiGLU"),
        site("output", "the product is rounded to this dtype", edge=True),
    ),
    kernel="elementwise:swiglu",
    source="transformers 5.17.0 and 5.23.0, Qwen3MoeMLP.forward",
)

SIGMOID_GATE = Op(
    name="sigmoid_gate",
    says="sigmoid(gate) * x: gate [B, T, 1], x [B, T, hidden] -> [B, T, hidden], how much of a shared expert is used.",
    inputs=("gate", "x"),
    attributes=(
        site("activation", "sigmoid(gate), computed in fp32 (in fp64 for fp64), is rounded to this dtype"),
        site("output", "the product is rounded to this dtype", edge=True),
    ),
    kernel="elementwise:sigmoid_gate",
    source="transformers 5.17.0 and 5.23.0, Qwen2MoeSparseMoeBlock.forward",
)

CLAMP = Op(
    name="clamp",
    says="x held between -limit and limit.",
    inputs=("x",),
    parameters=(Parameter(name="limit", type=float, says="largest magnitude that is left as it is"),),
    attributes=(site("output", "x and the limit are rounded to this dtype first"),),
    kernel="elementwise:clamp",
    source="transformers 5.17.0 and 5.23.0, OlmoeAttention.forward, clip_qkv",
)

SPLIT = Op(
    name="split",
    says="Cuts the last axis into named parts, as views.",
    inputs=("x",),
    outputs=(),
    outputs_from="parts",
    parameters=(Parameter(name="parts", type=dict, says="part name: width, in order"),),
    kernel="elementwise:split",
    source="torch.split",
)
