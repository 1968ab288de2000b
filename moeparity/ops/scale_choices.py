"""Scales of weights and activations on a grid of 8 or 4 bits: for what each is, and how it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import EIGHT_BITS, FLOAT_NAMES, FOUR_BITS, MODEL, UNROUNDED
from moeparity.ops.attribute import Attribute, Condition, site

WEIGHTS, ACTIVATIONS = "weights", "activations"
BLOCK, CHANNEL, GROUP, TOKEN, TENSOR = "block", "channel", "group", "token", "tensor"
JOINED = "joined"
"""One scale for all weights that an engine joins into one tensor."""
JOINED_NODES = (frozenset({"q_proj", "k_proj", "v_proj"}), frozenset({"gate_proj", "up_proj"}))
"""Nodes of a block that read the same and that engines join (vLLM 0.33.0, packed_modules_mapping of its models)."""
STATIC, DELAYED = "static", "delayed"
DIVIDED, RECIPROCAL, FROM_LARGEST = "divided", "reciprocal", "from_largest"
"""How a number meets its scale: divided by it, times 1 / scale, or times (largest code / largest number)."""
INVERTED = "inverted"
"""How a scale is made, besides `divided` and `reciprocal`: 1 over what a number is multiplied by."""
FP32, UE8M0, REQUANTISED = "fp32", "ue8m0", "requantised"
POWERS = (UE8M0, "ue8m0_floor", "ue8m0_ceil", "ue8m0_even", "ue8m0_even_fp4")
"""Scales that are powers of two, raised or by the exponent of a magnitude."""
TWO_LEVELS, TWO_LEVELS_DIVIDED = "two_levels", "two_levels_divided"
"""Scales in fp8_e4m3 on one of fp32 for the tensor."""
LARGEST, SHRUNK, MULTIPLIED, PERCENTILE, GIVEN = "largest", "shrunk", "multiplied", "percentile", "given"
EXPANDED, SWEPT = "expanded", "swept"
"""Which number stands for the largest of a block of weights."""
SYMMETRIC, FULL = "symmetric", "full"

_VLLM_GROUP: Final = Evidence("read", "vLLM 0.33.0, csrc/quantization/w8a8/fp8/per_token_group_quant.cu")
_VLLM_TOKEN: Final = Evidence("read", "vLLM 0.33.0, csrc/quantization/w8a8/fp8/common.cu, by token")
_VLLM_STATIC: Final = Evidence(
    "read", "vLLM 0.33.0, quantization/fp8.py, utils/fp8_utils.py process_fp8_input_tensor_strategy_moe"
)
_BLOCK_CAST: Final = Evidence("read", "vLLM 0.33.0, vllm/utils/deep_gemm.py per_block_cast_to_fp8")
_TE_SCALE: Final = Evidence("read", "TransformerEngine d0067d0da6, common/recipe/recipe_common.cuh")
_TE_DELAYED: Final = Evidence("read", "TransformerEngine d0067d0da6, common/recipe/delayed_scaling.cu")
_COMPRESSED: Final = Evidence("verified", "compressed-tensors 0.20.1, quantization/utils/helpers.py calculate_qparams")
_LLM_COMPRESSOR: Final = Evidence("verified", "llm-compressor 0.14.0.1, observers/mse_quant.py _grid_search_mse on CPU")
_EXPANDED: Final = Evidence("verified", "llm-compressor 0.14.0.1, observers/mse.py NVFP4ExpandedMSEObserver on CPU")
_NVFP4: Final = Evidence("verified", "ModelOpt 0.47.0, quantization/qtensor/nvfp4_tensor.py NVFP4QTensor.quantize")
_SWEPT: Final = Evidence("verified", "ModelOpt 0.47.0, kernels/quantization/gemm/nvfp4_fp8_sweep.py, interpreted")
_MODELOPT: Final = Evidence("verified", "ModelOpt 0.47.0, quantization/calib/mse.py MseCalibrator on CPU")
_HISTOGRAM: Final = Evidence("verified", "ModelOpt 0.47.0, quantization/calib/histogram.py calibrate_weights")
_TORCHAO: Final = Evidence("verified", "torchao 0.18.0, prototype/mx_formats/mx_tensor.py to_mx")
_POWERS_OF_FP4: Final = Evidence("verified", "compressed-tensors 0.20.1, quantization/utils/mxfp_utils.py")
_DISPATCH: Final = Evidence("read", "DeepEP dd758caf45, csrc/kernels/legacy/internode_ll.cu, utils.cuh")
_MAX_SCALE: Final = Evidence("read", "vLLM 0039d4bdd8, quantization/utils/w8a8_utils.py requantize_with_max_scale")
_REQUANTISED: Final = Evidence("read", "vLLM 0.33.0, quantization/utils/fp8_utils.py requant_weight_ue8m0_inplace")
_SGLANG_GROUP: Final = Evidence("read", "sglang 0.5.23, kernels/jit/csrc/gemm/per_token_group_quant.cuh")
_VLLM_CPU: Final = Evidence("read", "vLLM 0.32.0 for CPUs, csrc/cpu/cpu_wna16.cpp Dequantizer4b")
OF_WEIGHTS: Condition = {WEIGHTS: (*EIGHT_BITS, *FOUR_BITS)}
OF_ACTIVATIONS: Condition = {ACTIVATIONS: EIGHT_BITS}
_DYNAMIC: Condition = {**OF_ACTIVATIONS, "activation_scales": (GROUP, TOKEN, TENSOR)}

_DISPATCHED: Condition = {"dispatch": ("fp8_e4m3",)}


def _scale_by(name: str, when: Condition, sources: Mapping[str, Evidence]) -> Attribute:
    return Attribute(
        name=name,
        kind="form",
        default=DIVIDED,
        values=(DIVIDED, RECIPROCAL, INVERTED),
        when=when,
        sources={**sources, INVERTED: _TE_SCALE},
        says="the scale is the largest magnitude divided by the largest code, 448 (127 of int8); or times its "
        "reciprocal in fp32, as torch on CUDA divides by a number of Python; or 1 over the factor 448 / magnitude, "
        "both rounded",
    )


def _quotient(name: str, when: Condition, default: str, sources: Mapping[str, Evidence]) -> Attribute:
    return Attribute(
        name=name,
        kind="form",
        default=default,
        values=(DIVIDED, RECIPROCAL, FROM_LARGEST),
        when=when,
        sources=sources,
        says="a number is divided by its scale; or multiplied by 1 / scale; or by 448 over the largest magnitude (127 "
        "of int8), rounded once, which with a scale that is a power of two is 1 / scale",
    )


def _floor(name: str, when: Condition) -> Attribute:
    return Attribute(
        name=name,
        kind="form",
        default=1e-10,
        number=True,
        usual=(1e-10, 1e-4, 1 / 512, 0.0),
        when=when,
        says="a largest magnitude below this counts as this, an fp32 number: 1e-10 in vLLM's and SGLang's kernels by "
        "group, 1e-4 in DeepGEMM's casts, 1/512 in vLLM's by token, where the scale is at least 1 / (448 * 512); with "
        "0 the scale of zeros is 1 (TransformerEngine, amax_epsilon)",
    )


def _number(name: str, default: float, usual: tuple[float, ...], magnitude: str, says: str) -> Attribute:
    """A number that one way to a weight's magnitude has."""
    when = {**OF_WEIGHTS, "weight_magnitude": (magnitude,)}
    return Attribute(name=name, kind="form", default=default, number=True, usual=usual, when=when, says=says)


