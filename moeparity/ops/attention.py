"""Causal attention over projected heads, and what `mla` shares with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE, parse
from moeparity.numerics.tensor_core.gemm_orders import USUAL, misfit, tensor_core_order
from moeparity.ops.attention_forms import (
    DIV_FULL,
    EAGER,
    FIRST,
    FIXED,
    FLASH,
    FORMS,
    INSIDE,
    L2,
    LIBM,
    QUERY,
    SDPA,
    SEGMENTS,
    SEGMENTS_OF_VLLM,
    SHARED,
    TILES,
    U20,
    refuses_keys,
)
from moeparity.ops.attention_memory import (
    head_widths,
    scratch,
    turns,
)
from moeparity.ops.attribute import TRITON, Attribute, Value, site
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Role, Tokens, WeightPort
from moeparity.ops.kv_cache import COMPUTED, LAYOUT, own_keys
from moeparity.ops.memory import Memory, Shapes
from moeparity.ops.placement import cut, refuse_pieces

START, END, RESCALE = "start", "end", "rescale"
"""Where an online softmax meets a sink."""

SCORE, FACTOR = "score", "factor"
"""What a sink is in attention with every result stored."""
_EAGER = {"implementation": (EAGER,)}
_FLASH = {"implementation": (FLASH,)}
SCALE = (
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


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses orders that cannot be, and heads that ranks cannot share evenly. Several ranks may hold the same key and
    value heads.
    """
    if "sinks" in shapes and values["implementation"] == SDPA:
        return "implementation", "torch's scaled_dot_product_attention has no sinks. Set eager or flash."
    refusal = refuses_orders(values)
    if refusal is not None:
        return refusal
    for port in ("q", "k", "v"):
        heads = shapes.get(f"heads of {port}", (0,))[0]
        if heads and (port == "q" or cut(values) % heads):
            refusal = refuse_pieces(values, {f"heads of {port}": heads})
            if refusal is not None:
                return refusal
    return None


