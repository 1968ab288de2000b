"""Attention over DeepSeek's compressed latent: `mla`, and `mla_expand`, which computes keys and values from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.gemm_forms import unplanned
from moeparity.numerics.orders import NATIVE
from moeparity.ops import linear
from moeparity.ops.attention import SCALE, refuses_orders, sees_rows, varlen
from moeparity.ops.attention_forms import FORMS, INSIDE, refuses_keys
from moeparity.ops.attention_memory import (
    expanded_bytes,
    expanded_scratch,
    expanded_widths,
    latent_scratch,
    latent_widths,
    turns,
)
from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Cut, Op, Parameter, Refusals, Role, Tokens, WeightPort
from moeparity.ops.kv_cache import COMPUTED, LAYOUT, READ_AS_STORED, own_keys
from moeparity.ops.memory import Memory, Shapes
from moeparity.ops.placement import BLOCKS, TENSOR, cut, refuse_pieces
from moeparity.ops.quantised import BY_TOKEN_OR_HISTORY, OF_WEIGHT

_ABSORBED = {"projection": ("absorbed",)}
_EXPANDED = {"projection": ("expanded",)}
_CONTEXT = {"projection": ("context",)}
_WITH_LATENT = {"projection": ("context", "absorbed")}
KV_B_ORDER = "kv_b_order"
"""The name of the choice how the GEMMs with kv_b add up."""

_QUANTISED = tuple(
    replace(choice, when={**(_WITH_LATENT if choice.name in OF_WEIGHT else _CONTEXT), **choice.when})
    for choice in BY_TOKEN_OR_HISTORY
)
"""Of `mla`: where kv_b's halves are absorbed, they are multiplied out, and activations stay as they are."""
_ORDER = replace(linear.ORDER, name=KV_B_ORDER, says=f"of the GEMMs with kv_b: {linear.ORDER.says}")
_KV_B = WeightPort(name="kv_b", says="[H * (N + V), L], expands the latent into keys and values")


