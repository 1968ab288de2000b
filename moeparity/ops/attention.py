"""Causal attention: `attention` over projected heads, `mla` over DeepSeek's compressed latent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE, parse
from moeparity.ops.attention_forms import EAGER, FIXED, FLASH, FORMS, SDPA, TILES
from moeparity.ops.attention_memory import latent_scratch, latent_widths, scratch
from moeparity.ops.declaration import Attribute, Op, Parameter, Value, WeightPort, site
from moeparity.ops.linear import TF32
from moeparity.ops.memory import Memory, Shapes
from moeparity.ops.placement import cut, refuse_pieces

START, END, RESCALE = "start", "end", "rescale"
"""Where an online softmax meets a sink."""

_EAGER = {"implementation": (EAGER,)}
_FLASH = {"implementation": (FLASH,)}
_ABSORBED = {"projection": ("absorbed",)}


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
    if values["splits"] in (1, FIXED):
        return False
    return values["split_by"] == TILES or values["q_block"] != 1


def _copies_history(values: Mapping[str, Value]) -> bool:
    """A cache of which no place is allocated before, and an online softmax, which has no layout to choose."""
    return values.get("kv_layout", "cached") == "cached"


def _refuses_latent(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return _refuses_orders(values) or refuse_pieces(values, {"heads": shapes["heads"][0]})


ATTENTION = Op(
    name="attention",
    says="Causal grouped-query attention: q [B, H, T, D], k [B, G, T, D], v [B, T, G, D], mask [B, T] bool "
    "-> [B, T, H * D]. A head's sink is one more score of each row, of a key without a value.",
    inputs=("q", "k", "v", "mask"),
    weights=(WeightPort(name="sinks", says="[H], a score for each head that every query has", required=False),),
    parameters=(
        Parameter(
            name="window",
            type=int,
            required=False,
            says="sliding window: the tokens a query sees, itself included; null: all before it",
        ),
    ),
    attributes=(
        *FORMS,
        Attribute(
            name="kv_layout",
            kind="form",
            default="projected",
            values=("projected", "cached", "static"),
            when={"implementation": (EAGER, SDPA)},
            says="keys and values as views of their projections (transformers with use_cache=False), or contiguous, as "
            "its filled key/value cache leaves them, from which a window drops what no later query reaches; or those "
            "of a static cache, as many as it has places. Layout and number of keys pick another fp32 GEMM on CPU",
        ),
        Attribute(
            name="allocated",
            kind="form",
            default=1024,
            least=1,
            when={"kv_layout": ("static",), "implementation": ("eager", "sdpa")},
            says="places of the static cache; those that no token has filled hold zeros, hidden from every query",
        ),
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
    copies_history=_copies_history,
    input_token_axes={"q": 2, "k": 2},
    contracted=(("q", "k"),),
    joins_heads=True,
    memory=Memory(scratch=scratch),
    kernel="attention:attention",
    source="transformers 5.17.0 and 5.23.0, eager_attention_forward; integrations/sdpa_attention.py, masking_utils.py; "
    "sinks, read: vllm-project/flash-attention 32f7952865, hopper/softmax.h finalize_aux; vLLM 08d82e71f5, "
    "v1/attention/ops/triton_attention_helpers.py init_softmax_M; torchtitan 0014ac2ca4, models/gpt_oss/model.py; "
    "read: FlashAttention 0251105, flash_fwd_kernel.h and softmax.h; vLLM 0.33.0, merge_attn_states.cu, and 0155494, "
    "triton_decode_attention.py; split-KV: by the sources that moeparity.ops.kernels.key_tiles names",
)

MLA = Op(
    name="mla",
    says="Multi-head latent attention: q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, T, L], "
    "k_rope [B, 1, T, R], mask [B, T] -> [B, T, H * V].",
    inputs=("q_nope", "q_rope", "latent", "k_rope", "mask"),
    weights=(WeightPort(name="kv_b", says="[H * (N + V), L], expands the latent into keys and values"),),
    parameters=(
        Parameter(name="heads", type=int, says="number of heads H"),
        Parameter(name="value_dim", type=int, says="width V of one head's value"),
        Parameter(name="rope", type=dict, says="rope_parameters: yarn's mscale_all_dim enters the softmax scale"),
    ),
    attributes=(
        Attribute(
            name="projection",
            kind="form",
            default="expanded",
            values=("expanded", "absorbed"),
            says="kv_b expands the latent into keys and values of every head; or its two halves are taken into queries "
            "and outputs, and all heads attend to the latent itself (engines' decode)",
        ),
        site("kv_b", "inputs and result of the GEMM that expands the latent; absorbed: inputs of the two GEMMs"),
        replace(
            TF32,
            name="kv_b_tf32",
            when={"kv_b": ("fp32",)},
            says="the fp32 operands of the GEMMs with kv_b are rounded to TF32, to nearest, ties away",
        ),
        site("q_latent", "q_nope @ kv_b's key half is rounded to this dtype", when=_ABSORBED),
        site("o_latent", "probabilities @ latent is rounded to this dtype before kv_b's value half", when=_ABSORBED),
        # Their sources are kernels of `attention`.
        *(replace(form, sources={}) for form in FORMS),
    ),
    sees_rows=_sees_rows,
    refuses=_refuses_latent,
    pieces=cut,
    mixes_tokens=True,
    history=("latent", "k_rope", "mask"),
    input_token_axes={"q_rope": 2, "k_rope": 2},
    contracted=(("q_rope", "k_rope"), ("latent", "kv_b")),
    joins_heads=True,
    memory=Memory(widths=latent_widths, scratch=latent_scratch),
    kernel="attention:mla",
    source="transformers 5.17.0 and 5.23.0, DeepseekV3Attention.forward; absorbed, read: vLLM 0.33.0, mla_attention.py",
)
