"""What may be planted: keywords of the functions in `plain`, and moeparity's words for them. Free of moeparity.

A `?name` among keywords and words is a number that is drawn anew for every case.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Sort = Literal["number", "rounding", "three", "unknown"]


@dataclass(frozen=True, slots=True)
class Fault:
    """Keywords of a function, and the attributes that say the same, as `attribute=value`; none where no word does."""

    keywords: Mapping[str, Any]
    words: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


RENORMALISING = ("qwen3_moe", "mixtral", "qwen2_moe")
"""Models whose routers divide the chosen scores by their sum."""
NARROW = ("qwen3_moe", "qwen2_moe", "olmoe")
"""Models whose routing weights are rounded to bf16."""
CAST_FIRST = ("qwen3_moe", "mixtral", "qwen2_moe", "olmoe", "glm4_moe", "deepseek_v3")
"""Models whose norms cast before the weight is multiplied."""

FUNCTIONS = {
    "rms_norm": "norm",
    "linear": "linear",
    "attention": "attend",
    "lm_head": "head",
    "embedding": "embed",
    **{name: name for name in ("rotary", "rope", "router", "experts", "combine", "swiglu", "add")},
}
"""The function of `plain` that computes an op."""

_COMMON = ("rms_norm", "linear", "add", "lm_head", "embedding")
_SPARSE = (*_COMMON, "experts", "combine", "rotary")
OPS: dict[str, tuple[str, ...]] = {
    "qwen3_moe": (*_SPARSE, "attention", "rope", "router"),
    "mixtral": (*_SPARSE, "attention", "rope", "router"),
    "qwen2_moe": (*_SPARSE, "attention", "rope", "router", "swiglu"),
    "olmoe": (*_SPARSE, "attention", "rope", "router"),
    "glm4_moe": (*_SPARSE, "attention", "swiglu"),
    "deepseek_v3": (*_SPARSE, "swiglu"),
    "gpt_oss": _COMMON,
}
"""The ops of each small checkpoint that `plain` has a function for."""

REGIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "moe": (("gate", ""), ("router", "router"), ("experts", "experts"), ("combine", "combine")),
    "mixer": (("experts", "experts"), ("combine", "combine")),
    "attention": (
        *((f"{i}_proj", "linear") for i in "qkv"),
        ("q_norm", "rms_norm"),
        ("k_norm", "rms_norm"),
        ("rope", "rope"),
        ("cache", ""),
        ("attend", "attention"),
        ("o_proj", "linear"),
    ),
    "ending": (("norm", "rms_norm"), ("lm_head", "lm_head")),
}
"""Functions in place of several nodes: the nodes of a block, and the op whose faults may be planted in each."""

REGIONS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("qwen3_moe", "mixtral", "qwen2_moe", "olmoe"), ("moe", "mixer", "attention", "ending")),
    **dict.fromkeys(("glm4_moe", "deepseek_v3"), ("mixer", "ending")),
    "gpt_oss": ("ending",),
}

_F32, _B16 = "float32", "bfloat16"

FAULTS: dict[Sort, dict[str, tuple[Fault, ...]]] = {
    "number": {
        "rms_norm": (Fault({"eps": "?eps"}, ("eps=?eps",)), Fault({"offset": "?offset"}, ("offset=?offset",))),
        "router": (Fault({"eps": "?eps"}, ("renormalize_eps=?eps",), RENORMALISING),),
        "linear": (Fault({"parts": 4}, ("splits=4",)),),
        "lm_head": (Fault({"parts": 4}, ("splits=4",)), Fault({"by": 2.0}, ("log_probs:temperature=0.5",))),
    },
    "rounding": {
        "rms_norm": (
            Fault({"late": True}, ("normalized=fp32",), CAST_FIRST),
            Fault({"square": _B16}, ("square=bf16",)),
        ),
        "rope": (Fault({"wide": True}, ("products=fp32",)),),
        "attention": (
            Fault({"scores": _F32}, ("scores=fp32",)),
            Fault({"probabilities": _F32}, ("probabilities=fp32",)),
        ),
        "router": (
            Fault({"scores": _B16}, ("scores=bf16",)),
            Fault({"weights": _F32}, ("weights=fp32",), NARROW),
            Fault({"total": _B16}, ("total=bf16",), RENORMALISING),
            Fault({"after": True}, ("timing=after_topk",), RENORMALISING),
        ),
        "experts": (Fault({"wide": True}, ("activation=fp32",)),),
        "combine": (
            Fault({"weighted": _F32}, ("weighted=fp32",)),
            Fault({"accumulate": _F32}, ("accumulate=fp32",)),
            Fault({"reverse": True}, ("order=reverse",)),
            Fault({"by_slot": True}, ("leaves=slot",)),
        ),
        "swiglu": (Fault({"wide": True}, ("activation=fp32",)),),
        "lm_head": (Fault({"wide": True}, ("output=fp32",)),),
        "rotary": (Fault({"wide": True}, ("output=fp32",)),),
    },
    "three": {
        "rms_norm": (
            Fault(
                {"eps": "?eps", "late": True, "offset": "?offset"},
                ("eps=?eps", "normalized=fp32", "offset=?offset"),
                CAST_FIRST,
            ),
            Fault(
                {"eps": "?eps", "late": True, "square": _B16},
                ("eps=?eps", "normalized=fp32", "square=bf16"),
                CAST_FIRST,
            ),
            Fault({"eps": "?eps", "square": _B16, "offset": "?offset"}, ("eps=?eps", "square=bf16", "offset=?offset")),
        ),
        "attention": (
            Fault(
                {"scores": _F32, "probabilities": _F32, "divide": True},
                ("scores=fp32", "probabilities=fp32", "softmax=divide"),
            ),
        ),
        "router": (
            Fault(
                {"scores": _B16, "eps": "?eps", "weights": _F32},
                ("scores=bf16", "renormalize_eps=?eps", "weights=fp32"),
                ("qwen3_moe",),
            ),
            Fault(
                {"scores": _B16, "eps": "?eps", "total": _B16},
                ("scores=bf16", "renormalize_eps=?eps", "total=bf16"),
                RENORMALISING,
            ),
        ),
        "experts": (Fault({"wide": True, "product": _F32}, ("activation=fp32", "product=fp32")),),
        "combine": (
            Fault(
                {"weighted": _F32, "accumulate": _F32, "by_slot": True},
                ("weighted=fp32", "accumulate=fp32", "leaves=slot"),
            ),
            Fault(
                {"weighted": _F32, "accumulate": _F32, "reverse": True},
                ("weighted=fp32", "accumulate=fp32", "order=reverse"),
            ),
        ),
        "linear": (Fault({"parts": 4, "split": _B16}, ("splits=4", "split=bf16")),),
    },
    "unknown": {
        "rms_norm": (Fault({"centred": True}), Fault({"by": "?scale"})),
        "linear": (Fault({"by": "?scale"}), Fault({"roll": 1})),
        "attention": (Fault({"scale": "?scale"}), Fault({"flip": True}), Fault({"ahead": 1})),
        "router": (Fault({"plain": True}, (), RENORMALISING), Fault({"temperature": "?scale"}), Fault({"drop": True})),
        "experts": (Fault({"gelu": True}), Fault({"swap": True}), Fault({"step": 1}), Fault({"by": "?scale"})),
        "combine": (Fault({"by": "?scale"}),),
        "add": (Fault({"second": "?scale"}),),
        "swiglu": (Fault({"gelu": True}), Fault({"by": "?scale"})),
        "lm_head": (Fault({"cap": 5.0}), Fault({"by": "?scale"})),
        "rotary": (Fault({"theta": "?theta"}), Fault({"stretch": "?scale"})),
        "rope": (Fault({"sign": -1.0}), Fault({"keys": False})),
        "embedding": (Fault({"by": "?scale"}),),
    },
}

NOISE: dict[str, tuple[tuple[str, Any], ...]] = {
    "rms_norm": (("normalized", "fp32"), ("rsqrt", "ieee"), ("mean", "reciprocal"), ("order", "reverse")),
    "rope": (("products", "fp32"),),
    "attention": (("probabilities", "fp32"), ("scores", "fp32"), ("implementation", "sdpa")),
    "mla": (("probabilities", "fp32"), ("scores", "fp32")),
    "router": (("weights", "fp32"),),
    "experts": (("activation", "fp32"), ("gate_up", "split")),
    "combine": (("accumulate", "fp32"), ("weighted", "fp32"), ("order", "reverse")),
    "swiglu": (("activation", "fp32"),),
    "linear": (("splits", 2),),
    "lm_head": (("splits", 2),),
}
"""Legal roundings, orders and forms by op: what nobody is to blame for."""

SEMANTICS: dict[str, tuple[tuple[str, str], ...]] = {
    "rms_norm": (("eps", "?eps"), ("offset", "?offset")),
    "router": (("renormalize_eps", "?eps"),),
}
"""Choices that make another model of it, which a report may not take for rounding."""


def numbers(rng: random.Random) -> dict[str, float]:
    """Numbers that nobody listed, by what stands for them."""
    digits = f"{rng.choice([3.7, 1.9, 7.3, 4.45, 2.6])}e-{rng.choice([2, 3, 4])}"
    return {
        "?eps": float(digits),
        "?offset": rng.choice([0.0625, 0.37, -0.21, 0.1875, 0.73]),
        "?scale": rng.choice([1.0625, 0.9375, 1.03, 0.71, 1.4]),
        "?theta": rng.choice([12345.0, 9871.0, 500123.0, 7777.5]),
    }


def filled(fault: Fault, drawn: Mapping[str, float]) -> Fault:
    """A fault with numbers in place of what stands for them."""
    words = []
    for word in fault.words:
        name, _, value = word.partition("=")
        words.append(f"{name}={drawn.get(value, value)}")
    return Fault(
        {key: drawn.get(value, value) if isinstance(value, str) else value for key, value in fault.keywords.items()},
        tuple(words),
    )