def _refuses_heads(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return refuse_pieces(values, {"heads": shapes["heads"][0]})


def _refuses(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return refuses_orders(values) or _refuses_heads(shapes, values) or _refuses_latent(shapes, values)


def _refuses_latent(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses an order that does not fit the latent's width. In `absorbed` one GEMM has another width, that of a head's
    query, and refuses it when it is called.
    """
    if KV_B_ORDER not in values:
        return None
    refused = linear.refuses_form(shapes["kv_b"][1], _gemm(values), str(values["kv_b"]))
    return None if refused is None else (KV_B_ORDER if refused[0] == "order" else refused[0], refused[1])


def _refuses_expanded(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    return _refuses_heads(shapes, values) or _refuses_latent(shapes, values) or _refuses_unplanned(shapes, values)


def _refuses_unplanned(shapes: Shapes, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """Refuses plans without the GEMM of all heads; those of ranks are looked up as they are computed."""
    if cut(values) > 1:
        return None
    dtype, tf32 = str(values["kv_b"]), values.get("kv_b_tf32") == "yes"
    n, k = shapes["kv_b"]
    reason = unplanned(n, k, str(values[KV_B_ORDER]), dtype, dtype, tf32=tf32, biased=False)
    return None if reason is None else (KV_B_ORDER, reason)


def _expanded_sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    return linear.sees_rows(_gemm(values), ("kv_b",))


def _gemm(values: Mapping[str, Value]) -> dict[str, Value]:
    """The choices of a GEMM with kv_b, under the names that `linear` has for them."""
    return {
        **values,
        "order": values.get(KV_B_ORDER, NATIVE),
        "tf32": values.get("kv_b_tf32", "no"),
        "splits": 1,
    }


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
            linear.TF32,
            name="kv_b_tf32",
            when={"kv_b": ("fp32",)},
            says="the fp32 operands of the GEMM are rounded to TF32, to nearest, ties away",
        ),
        _ORDER,
        replace(linear.ROWS, when={KV_B_ORDER: (NATIVE,)}),
        *BY_TOKEN_OR_HISTORY,
        own_keys("a step expands the latents of its own tokens as stored; or as they were computed", "own_latent"),
        TENSOR,
        BLOCKS,
    ),
    tokens=Tokens(sees_rows=_expanded_sees_rows, input_axes={"latent": 2}),
    refusals=Refusals(values=_refuses_expanded),
    cut=Cut(pieces=cut, joins_heads=True),
    role=Role(
        contracted=(("latent", "own_latent", "kv_b"),), gemm=True, inside=frozenset({*linear.INSIDE, KV_B_ORDER})
    ),
    memory=Memory(widths=expanded_widths, output_bytes=expanded_bytes, scratch=expanded_scratch),
    kernel="mla:mla_expand",
    source="transformers 4.57.6 and 5.23.0, DeepseekV3Attention.forward: kv_b_proj of the tokens that are new",
)


MLA = Op(
    name="mla",
    says="Multi-head latent attention: q_nope [B, T, H, N], q_rope [B, H, T, R], latent [B, 1, T, L] and k_rope "
    "[B, 1, T, R] as a cache gives them, mask [B, T], expanded [B, T, H, N + V], own_latent [B, T, L] and own_k_rope "
    "[B, 1, T, R] as they were computed, selected int64 [B, T, n], the keys that a query sees, -1 for none -> "
    "[B, T, H * V].",
    inputs=("q_nope", "q_rope", "latent", "k_rope", "mask", "expanded", "own_latent", "own_k_rope", "selected"),
    optional=("own_latent", "own_k_rope", "selected"),
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
        Parameter(
            name="indexed",
            type=bool,
            required=False,
            default=True,
            says="of the keys before it a query sees those in `selected` only, where there is such an input",
        ),
        *SCALE,
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
            linear.TF32,
            name="kv_b_tf32",
            when={"kv_b": ("fp32",), **_WITH_LATENT},
            says="the fp32 operands of the GEMMs with kv_b are rounded to TF32, to nearest, ties away",
        ),
        replace(_ORDER, when=_WITH_LATENT),
        *_QUANTISED,
        site("q_latent", "q_nope @ kv_b's key half is rounded to this dtype", when=_ABSORBED),
        site(
            "o_latent",
            "probabilities @ latent is rounded to this dtype before kv_b's value half",
            when=_ABSORBED,
            cuts=True,
        ),
        # The sources of these attributes are kernels of `attention`.
        *(replace(form, sources={}) for form in FORMS),
        *(replace(layout, when={**layout.when, "projection": ("expanded", "context")}) for layout in LAYOUT),
        own_keys(
            "a step reads the latents, and rope's part of the keys, of its own tokens from the cache, as those of "
            "earlier ones; or as they were computed. Of what is expanded `mla_expand` says so",
            "own_k_rope",
        ),
    ),
    tokens=Tokens(
        sees_rows=sees_rows,
        mixes=True,
        history=("latent", "k_rope", "mask", "expanded"),
        varlen=varlen,
        input_axes={"q_rope": 2, "latent": 2, "k_rope": 2, "own_k_rope": 2},
    ),
    refusals=Refusals(values=_refuses, call=refuses_keys),
    cut=Cut(pieces=cut, turns=turns, joins_heads=True),
    role=Role(
        inside=frozenset({*INSIDE, KV_B_ORDER}),
        contracted=(("q_rope", "k_rope", "own_k_rope"), ("latent", "own_latent", "kv_b")),
    ),
    memory=Memory(widths=latent_widths, scratch=latent_scratch),
    kernel="mla:mla",
    source="read: transformers 4.57.6, DeepseekV3Attention.forward; transformers 5.23.0, "
    "DeepseekV3Attention.expand_kv; absorbed, read: vLLM 0.33.0, mla_attention.py",
)
