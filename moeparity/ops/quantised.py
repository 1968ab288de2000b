"""GEMMs whose operands are on a grid of 8 bits, or weights on one of 4: which, with which scales, and where these are
multiplied in.

One set of choices for `linear`, `lm_head` and `experts`. Weights are rounded as a server rounds them that is given 16
or 32 bits, activations as it does in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, inf
from typing import Any, Final

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import EIGHT_BITS, FOUR_BITS, FP8_NAMES, UNROUNDED
from moeparity.ops.attribute import Attribute, Condition, Value, site
from moeparity.ops.declaration import Op
from moeparity.ops.scale_choices import (
    ACTIVATION_SCALES,
    ACTIVATIONS,
    DELAYED,
    GROUP,
    JOINED,
    LARGEST,
    MULTIPLIED,
    OF_ACTIVATIONS,
    OF_WEIGHTS,
    SCALES_OF_ACTIVATIONS,
    SCALES_OF_WEIGHTS,
    STATIC,
    TENSOR,
    TOKEN,
    WEIGHTS,
)

CHECKPOINT, MADE = "checkpoint", "made"
"""Whose codes a GEMM multiplies."""
BOTH, ACTIVATION_FIRST, WEIGHT_FIRST, OPERANDS = "both", "activation_first", "weight_first", "operands"

_VLLM_FILE: Final = Evidence("read", "vLLM 0.33.0, quantization/fp8.py Fp8LinearMethod, Fp8MoEMethod")
_DEEP_GEMM: Final = Evidence("read", "DeepGEMM 02c5df0910, sm90_fp8_gemm_1d2d.cuh: final_accum += scales * accum")
_TRITON: Final = Evidence("read", "vLLM 0.33.0, fused_moe/fused_moe.py fused_moe_kernel")
_CUTLASS: Final = Evidence("read", "vLLM 0.33.0, scaled_mm_epilogues_c3x.hpp ScaledEpilogue")
GRIDS: Final = frozenset((*EIGHT_BITS, *FOUR_BITS, *FP8_NAMES))
"""Every grid of 8 or 4 bits."""
_OF_CODES: Condition = {WEIGHTS: EIGHT_BITS, **OF_ACTIVATIONS}


def _grid(name: str, says: str, grids: tuple[str, ...] = EIGHT_BITS) -> Attribute:
    return Attribute(name=name, kind="rounding", default=UNROUNDED, values=(UNROUNDED, *grids), says=says)


_UNCITED = (
    _grid(
        WEIGHTS,
        "the weight is rounded to this grid when it is loaded. With activations on the same grid the GEMM multiplies "
        "codes, adds them up as `order` says, and scales follow; if not, codes times scales in fp32 are rounded to "
        "`inputs`, as kernels do of weights in 4 bits. Whole numbers of 4 bits may have zero points in the checkpoint. "
        "Each tensor, and each rank's part of it, has scales of its own: engines that join weights (q, k and v) and "
        "have one scale for a tensor take the largest of them",
        (*EIGHT_BITS, *FOUR_BITS),
    ),
    Attribute(
        name="weight_codes",
        kind="form",
        default=CHECKPOINT,
        values=(CHECKPOINT, MADE),
        when=OF_WEIGHTS,
        sources={CHECKPOINT: _VLLM_FILE},
        says="where the checkpoint holds the weight as codes of this grid, these and their scales are taken as they "
        "are (`requantised`: as what is rounded anew), and blocks must be the checkpoint's; or codes are made here, of "
        "any weight, from its numbers multiplied out",
    ),
    replace(
        site("master", "the weight is rounded to this dtype before the grid's scales are made, where they are made"),
        when=OF_WEIGHTS,
    ),
    *SCALES_OF_WEIGHTS,
    _grid(
        ACTIVATIONS,
        "activations, rounded to `inputs`, are rounded to this grid in each step: to nearest even, what is too large "
        "to the largest code. A NaN makes NaN of all that share its scale; CUDA's fmaxf drops it, and such kernels "
        "then store -448 in its place",
    ),
    *SCALES_OF_ACTIVATIONS,
    Attribute(
        name="scaling",
        kind="form",
        default=BOTH,
        values=(BOTH, ACTIVATION_FIRST, WEIGHT_FIRST, OPERANDS),
        when=_OF_CODES,
        sources={
            BOTH: _DEEP_GEMM,
            ACTIVATION_FIRST: _TRITON,
            WEIGHT_FIRST: _CUTLASS,
            OPERANDS: Evidence("verified", "torch 2.13.0, torch._scaled_mm on CPU"),
        },
        says="an fp32 sum of products of codes is multiplied by the product of both scales; or by one of them, and "
        "then by the other. With scales by group or block that is done for each part of K on which both are constant, "
        "the parts are added ascending to 0, and a bias is added to the rounded result; with one scale for a token and "
        "an output it is done once, and a bias added before the result is rounded; or there are no sums of codes: each "
        "operand is multiplied by its scales in fp32, and a GEMM in fp32 follows",
    ),
    Attribute(
        name="scaled_addition",
        kind="form",
        default="fma",
        values=("fma", "rounded"),
        when={**_OF_CODES, "scaling": (BOTH, ACTIVATION_FIRST, WEIGHT_FIRST)},
        says="the last product with a scale is added to what comes before it (or to the bias) in one rounding, as "
        "compilers contract it; or rounded first",
    ),
)


def _cited(choice: Attribute) -> Attribute:
    """With its sources in words."""
    sources = "; ".join(dict.fromkeys(evidence.source for evidence in choice.sources.values()))
    return replace(choice, says=f"{choice.says} ({sources})") if sources else choice


QUANTISED = tuple(_cited(choice) for choice in _UNCITED)
"""The choices of a GEMM in 8 bits."""


def _by_token(*more: str) -> Iterator[Attribute]:
    """The choices of a GEMM in which no token has a scale that goes by others. more: ways to a scale of activations
    beside those of all such GEMMs.
    """
    before = ", or that of `activation_amax`, which earlier steps left" if DELAYED in more else ""
    for choice in QUANTISED:
        if choice.name == ACTIVATION_SCALES.name:
            yield _cited(
                replace(
                    ACTIVATION_SCALES,
                    values=(GROUP, TOKEN, STATIC, *more),
                    sources={way: ACTIVATION_SCALES.sources[way] for way in (STATIC, *more)},
                    says="each token has a scale for every `activation_group` of inputs, or one; or all have that of "
                    f"the checkpoint, the largest `input_scale` of the layer's experts, gate and up together{before}",
                )
            )
        elif choice.name != "activation_amax" or DELAYED in more:
            yield choice


BY_TOKEN = tuple(_by_token())
"""Where tokens go to different weights: one history is not all."""
BY_TOKEN_OR_HISTORY = tuple(_by_token(DELAYED))
"""Where there is one weight."""

OF_WEIGHT = frozenset(
    choice.name for choice in QUANTISED if choice.name in (WEIGHTS, "master") or "weight_" in choice.name
)
"""Those of a weight alone."""


def rounds_to_grid(op: Op, choice: str) -> bool:
    """Whether a choice of an op that may have numbers on a grid of 8 or 4 bits says to what some are rounded, or how
    those on the grid are: its scales, its groups, the GEMM of its codes.
    """
    grids = {a.name for a in op.attributes if a.kind == "rounding" and not GRIDS.isdisjoint(a.values)}
    attribute = op.attribute(choice)
    if attribute is None or not grids:
        return False
    return attribute.kind == "rounding" or not grids.isdisjoint(attribute.when)


def multiplies_codes(values: Mapping[str, Any]) -> bool:
    """Whether the GEMM multiplies codes: both operands are on one grid, and keep their scales apart."""
    on_one_grid = values.get(WEIGHTS, UNROUNDED) != UNROUNDED and values[WEIGHTS] == values.get(ACTIVATIONS)
    return bool(on_one_grid and values["scaling"] != OPERANDS)


def rounds_operands(values: Mapping[str, Any]) -> bool:
    """Whether an operand is on a grid of 8 bits."""
    return any(values.get(name, UNROUNDED) != UNROUNDED for name in (WEIGHTS, ACTIVATIONS))


def scales_see_rows(values: Mapping[str, Value]) -> bool:
    """Whether a token's scale depends on other tokens of the step."""
    return values.get(ACTIVATIONS, UNROUNDED) != UNROUNDED and values[ACTIVATION_SCALES.name] == TENSOR


