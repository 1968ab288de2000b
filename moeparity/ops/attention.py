"""Causal attention: `attention` over projected heads, `mla` over DeepSeek's compressed latent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE, parse
from moeparity.ops.attention_forms import EAGER, FIXED, FLASH, FORMS, LAYOUT, SDPA, SHARED, TILES
from moeparity.ops.attention_memory import (
    expanded_bytes,
    expanded_scratch,
    expanded_widths,
    latent_scratch,
    latent_widths,
    scratch,
)
from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Op, Parameter, WeightPort
from moeparity.ops.kv_cache import COMPUTED, READ_AS_STORED, own_keys
from moeparity.ops.linear import ROWS, TF32
from moeparity.ops.linear import sees_rows as _sees_rows_of_gemm
from moeparity.ops.memory import Memory, Shapes
from moeparity.ops.placement import BLOCKS, TENSOR, cut, refuse_pieces

START, END, RESCALE = "start", "end", "rescale"
"""Where an online softmax meets a sink."""

_EAGER = {"implementation": (EAGER,)}
_FLASH = {"implementation": (FLASH,)}
_ABSORBED = {"projection": ("absorbed",)}
_EXPANDED = {"projection": ("expanded",)}
_WITH_LATENT = {"projection": ("context", "absorbed")}
_SCALE = (
    Parameter(
        name="softmax_scale",
        type=float,
        required=False,
        says="what the softmax scale, 1 / sqrt(D), is multiplied by; null: 1",
    ),
    Parameter(
        name="scale_width",
        type=int,
        required=False,
        says="the width D that the softmax scale is made of; null: that of a query",
    ),
    Parameter(name="scaled", type=int, required=False, default=1, says="how often scores are multiplied by that"),
)
_KV_B = WeightPort(name="kv_b", says="[H * (N + V), L], expands the latent into keys and values")


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """An order that cannot be; heads not shared evenly, where those of keys and values may be held by several ranks."""
    if "sinks" in shapes and values["implementation"] == SDPA:
        return "implementation", "torch's scaled_dot_product_attention has no sinks. Set eager or flash."
    refusal = _refuses_orders(values)
    if refusal is not None:
        return refusal
    for port in ("q", "k", "v"):
        heads = shapes.get(f"heads of {port}", (0,))[0]
        if heads and (port == "q" or cut(values) % heads):
            refusal = refuse_pieces(values, {f"heads of {port}": heads})
            if refusal is not None:
                return refusal
    return None


def _refuses_orders(values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Orders for one number of leaves: that of keys, tiles and runs changes with the tokens."""
    if values.get("sink") == START and values["exponential"] != "exp":
        reason = "a sink is one of the scaled scores, and so is a maximum that starts from it."
        return "sink", f"{reason} Set `exponential: exp`, or another `sink`."
    if values.get("sink", START) != START and values["splits"] != 1:
        return "sink", "how a sink is shared by splits is known where sums start from it. Set `start`, or `splits: 1`."
    for name in ("denominator", "row_sum", "splits_order"):
        text = str(values.get(name, NATIVE))
        if text == NATIVE:
            continue
        order = parse(text)
        if order.leaves is not None:
            return name, f"{text} adds up {order.leaves} values, and their number changes with the tokens."
        if order.fma and name != "splits_order":
            return name, f"{text}: fma contracts products, and exponentials are none. Write it without fma."
    return None


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """Online softmax in blocks does not, unless the keys are cut by how many there are, or by several queries' keys; a
    sink's share at the end is torch's own sigmoid.
    """
    if values["implementation"] != FLASH or values["rows"] == ALL or values.get("sink") == RESCALE:
        return True
    if values["splits"] in (1, FIXED, SHARED):
        return False
    return values["split_by"] == TILES or values["q_block"] != 1


def _varlen(values: Mapping[str, Value]) -> bool:
    """As FlashAttention's kernels for sequences of various lengths do (cu_seqlens)."""
    return values["implementation"] == FLASH


