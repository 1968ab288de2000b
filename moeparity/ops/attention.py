"""Causal attention: `attention` over projected heads, `mla` over DeepSeek's compressed latent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moeparity.numerics.orders import NATIVE, parse
from moeparity.ops.declaration import ABOVE_1, Attribute, Op, Parameter, Shapes, Value, WeightPort, site, sum_order
from moeparity.ops.linear import TF32
from moeparity.ops.placement import BLOCKS, TENSOR, cut, refuse_pieces

EAGER, SDPA, FLASH = "eager", "sdpa", "flash"
FIXED = "fixed"
START, END, RESCALE = "start", "end", "rescale"
"""Where an online softmax meets a sink."""
TILES, SEEN, KEYS = "tiles", "seen", "keys"
"""What split-KV shares out evenly: a sequence's tiles, those that some queries see, or the keys that they see."""
_EAGER = {"implementation": (EAGER,)}
_WRITTEN = {**_EAGER, "softmax": ("divide", "reciprocal")}
_FLASH = {"implementation": (FLASH,)}
_ABSORBED = {"projection": ("absorbed",)}
_SPLIT = {**_FLASH, "splits": (ABOVE_1, FIXED)}
_SHARED = {**_FLASH, "splits": (ABOVE_1,)}
_FORMS = (
    Attribute(
        name="implementation",
        kind="form",
        default=EAGER,
        values=(EAGER, SDPA, FLASH),
        says="matmul, softmax, matmul with every result stored; or torch's scaled_dot_product_attention, whose inner "
        "order and roundings are the kernel's own; or the online softmax of FlashAttention over tiles of keys, scores "
        "and output in fp32 (fp64 where a site is) until the end, each tile's two products torch's own fp32 GEMMs",
    ),
    site("scores", "q @ k.T, its scaling and the mask addition are each rounded to this dtype", when=_EAGER),
    Attribute(
        name="softmax",
        kind="form",
        default=NATIVE,
        values=(NATIVE, "divide", "reciprocal"),
        when=_EAGER,
        says="torch's own kernel; or exp(x - max), divided by its sum (torch's kernel on CUDA), or multiplied with the "
        "sum's reciprocal (torch's kernel on CPU)",
    ),
    Attribute(
        name="exp",
        kind="form",
        default="exact",
        values=("exact", "sleef"),
        when=_WRITTEN,
        says="exp rounded correctly; or in fp32 as Sleef's expf computes it, which torch's softmax on CPU calls",
    ),
    sum_order(
        "denominator",
        "in which order the exponentials of a row are added, padding and hidden keys as zeros: torch's own sum, "
        "or one written out; torch's softmax on CPU has `lanes(8) | fold_hi` with AVX2, `lanes(16) | fold_hi` with "
        "AVX-512, `sequential` of fewer keys than lanes",
        when=_WRITTEN,
    ),
    replace(
        TF32,
        when={"implementation": (EAGER, FLASH)},
        says="the fp32 operands of both matmuls are rounded to TF32, to nearest, ties away. Not in sdpa, whose kernel "
        "for fp32 on CUDA takes three TF32 products for one whatever torch allows (torch, mem_eff_attention/"
        "gemm_kernel_utils.h, OpMultiplyAddFastF32, read)",
    ),
    Attribute(
        name="kv_block",
        kind="form",
        default=64,
        least=1,
        when=_FLASH,
        says="keys of one tile, of which the first starts at key 0; FlashAttention 2 has 64 at head width 128, 3 has "
        "128 where causal or paged and 176 elsewhere",
    ),
    Attribute(
        name="kv_order",
        kind="order",
        default="descending",
        values=("descending", "ascending"),
        redrawn=False,
        when=_FLASH,
        says="the last tile first, as FlashAttention 2 and 3 go, or the first",
    ),
    Attribute(
        name="exponential",
        kind="form",
        default="exp2_fma",
        values=("exp2_fma", "exp2", "exp"),
        when=_FLASH,
        says="with c = scale * log2(e): exp2 of fma(score, c, -(max * c)), or of the difference of two rounded "
        "products, or exp(score * scale - max); each rounded correctly, which a GPU's ex2.approx is not",
    ),
    sum_order(
        "row_sum",
        "in which order a tile's exponentials are added, before they are rounded; what came before is scaled, then "
        "that sum is added to it. FlashAttention's four threads of a row each carry a sum of their own over all tiles, "
        "which no order here is",
        when=_FLASH,
    ),
    Attribute(
        name="normalize",
        kind="form",
        default="reciprocal",
        values=("reciprocal", "divide"),
        when=_FLASH,
        says="the output times 1 / sum, as FlashAttention 2 and 3 do, or divided by the sum, as Triton kernels do",
    ),
    Attribute(
        name="splits",
        kind="form",
        default=1,
        values=(FIXED,),
        least=1,
        when=_FLASH,
        says="split-KV: the keys are cut into so many runs, or into runs of `split_keys`, each an attention of its own "
        "with a log-sum-exp",
    ),
    Attribute(
        name="split_by",
        kind="form",
        default=TILES,
        values=(TILES, SEEN, KEYS),
        when=_SHARED,
        says="a run is ceil(n / splits) of the sequence's n tiles, fewer runs where these use them up early "
        "(FlashAttention 2); of the tiles that a tile of `q_block` queries sees, so that runs differ between queries "
        "(FlashAttention 3); or of the keys that it sees, tiles starting anew at the first key of each run (Triton "
        "decode kernels of vLLM and SGLang)",
    ),
    Attribute(
        name="q_block",
        kind="form",
        default=1,
        least=1,
        when={**_SHARED, "split_by": (SEEN, KEYS)},
        says="queries whose keys are cut together; 1: each on its own, as in decode",
    ),
    Attribute(
        name="split_unit",
        kind="form",
        default=1,
        least=1,
        when={**_SHARED, "split_by": (KEYS,)},
        says="the keys of a run are rounded up to a multiple of this: 1 in vLLM's Triton decode, 32 in SGLang's",
    ),
    Attribute(
        name="split_keys",
        kind="form",
        default=2048,
        least=1,
        when={**_FLASH, "splits": (FIXED,)},
        says="keys of a run, from key 0 on, however many runs there are; tiles start anew at the first key of each "
        "(FlashInfer's kv_chunk_size: fixed_split_size, or what its scheduler finds for the batch)",
    ),
    site(
        "split",
        "the output of each run is rounded to this dtype, and so is each pairwise merge",
        default="fp32",
        when=_SPLIT,
    ),
    Attribute(
        name="merge",
        kind="form",
        default="at_once",
        values=("at_once", "pairwise", "online"),
        when=_SPLIT,
        says="all runs with weights exp(lse - lse of all), then one rounding to `output` (FlashAttention's combine); "
        "one after the other, with weights that are quotients, stored as `split` (vLLM's merge_attn_states, for "
        "chunked contexts); or one after the other, rescaled by exp(highest lse before - now) and divided by the sum "
        "of weights at the end (Triton decode kernels of vLLM and SGLang)",
    ),
    sum_order(
        "splits_order",
        "in which order the weighted outputs of the runs are added",
        default="sequential(fma)",
        when={**_SPLIT, "merge": ("at_once",)},
    ),
    site(
        "probabilities",
        "what meets v is rounded to this dtype: eager the softmax, which is in fp32 (fp64 where this or the scores "
        "are); flash the exponentials, normalised only afterwards",
        when={"implementation": (EAGER, FLASH)},
    ),
    site("output", "probabilities @ v is rounded to this dtype"),
    TENSOR,
    BLOCKS,
)


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
        *_FORMS,
        Attribute(
            name="kv_layout",
            kind="form",
            default="projected",
            values=("projected", "cached"),
            says="keys and values as views of their projections (transformers with use_cache=False), or contiguous, as "
            "a filled key/value cache leaves them; the layout picks another fp32 GEMM on CPU",
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
            weight="sinks",
            when=_FLASH,
            says="its exponential is added to the finished sum, under the keys' highest score (vLLM's FlashAttention "
            "3); or it is what the highest score starts from, and the sum from 1, in the first run (vLLM's Triton "
            "kernels); or the output, rounded, is multiplied with sigmoid(log-sum-exp - sink), rounded too "
            "(torchtitan)",
        ),
    ),
    refuses=_refuses,
    pieces=cut,
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
        *_FORMS,
    ),
    refuses=_refuses_latent,
    pieces=cut,
    kernel="attention:mla",
    source="transformers 5.17.0 and 5.23.0, DeepseekV3Attention.forward; absorbed, read: vLLM 0.33.0, mla_attention.py",
)