def part_of_k(values: Mapping[str, Any]) -> int | None:
    """So many of K are added up before scales are applied: what both scales have in common; None: all of K."""
    sizes = [int(values[name]) for name in ("activation_group", "weight_block") if name in values]
    return gcd(*sizes) if sizes else None


def misfit(k: int, values: Mapping[str, Value]) -> tuple[str, str] | None:
    """The choice that a GEMM with K inputs cannot have, and why; None if it can have all."""
    group = int(values.get("activation_group", 1))
    if k % group:
        return "activation_group", (
            f"{k} inputs, which groups of {group} do not divide; vLLM's and SGLang's kernels refuse this too "
            "(per_token_group_quant). Set a divisor, or leave this node unrounded."
        )
    if multiplies_codes(values) and int(values.get("splits", 1)) > 1:
        return "splits", "scales are applied to parts of K in one accumulator. Set 1."
    return _misfit_of_magnitude(values)


_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "weight_percentile": (0, 100),
    **dict.fromkeys(("weight_clip", "weight_amax", "activation_amax"), (0, inf)),
}


def _misfit_of_magnitude(values: Mapping[str, Value]) -> tuple[str, str] | None:
    if values.get("weight_scales") == JOINED and values["weight_magnitude"] != LARGEST:
        return "weight_magnitude", "the scale of joined weights is made of their largest number. Set largest."
    if values.get("weight_magnitude") == MULTIPLIED and values[WEIGHTS] == "fp4_e2m1":
        return "weight_magnitude", "ModelOpt searches by multiplying for fp8_e4m3, int8 and int4 only. Set shrunk."
    for name, (least, most) in _BOUNDS.items():
        if name in values and not least <= float(values[name]) <= most:
            expected = f"a number from {least}" + (f" to {most}" if most < inf else "")
            return name, f"{values[name]}; expected {expected}. Set one."
    return None