def _refuses_heads(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return refuse_pieces(values, {"heads": shapes["heads"][0]})


def _copies_history(values: Mapping[str, Value]) -> bool:
    """A cache of which no place is allocated before, and an online softmax, which has no layout to choose."""
    return values.get("kv_layout", "cached") == "cached"


def _refuses_latent(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return _refuses_orders(values) or _refuses_heads(shapes, values)


ATTENTION = Op(
    name="attention",
    says="Causal grouped-query attention: q [B, H, T, D], k and v [B, G, T, D] as a cache gives them, mask [B, T] "
    "bool, own_k [B, G, T, D] and own_v [B, T, G, D] as they were computed -> [B, T, H * D]. A head's sink is one more "
    "score of each row, of a key without a value.",
    inputs=("q", "k", "v", "mask", "own_k", "own_v"),
    optional=("own_k", "own_v"),
    reads=dict.fromkeys(("own_k", "own_v"), ({"own_keys": (COMPUTED,)},)),
    weights=(WeightPort(name="sinks", says="[H], a score for each head that every query has", required=False),),
    parameters=(
        Parameter(
            name="window",
            type=int,
            required=False,
            says="sliding window: the tokens a query sees, itself included; null: all before it",
        ),
        Parameter(
            name="ahead",
            type=int,
            required=False,
            default=0,
            says="so many tokens behind a query are seen too; -1: it does not see itself",
        ),
        Parameter(name="sink_times", type=int, required=False, default=1, says="how often a head's sink is counted"),
        *_SCALE,
    ),
    attributes=(
        *FORMS,
        own_keys(
            "a step reads the keys and values of its own tokens from the cache, as those of earlier ones (vLLM, SGLang "
            "with FlashAttention); or as they were computed"
        ),
        *LAYOUT,
        replace(
            site(
                "shifted",
                "scores, and the sink as it is, less their row's highest are rounded to this dtype before the softmax. "
                "Where it and `probabilities` are the same 16-bit dtype, torch's own softmax is that of this dtype",
                when=_EAGER,
            ),
            weight="sinks",
        ),
        Attribute(
            name="sink",
            kind="form",
            default=END,
            values=(END, START, RESCALE),
            sources={
                END: Evidence("read", "vllm-project/flash-attention 32f7952865, hopper/softmax.h finalize_aux"),
                START: Evidence("read", "vLLM 08d82e71f5, v1/attention/ops/triton_attention_helpers.py init_softmax_M"),
                RESCALE: Evidence("read", "torchtitan 0014ac2ca4, models/gpt_oss/model.py"),
            },
            weight="sinks",
            when=_FLASH,
            says="its exponential is added to the finished sum, under the keys' highest score (vLLM's FlashAttention "
            "3); or it is what the highest score starts from, and the sum from 1, in the first run (vLLM's Triton "
            "kernels); or the output, rounded, is multiplied with sigmoid(log-sum-exp - sink), rounded too "
            "(torchtitan)",
        ),
    ),
    sees_rows=_sees_rows,
    refuses=_refuses,
    pieces=cut,
    mixes_tokens=True,
    history=("k", "v", "mask"),
    varlen=_varlen,
    copies_history=_copies_history,
    unhanded=("own_k", "own_v"),
    input_token_axes={"q": 2, "k": 2, "v": 2, "own_k": 2},
    contracted=(("q", "k", "own_k"),),
    joins_heads=True,
    memory=Memory(scratch=scratch),
    kernel="attention:attention",
    source="transformers 5.17.0 and 5.23.0, eager_attention_forward; integrations/sdpa_attention.py, masking_utils.py; "
    "sinks, read: vllm-project/flash-attention 32f7952865, hopper/softmax.h finalize_aux; vLLM 08d82e71f5, "
    "v1/attention/ops/triton_attention_helpers.py init_softmax_M; torchtitan 0014ac2ca4, models/gpt_oss/model.py; "
    "read: FlashAttention 0251105, flash_fwd_kernel.h and softmax.h; vLLM 0.33.0, merge_attn_states.cu, and 0155494, "
    "triton_decode_attention.py; split-KV: by the sources that moeparity.ops.kernels.key_tiles names",
)

MLA_EXPAND = Op(
    name="mla_expand",
    says="The keys (but for rope's part) and values that each head's rows of kv_b make of a token's latent: latent "
    "[B, 1, T, L] as a cache gives it, own_latent [B, T, L] as it was computed -> [B, T, H, N + V].",
    inputs=("latent", "own_latent"),
    optional=("own_latent",),
    reads={"latent": ({"own_keys": (READ_AS_STORED,)},), "own_latent": ({"own_keys": (COMPUTED,)},)},
    unhanded=("own_latent",),
    weights=(_KV_B,),
    parameters=(Parameter(name="heads", type=int, says="number of heads H"),),
    attributes=(
        site("kv_b", "inputs and result of the GEMM"),
        replace(
            TF32,
            name="kv_b_tf32",
            when={"kv_b": ("fp32",)},
            says="the fp32 operands of the GEMM are rounded to TF32, to nearest, ties away",
        ),
        replace(ROWS, when={}),
        own_keys("a step expands the latents of its own tokens as stored; or as they were computed", "own_latent"),
        TENSOR,
        BLOCKS,
    ),
    sees_rows=_sees_rows_of_gemm,
    refuses=_refuses_heads,
    pieces=cut,
    input_token_axes={"latent": 2},
    contracted=(("latent", "own_latent", "kv_b"),),
    gemm=True,
    joins_heads=True,
    memory=Memory(widths=expanded_widths, output_bytes=expanded_bytes, scratch=expanded_scratch),
    kernel="attention:mla_expand",
    source="transformers 4.57.6 and 5.23.0, DeepseekV3Attention.forward: kv_b_proj of the tokens that are new",
)

MLA = Op(
    name="mla",
    says="Multi-head latent attention: q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, 1, T, L] and k_rope "
    "[B, 1, T, R] as a cache gives them, mask [B, T], expanded [B, T, H, N + V], own_latent [B, T, L] and own_k_rope "
    "[B, 1, T, R] as they were computed -> [B, T, H * V].",
    inputs=("q_nope", "q_rope", "latent", "k_rope", "mask", "expanded", "own_latent", "own_k_rope"),
    optional=("own_latent", "own_k_rope"),
    reads={
        "latent": (_WITH_LATENT,),
        "expanded": (_EXPANDED,),
        "own_latent": ({**_WITH_LATENT, "own_keys": (COMPUTED,)},),
        "own_k_rope": ({"own_keys": (COMPUTED,)},),
    },
    unhanded=("own_latent", "own_k_rope"),
    weights=(_KV_B,),
    parameters=(
        Parameter(name="heads", type=int, says="number of heads H"),
        Parameter(name="value_dim", type=int, says="width V of one head's value"),
        Parameter(name="rope", type=dict, says="rope_parameters: yarn's mscale_all_dim enters the softmax scale"),
        *_SCALE,
    ),
    attributes=(
        Attribute(
            name="projection",
            kind="form",
            default="expanded",
            values=("expanded", "context", "absorbed"),
            sources={"context": Evidence("read", "transformers 5.23.0, DeepseekV3Attention.expand_kv")},
            says="keys and values of every head as `mla_expand` makes them, of each token in its own step "
            "(transformers 4 caches these); or kv_b expands the latents of all tokens that a step sees, anew, in one "
            "GEMM (transformers 5, which caches latents; engines' prefill behind a context, which have a GEMM for the "
            "context and one for the new tokens); or its two halves are taken into queries and outputs, and all heads "
            "attend to the latent itself (engines' decode)",
        ),
        replace(
            site("kv_b", "inputs and result of the GEMM that expands the latents; absorbed: inputs of the two GEMMs"),
            when=_WITH_LATENT,
        ),
        replace(
            TF32,
            name="kv_b_tf32",
            when={"kv_b": ("fp32",), **_WITH_LATENT},
            says="the fp32 operands of the GEMMs with kv_b are rounded to TF32, to nearest, ties away",
        ),
        site("q_latent", "q_nope @ kv_b's key half is rounded to this dtype", when=_ABSORBED),
        site("o_latent", "probabilities @ latent is rounded to this dtype before kv_b's value half", when=_ABSORBED),
        # Their sources are kernels of `attention`.
        *(replace(form, sources={}) for form in FORMS),
        *(replace(layout, when={**layout.when, "projection": ("expanded", "context")}) for layout in LAYOUT),
        own_keys(
            "a step reads the latents, and rope's part of the keys, of its own tokens from the cache, as those of "
            "earlier ones; or as they were computed. Of what is expanded `mla_expand` says so",
            "own_k_rope",
        ),
    ),
    sees_rows=_sees_rows,
    refuses=_refuses_latent,
    pieces=cut,
    mixes_tokens=True,
    history=("latent", "k_rope", "mask", "expanded"),
    varlen=_varlen,
    input_token_axes={"q_rope": 2, "latent": 2, "k_rope": 2, "own_k_rope": 2},
    contracted=(("q_rope", "k_rope", "own_k_rope"), ("latent", "own_latent", "kv_b")),
    joins_heads=True,
    memory=Memory(widths=latent_widths, scratch=latent_scratch),
    kernel="attention:mla",
    source="read: transformers 4.57.6, DeepseekV3Attention.forward; transformers 5.23.0, "
    "DeepseekV3Attention.expand_kv; absorbed, read: vLLM 0.33.0, mla_attention.py",
)