_OF_HISTORY = (
    "the magnitude that TransformerEngine's amax history gives, its largest number or its latest (amax_compute_algo), "
    "times 2^margin; 0: none yet, and the scale is 1, as in its first step"
)
_SCALE = Attribute(
    name="activation_scale",
    kind="form",
    default=FP32,
    values=(FP32, *POWERS),
    when=_DYNAMIC,
    sources={**dict.fromkeys(POWERS[1:4], _TORCHAO), POWERS[4]: _POWERS_OF_FP4},
    says="the scale stays in fp32; or is raised to the next power of two, by its bits (NVIDIA's rule for MXFP8); or is "
    "a power of two by the exponent of the magnitude less that of the largest code: of the power below it (OCP MX), "
    "above, or of what it becomes if rounded to the fraction bits of a code, or to the one of fp4. Kernels that take "
    "log2 may keep a scale that lies a few last bits above a power, which is not modelled",
)
ACTIVATION_SCALES = Attribute(
    name="activation_scales",
    kind="form",
    default=GROUP,
    values=(GROUP, TOKEN, TENSOR, STATIC, DELAYED),
    when=OF_ACTIVATIONS,
    sources={STATIC: _VLLM_STATIC, DELAYED: _TE_DELAYED},
    says="each token has a scale for every `activation_group` of inputs, or one; or all tokens of a step have one; or "
    "all tokens have that of the checkpoint, `input_scale`, of experts the largest of a layer; or that of "
    "`activation_amax`, which earlier steps left",
)

