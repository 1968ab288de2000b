"""What `docs/roundings.md` says of single choices, which is the only committed table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moeparity.numerics.dtypes import MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of an op's bf16 outputs with other bits where this choice alone differs, as a committed table has it."""

    least: float
    shown: str
    row: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A share, and of which differences it speaks.

    value: one of the two values has to be this one. settings: other attributes of the node, and values of which one
    side has to have one.
    """

    share: Share
    value: str | None = None
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_BF16_ORDER = Share(least=0.59, shown="59 %", row="combine, bf16 sums: by slot, by expert")
_FP32_ORDER = Share(least=0.000046, shown="0.0046 %", row="combine, fp32 products and sums: by slot, by expert")
_SCORES = Share(least=0.49, shown="49 %", row="combine: C4 (bf16 scores and products), C6 (fp32, fma)")
_EPILOGUE = Share(least=0.49, shown="49 %", row="combine: C6, C3 (score in the GEMM's epilogue)")
_BEFORE = Share(least=0.62, shown="62 %", row="combine: C6, C9 (score before the down projection)")
_RANKS = Share(least=0.40, shown="40 %", row="combine: C6, C11 (DeepEP on 8 ranks)")
_SWIGLU = Share(least=0.26, shown="26 %", row="SwiGLU: two roundings, one")
_ROPE = Share(least=0.22, shown="22 %", row="RoPE: vLLM, SGLang")
SHARES = (_BF16_ORDER, _FP32_ORDER, _SCORES, _EPILOGUE, _BEFORE, _RANKS, _SWIGLU, _ROPE)
"""All rows of the table that speak of one choice."""

SCORES, RANKS, SWIGLU, ROPE = ((Measured(share=share),) for share in (_SCORES, _RANKS, _SWIGLU, _ROPE))
SUMS = (
    Measured(share=_BF16_ORDER, settings={"accumulate": (MODEL, "bf16", "fp16")}),
    Measured(share=_FP32_ORDER),
)
SCORE_SITE = (Measured(share=_BEFORE, value="activation"), Measured(share=_EPILOGUE))
