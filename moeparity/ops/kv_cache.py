"""What a key/value cache stores, and what attention reads back from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.dtypes import FLOAT_NAMES, FP8_NAMES, MODEL, UNROUNDED
from moeparity.ops.attention_forms import EAGER, SDPA
from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Cut, Op, Tokens
from moeparity.ops.memory import Call, Memory, Shapes

STATIC, CHECKPOINT, TENSOR, HEAD = "static", "checkpoint", "tensor", "head"
"""Where the scale of a value that is stored in 8 bits comes from: it is given, or the checkpoint's, or computed from
the data of a step, by tensor or by head."""

SATURATES, INFINITE = "saturates", "infinite"
"""What a value becomes that is too large for an 8-bit dtype with infinities."""

COMPUTED = "computed"
READ_AS_STORED = "stored"

_FP8 = {"stored": FP8_NAMES}
_STATIC = {**_FP8, "scale": (STATIC,)}
_VLLM = Evidence("read", "vLLM 0.33.0, csrc/quantization/w8a8/fp8/nvidia/quant_utils.cuh scaled_vec_conversion")
_OF_FILE = Evidence("read", "vLLM 0531c2226a, quantization/kv_cache.py BaseKVCacheMethod")
_SGLANG = Evidence("read", "sglang 0.5.23, srt/mem_cache/memory_pool.py MHATokenToKVPool.set_kv_buffer")


def own_keys(says: str, port: str = "own_k") -> Attribute:
    """Whether a step reads its own keys and values from the cache, for an op that has both. `port`: what else it reads
    if it does not.
    """
    return Attribute(
        name="own_keys",
        kind="form",
        default=READ_AS_STORED,
        values=(READ_AS_STORED, COMPUTED),
        input=port,
        says=says,
    )


def _sees_rows(values: Mapping[str, Value], params: Mapping[str, Any]) -> bool:
    """A scale that is computed from data depends on all rows of a step."""
    return values["stored"] in FP8_NAMES and values["scale"] not in (STATIC, CHECKPOINT)


def _widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    return inputs


def _bytes(call: Call) -> Sequence[int]:
    """A value that is stored unchanged is a view, so the memory that it looks at has no other owner."""
    stored = call.active.get("stored")
    if stored == UNROUNDED:
        return call.input_bytes
    return [call.bytes_of("dequantized" if stored in FP8_NAMES else "stored")] * len(call.outputs)


def _scratch(call: Call) -> int:
    """A quotient, its clamped value, the 8 bits, and their product with the scale."""
    stored = call.active.get("stored")
    if stored == UNROUNDED:
        return 0
    return 4 * call.wide * call.tokens * max(call.inputs)


KV_CACHE = Op(
    name="kv_cache",
    says="Keys and values as the cache gives them back: k [B, G, T, D], v [B, T, G, D] or, of a latent, [B, T, L] "
    "-> k [B, G, T, D], v by heads too, [B, G, T, D] or [B, 1, T, L]; views of what comes in where nothing is rounded.",
    inputs=("k", "v"),
    outputs=("k", "v"),
    attributes=(
        replace(
            site("stored", "keys and values are stored in this dtype; `unrounded`: in the one that they come in"),
            default=UNROUNDED,
            values=(UNROUNDED, MODEL, *FLOAT_NAMES, *FP8_NAMES),
        ),
        Attribute(
            name="scale",
            kind="form",
            default=STATIC,
            values=(STATIC, CHECKPOINT, TENSOR, HEAD),
            when=_FP8,
            sources={CHECKPOINT: _OF_FILE},
            says="what is stored in 8 bits is divided by `k_scale` and `v_scale`; or by those of the checkpoint, 1 "
            f"where it has none ({_OF_FILE.source}); or by the highest magnitude of a "
            "step's keys (of its values), of all heads or of each, over the largest number of the 8-bit dtype, in "
            "fp32; 1 where all are 0. Under tensor parallelism all ranks' heads count here",
        ),
        *(
            Attribute(
                name=f"{name}_scale",
                kind="form",
                default=1.0,
                number=True,
                usual=(1.0,),
                when=_STATIC,
                says=f"what {words} are divided by before they are stored, and multiplied with when they are read; "
                "an fp32 number",
            )
            for name, words in (("k", "keys"), ("v", "values"))
        ),
        replace(
            site(
                "quotient",
                "the quotient is rounded to this dtype before it is stored",
                default="fp32",
                when=_FP8,
            ),
            sources={"fp32": _VLLM, MODEL: _SGLANG},
        ),
        Attribute(
            name="overflow",
            kind="form",
            default=SATURATES,
            values=(SATURATES, INFINITE),
            sources={SATURATES: _VLLM, INFINITE: _SGLANG},
            when={"stored": ("fp8_e5m2",)},
            says="what is too large is stored as the largest number (vLLM's kernel), or as infinity (SGLang: torch's "
            "cast). In fp8_e4m3, which has no infinities, it always is the largest, by torch's cast too (2.13.0)",
        ),
        site(
            "dequantized",
            "what is read, times its scale in fp32, is rounded to this dtype",
            when=_FP8,
        ),
    ),
    tokens=Tokens(sees_rows=_sees_rows, axis=2, input_axes={"k": 2}),
    cut=Cut(keeps_heads=True),
    memory=Memory(widths=_widths, output_bytes=_bytes, scratch=_scratch),
    kernel="kv_cache:kv_cache",
    source="transformers 5.23.0, cache_utils.py; fp8, read: vLLM 0.33.0, csrc/cache_kernels.cu "
    "reshape_and_cache_flash and v1/attention/ops/triton_unified_attention.py _cast_kv_tile; "
    f"{_VLLM.source}; {_SGLANG.source}",
)


LAYOUT = (
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
        when={"kv_layout": ("static",), "implementation": (EAGER, SDPA)},
        says="places of the static cache; those that no token has filled hold zeros, hidden from every query",
    ),
)
"""The memory layout of keys and values by head that come from a cache."""
