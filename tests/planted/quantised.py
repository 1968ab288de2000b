"""What planting a value of a GEMM in 8 bits needs."""

from __future__ import annotations

from moeparity.ops.attribute import Value
from moeparity.ops.quantised import QUANTISED

LATENT = ("mla", "mla_expand")
OPS = ("linear", "lm_head", "experts", *LATENT)

NUMBERS: dict[str, float] = {f"{op}:{name}_floor": 100.0 for op in OPS for name in ("weight", "activation")}
NUMBERS |= {
    f"{op}:{name}": number
    for op in OPS
    for name, number in (("weight_clip", 0.5), ("weight_percentile", 50.0), ("weight_amax", 0.01))
}
NUMBERS |= {f"{op}:activation_amax": 0.01 for op in OPS if op != "experts"}
NUMBERS["experts:dispatch_floor"] = 100.0
WHOLE_NUMBERS: dict[str, int] = {f"{op}:{name}": 16 for op in OPS for name in ("weight_block", "activation_group")}
WHOLE_NUMBERS["experts:dispatch_group"] = 16

BLOCK = 16
_SMALL: dict[str, Value] = {"activation_group": 8, "weight_block": BLOCK}
_IN_FP32 = ("scaling", "scaled_addition", "weight_scale_by", "activation_scale_by")
_SITES = {"mla_expand": ("kv_b",), "mla": ("kv_b", "scores", "probabilities", "output")}
"""Where a last bit is lost."""
BACKGROUND: dict[str, dict[str, Value]] = {
    # Rows of 96 and 48, which groups of 128 do not divide.
    f"{op}:{choice.name}": {name: value for name, value in _SMALL.items() if name != choice.name}
    # A last bit of a scale shows in few bf16 elements.
    | (dict.fromkeys(_SITES.get(op, ("output",)), "fp32") if choice.name in _IN_FP32 else {})
    for op in OPS
    for choice in QUANTISED
}
BACKGROUND |= {f"experts:{name}": {"dispatch_group": 8} for name in ("dispatch", "dispatch_scale", "dispatch_floor")}
REFERENCE_VALUE: dict[str, Value] = {f"{op}:activation_group=16": 8 for op in OPS}
REFERENCE_VALUE["experts:dispatch_group=16"] = 8
REFERENCE_VALUE |= {f"{op}:weight_scale_dtype=unrounded": "bf16" for op in OPS}
# fp32 and fp64 give the same codes of all but a few weights.
REFERENCE_VALUE |= {f"{op}:weight_arithmetic={dtype}": "bf16" for op in LATENT for dtype in ("fp32", "fp64")}
# Divided, and over the factor that is rounded, a scale is the same in most cases.
REFERENCE_VALUE |= {
    f"{op}:{name}_scale_by={way}": "reciprocal"
    for op in OPS
    for name in ("weight", "activation")
    for way in ("divided", "inverted")
}
for _quotient, _reference in (("reciprocal", "from_largest"), ("from_largest", "reciprocal")):
    for _op in OPS:
        _label = f"{_op}:weight_quotient={_quotient}"
        # With a scale that was divided they differ in one of some five thousand numbers.
        BACKGROUND[_label] = {**_SMALL, "weight_scale_by": "reciprocal"}
        REFERENCE_VALUE[_label] = _reference

CHECKPOINT = "quickstart_fp8"
"""Of fp8 in blocks, with static scales of activations."""
MODEL_OF = {
    f"{op}:{value}": "deepseek_v3_fp8" if op in LATENT else CHECKPOINT
    for op in OPS
    for value in ("weight_codes", "activation_scales")
}
BACKGROUND |= {f"{op}:weight_codes": {"weight_block": BLOCK} for op in OPS}

WITHOUT_EFFECT = (
    {f"lm_head:weight_codes={value}": "the head is no codes there" for value in ("checkpoint", "made")}
    | {"mla:weight_quotient=from_largest": "no number of the small kv_b lies so near the middle of two codes"}
    | {f"{op}:weight_scale_dtype={dtype}": "scales are made in fp32" for op in OPS for dtype in ("fp32", "fp64")}
    | {
        f"{op}:master={dtype}": "the checkpoint's weights are bf16, which fits into all of them"
        for op in OPS
        for dtype in ("model", "bf16", "fp16", "fp32", "fp64")
    }
)

SHORT = {f"{op}:activation_quotient": (4, 96, 4) for op in OPS}
"""Two ways to a code differ in one of some thousand numbers."""
