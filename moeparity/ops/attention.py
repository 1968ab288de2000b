"""Causal attention: `attention` over projected heads, `mla` over DeepSeek's compressed latent."""

from __future__ import annotations

from moeparity.ops.declaration import Attribute, Op, Parameter, WeightPort, site

_EAGER = {"implementation": ("eager",)}
_ATTRIBUTES = (
    Attribute(
        name="implementation",
        kind="form",
        default="eager",
        values=("eager", "sdpa"),
        says="matmul, softmax, matmul with every result stored; or torch's scaled_dot_product_attention, whose inner "
        "order and roundings are the kernel's own",
    ),
    site("scores", "q @ k.T, its scaling and the mask addition are each rounded to this dtype", when=_EAGER),
    site(
        "probabilities",
        "the softmax, in fp32 (fp64 where this or the scores are), is rounded to this dtype before it meets v",
        when=_EAGER,
    ),
    site("output", "probabilities @ v is rounded to this dtype"),
)

ATTENTION = Op(
    name="attention",
    says="Causal grouped-query attention: q [B, H, T, D], k [B, G, T, D], v [B, T, G, D], mask [B, T] bool "
    "-> [B, T, H * D].",
    inputs=("q", "k", "v", "mask"),
    parameters=(
        Parameter(
            name="window",
            type=int,
            required=False,
            says="sliding window: the tokens a query sees, itself included; null: all before it",
        ),
    ),
    attributes=(
        *_ATTRIBUTES,
        Attribute(
            name="kv_layout",
            kind="form",
            default="projected",
            values=("projected", "cached"),
            says="keys and values as views of their projections (transformers with use_cache=False), or contiguous, as "
            "a filled key/value cache leaves them; the layout picks another fp32 GEMM on CPU",
        ),
    ),
    kernel="attention:attention",
    source="transformers 5.17.0 and 5.23.0, eager_attention_forward; integrations/sdpa_attention.py, masking_utils.py",
)

MLA = Op(
    name="mla",
    says="Multi-head latent attention, expanded: q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, T, L], "
    "k_rope [B, 1, T, R], mask [B, T] -> [B, T, H * V].",
    inputs=("q_nope", "q_rope", "latent", "k_rope", "mask"),
    weights=(WeightPort(name="kv_b", says="[H * (N + V), L], expands the latent into keys and values"),),
    parameters=(
        Parameter(name="heads", type=int, says="number of heads H"),
        Parameter(name="value_dim", type=int, says="width V of one head's value"),
        Parameter(name="rope", type=dict, says="rope_parameters: yarn's mscale_all_dim enters the softmax scale"),
    ),
    attributes=(site("kv_b", "inputs and result of the GEMM that expands the latent"), *_ATTRIBUTES),
    kernel="attention:mla",
    source="transformers 5.17.0 and 5.23.0, DeepseekV3Attention.forward",
)