def refuses_orders(values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses orders of a fixed number of leaves: the number of keys, tiles and runs changes with the tokens."""
    refusal = _refuses_segments(values)
    if refusal is not None:
        return refusal
    if values.get("order", NATIVE) != NATIVE:
        return _refuses_on_gpu(values, "order")
    if values.get("sink") == START and values["exponential"] not in {"exp", TRITON, U20, LIBM}:
        reason = "a sink is one of the scaled scores, and so is a maximum that starts from it."
        return "sink", f"{reason} Set `exponential: exp`, or another `sink`."
    if values.get("sink", START) != START and values["splits"] != 1:
        return "sink", "how a sink is shared by splits is known where sums start from it. Set `start`, or `splits: 1`."
    one_tile = values.get("splits") == FIXED and values.get("split_keys") == values.get("kv_block")
    if values.get("normalize") == FIRST and not one_tile:
        return "normalize", "the sum of one tile is known first. Set `splits: fixed`, and `split_keys` as `kv_block`."
    if values.get("kv_block") == L2 and (values["splits"] != 1 or values["rows"] != ALL):
        return "kv_block", "tiles that fit a cache are known for one run, of all rows. Set `splits: 1`, `rows: all`."
    for name in ("denominator", "row_sum", "splits_order", "scores_order", "values_order"):
        refusal = _refuses_order(values, name)
        if refusal is not None:
            return refusal
    return None


def _refuses_order(values: Mapping[str, Value], name: str) -> tuple[str, str] | None:
    text = str(values.get(name, NATIVE))
    if text == NATIVE:
        return None
    if tensor_core_order(text) is not None:
        return _refuses_on_gpu(values, name)
    order = parse(text)
    if order.leaves is not None:
        return name, f"{text} adds up {order.leaves} values, and their number changes with the tokens."
    if order.fma and name in {"denominator", "row_sum"}:
        return name, f"{text}: fma contracts products, and exponentials are none. Write it without fma."
    return None


def _refuses_segments(values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses what vLLM's kernel that merges segments does not do."""
    wanted = {"splits": SEGMENTS_OF_VLLM, "exponential": TRITON, "normalize": DIV_FULL}
    at_hand = {"order": NATIVE, **values}
    if (
        values.get("splits", 1) == 1
        or values.get("merge") != SEGMENTS
        or {**wanted, "order": NATIVE}.items() <= at_hand.items()
    ):
        return None
    set_to = ", ".join(f"`{name}: {value}`" for name, value in wanted.items())
    return "merge", f"one kernel merges segments, and does so in one way. Set {set_to}, and no other `order`."


def _refuses_on_gpu(values: Mapping[str, Value], name: str) -> tuple[str, str] | None:
    """Refuses products that kernels on tensor cores do not compute."""
    order, dtype = tensor_core_order(str(values[name])), str(values["probabilities"])
    assert order is not None
    if order.promote:
        return name, f"{order} begins chains anew, which attention does not. Leave `promote` out."
    if dtype not in ("bf16", "fp16"):
        return name, f"probabilities are {dtype}, and such kernels multiply 16-bit numbers. Set `native` here."
    if name == "scores_order" and values["scale_on"] == QUERY:
        return "scale_on", "scaled queries are fp32, and tensor cores multiply 16-bit numbers. Set `scores`."
    if values["kv_block"] == L2:
        return "kv_block", "tiles that fit a cache are those of kernels for CPUs. Set a number."
    reason = misfit(order, 0, dtype, tf32=False)
    return None if reason is None else (name, reason)


def sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """An online softmax in blocks does not depend on other rows, unless keys are cut by their number or by several
    queries' keys, or a sink's part at the end is torch's own sigmoid.
    """
    if values["implementation"] != FLASH or values.get("rows", ALL) == ALL or values.get("sink") == RESCALE:
        return True
    if values["splits"] in (1, FIXED, SHARED):
        return False
    return values["split_by"] == TILES or values["q_block"] != 1


def varlen(values: Mapping[str, Value]) -> bool:
    """As FlashAttention's kernels for sequences of various lengths do (cu_seqlens)."""
    return values["implementation"] == FLASH


def _copies_history(values: Mapping[str, Value]) -> bool:
    """A cache that grows does, and an online softmax, which has no layout to choose; a static cache does not."""
    return values.get("kv_layout", "cached") == "cached"


_ORDER = Attribute(
    name="order",
    kind="order",
    default=NATIVE,
    values=(NATIVE, *USUAL),
    tensor_cores=True,
    # FlashAttention 2 has no sinks, and kernels that have are not modelled on a GPU.
    without_weight="sinks",
    redrawn=False,
    sources=dict.fromkeys(USUAL, Evidence("read", "FlashAttention 0251105, flash_fwd_kernel.h and softmax.h")),
    when=_FLASH,
    says="in which order an online softmax adds: as the choices below say, with torch's products; or as FlashAttention "
    "2's forward does on that GPU: both products on tensor cores, a tile's onto the rescaled output, ex2.approx of "
    "fma(score, c, -(max * c)), the sum of exponentials in four threads for each row, which are joined at the end, and "
    "rcp.approx of it. An A100 was said to give these bits (read); that FlashAttention 3 and an H100 do is inferred",
)
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
        Parameter(
            name="shifts",
            type=bool,
            required=False,
            default=False,
            says="scores less their row's highest are a value of their own before the softmax (gpt-oss, MiMo)",
        ),
        Parameter(
            name="chunked",
            type=bool,
            required=False,
            default=False,
            says="`window` tokens are a chunk, counted from the first token of its sequence that a query may see: it "
            "sees those of its own chunk",
        ),
        Parameter(name="sink_times", type=int, required=False, default=1, says="how often a head's sink is counted"),
        *SCALE,
    ),
    attributes=(
        _ORDER,
        *FORMS,
        own_keys(
            "a step reads the keys and values of its own tokens from the cache, as those of earlier ones (vLLM, SGLang "
            "with FlashAttention); or as they were computed"
        ),
        *LAYOUT,
        replace(
            site(
                "shifted",
                "scores, and a sink as it is, less their row's highest are rounded to this dtype before the softmax. "
                "Where it and `probabilities` are the same 16-bit dtype, torch's own softmax is that of this dtype",
                when=_EAGER,
            ),
            parameter="shifts",
        ),
        Attribute(
            name="sink_as",
            kind="form",
            default=SCORE,
            values=(SCORE, FACTOR),
            weight="sinks",
            when=_EAGER,
            says="a head's sink is one more score of each row; or the softmax is taken without it, and the output, "
            "rounded, is multiplied with sigmoid(log-sum-exp - sink), of a difference in the scores' dtype, rounded "
            "too (Granite)",
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
    tokens=Tokens(
        sees_rows=sees_rows,
        mixes=True,
        history=("k", "v", "mask"),
        varlen=varlen,
        copies_history=_copies_history,
        input_axes={"q": 2, "k": 2, "v": 2, "own_k": 2},
    ),
    refusals=Refusals(values=_refuses, call=refuses_keys),
    cut=Cut(pieces=cut, turns=turns, joins_heads=True),
    role=Role(inside=INSIDE, contracted=(("q", "k", "own_k"),)),
    unhanded=("own_k", "own_v"),
    memory=Memory(widths=head_widths, scratch=scratch),
    kernel="attention:attention",
    source="transformers 5.17.0 and 5.23.0, eager_attention_forward; integrations/sdpa_attention.py, masking_utils.py; "
    "sinks, read: vllm-project/flash-attention 32f7952865, hopper/softmax.h finalize_aux; vLLM 08d82e71f5, "
    "v1/attention/ops/triton_attention_helpers.py init_softmax_M; torchtitan 0014ac2ca4, models/gpt_oss/model.py; "
    "read: FlashAttention 0251105, flash_fwd_kernel.h and softmax.h; vLLM 0.33.0, merge_attn_states.cu, and 0155494, "
    "triton_decode_attention.py; vLLM 0.33.0, csrc/cpu/cpu_attn_impl.hpp, cpu_attn_vec16.hpp, cpu_arch_macros.h; "
    "vLLM 0.32.0, csrc/cpu/cpu_attn_impl.hpp, calcu_tile_size_with_constant_q; vLLM 0.32.0, csrc/cpu/mla_decode.cpp, "
    "mla_decode_block_head; split-KV: by the sources that moeparity.ops.kernels.key_tiles names",
)