SCALES_OF_WEIGHTS = (
    Attribute(
        name="weight_scales",
        kind="form",
        default=BLOCK,
        values=(BLOCK, GROUP, CHANNEL, TENSOR, JOINED),
        when=OF_WEIGHTS,
        sources={JOINED: _MAX_SCALE},
        says="a scale for each square of `weight_block`, cut short at the ends; for so many inputs of an output, as in "
        "MXFP8; for each output; or one; or one for all that an engine joins (q, k and v; gate and up), of their "
        "largest number, or the largest of the checkpoint's scales: codes are then multiplied out, rounded to "
        "`master`, and rounded once more to that scale",
    ),
    Attribute(
        name="weight_block",
        kind="form",
        default=128,
        least=1,
        when={**OF_WEIGHTS, "weight_scales": (BLOCK, GROUP)},
        says="outputs and inputs that share a scale, or inputs of an output",
    ),
    Attribute(
        name="weight_magnitude",
        kind="form",
        default=LARGEST,
        values=(LARGEST, SHRUNK, EXPANDED, MULTIPLIED, SWEPT, PERCENTILE, GIVEN),
        when=OF_WEIGHTS,
        sources={
            SHRUNK: _LLM_COMPRESSOR,
            EXPANDED: _EXPANDED,
            MULTIPLIED: _MODELOPT,
            SWEPT: _SWEPT,
            PERCENTILE: _HISTOGRAM,
            GIVEN: _TE_DELAYED,
        },
        says="what a block's scale is made of: the largest magnitude, times `weight_clip`; or that times 1.00, 0.99 .. "
        "0.81 (`expanded`: 1.800, 1.791 .. 0.81), whichever leaves the least sum of errors to the power of 2.4; or "
        "times one of 39 numbers from 0.25 to 4, by squared errors, of fp8_e4m3, int8 and int4; or the tensor's times "
        "one of all numbers of fp8_e4m3 over 448, by squared errors; or the `weight_percentile` of the magnitudes; or "
        "`weight_amax`, for all blocks",
    ),
    _number("weight_clip", 1.0, (1.0, 0.9), LARGEST, "so many times the largest magnitude; what is above is cut"),
    _number("weight_percentile", 99.99, (99.99, 99.9), PERCENTILE, "between 0 and 100, from a histogram of 2,048 bins"),
    _number("weight_amax", 0.0, (0.0,), GIVEN, _OF_HISTORY),
    Attribute(
        name="weight_range",
        kind="form",
        default=SYMMETRIC,
        values=(SYMMETRIC, FULL),
        when={WEIGHTS: ("int8", "int4")},
        sources={FULL: _COMPRESSED},
        says="the largest code is 127 (7 of int4); or half of all there are, 127.5 (7.5)",
    ),
    replace(
        site(
            "weight_arithmetic",
            "magnitudes, scales and quotients of a weight are rounded to this dtype, which compressed-tensors has them "
            "in on a CPU; codes are then rounded a second time",
            default="fp32",
        ),
        when=OF_WEIGHTS,
        sources={MODEL: _COMPRESSED},
    ),
    _scale_by("weight_scale_by", OF_WEIGHTS, {RECIPROCAL: _BLOCK_CAST}),
    replace(
        _SCALE,
        name="weight_scale",
        values=(FP32, *POWERS, TWO_LEVELS, TWO_LEVELS_DIVIDED, REQUANTISED),
        when=OF_WEIGHTS,
        sources={**_SCALE.sources, TWO_LEVELS: _NVFP4, TWO_LEVELS_DIVIDED: _COMPRESSED, REQUANTISED: _REQUANTISED},
        says=f"{_SCALE.says}; of two levels, as NVFP4's: a number of fp8_e4m3 for a block times one of fp32 for the "
        "tensor, its largest magnitude over the largest code and 448, or divided by the reciprocal of that, made of "
        "the largest that was chosen; `requantised`: rounded with an fp32 scale, multiplied out, and rounded again "
        "with such a power, the block's largest magnitude taken anew",
    ),
    replace(
        site("weight_scale_dtype", "a weight's scales are rounded to this dtype before they meet codes"),
        default=UNROUNDED,
        values=(UNROUNDED, MODEL, *FLOAT_NAMES),
        when=OF_WEIGHTS,
        sources={MODEL: _VLLM_CPU},
    ),
    _quotient("weight_quotient", OF_WEIGHTS, RECIPROCAL, {RECIPROCAL: _BLOCK_CAST}),
    _floor("weight_floor", OF_WEIGHTS),
)

SCALES_OF_ACTIVATIONS = (
    ACTIVATION_SCALES,
    Attribute(
        name="activation_group",
        kind="form",
        default=128,
        least=1,
        when={**OF_ACTIVATIONS, ACTIVATION_SCALES.name: (GROUP,)},
        says="inputs that share a scale; it divides their number, as vLLM's and SGLang's kernels demand",
    ),
    Attribute(
        name="activation_amax",
        kind="form",
        default=0.0,
        number=True,
        usual=(0.0,),
        when={**OF_ACTIVATIONS, ACTIVATION_SCALES.name: (DELAYED,)},
        says=_OF_HISTORY,
    ),
    _scale_by("activation_scale_by", _DYNAMIC, {DIVIDED: _VLLM_GROUP, RECIPROCAL: _SGLANG_GROUP}),
    _SCALE,
    _quotient(
        "activation_quotient",
        {**OF_ACTIVATIONS, ACTIVATION_SCALES.name: (GROUP, TOKEN, TENSOR, STATIC)},
        RECIPROCAL,
        {RECIPROCAL: _VLLM_GROUP, DIVIDED: _VLLM_TOKEN, FROM_LARGEST: _SGLANG_GROUP},
    ),
    _floor("activation_floor", _DYNAMIC),
)

DISPATCH = (
    Attribute(
        name="dispatch",
        kind="rounding",
        default=UNROUNDED,
        values=(UNROUNDED, "fp8_e4m3"),
        sources={"fp8_e4m3": _DISPATCH},
        says="rows travel to the ranks of their experts as they are; or as codes of this grid, in groups of "
        "`dispatch_group`, whose scale is the largest magnitude times 1 / 448, a code x times 448 over it. Where the "
        "experts' activations are codes of the same grid and groups, these are multiplied as they come, whatever the "
        "choices of activations say; elsewhere codes are multiplied out and rounded to `projections` "
        f"({_DISPATCH.source}; vLLM 0.33.0, fused_moe/prepare_finalize/deepep_ll.py _do_quant)",
    ),
    Attribute(
        name="dispatch_group",
        kind="form",
        default=128,
        least=1,
        when=_DISPATCHED,
        says="inputs that share a scale; the last group is cut short, as vLLM pads rows with zeros",
    ),
    Attribute(
        name="dispatch_scale",
        kind="form",
        default=FP32,
        values=(FP32, UE8M0),
        when=_DISPATCHED,
        says="the scale stays in fp32, or is raised to the next power of two (DeepEP's round_scale, for kernels of "
        "Blackwell)",
    ),
    Attribute(
        name="dispatch_floor",
        kind="form",
        default=1e-4,
        number=True,
        usual=(1e-4, 1e-10),
        when=_DISPATCHED,
        says="a largest magnitude below this counts as this: 1e-4 in DeepEP's low-latency kernel, 1e-10 where SGLang "
        "rounds before its normal mode",
    ),
)
"""Of `experts`: what becomes of rows on their way."""


def arrives_as_codes(values: Mapping[str, Any]) -> bool:
    """Whether the experts' GEMM multiplies the codes of a dispatch as they come."""
    alike = values.get("dispatch", UNROUNDED) == values.get(ACTIVATIONS, UNROUNDED) != UNROUNDED
    return bool(
        alike and values[ACTIVATION_SCALES.name] == GROUP and values["activation_group"] == values["dispatch_group"]
    )
