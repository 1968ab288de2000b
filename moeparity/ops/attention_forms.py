"""The choices of attention, whatever its queries, keys and values are made from."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.numerics.orders import NATIVE
from moeparity.ops.attribute import ABOVE_1, TRITON, Attribute, site, sum_order
from moeparity.ops.linear import ROWS, TF32
from moeparity.ops.memory import Call
from moeparity.ops.placement import BLOCKS, TENSOR

EAGER, SDPA, FLASH = "eager", "sdpa", "flash"
OF_SCORES = "of_scores"
SCORES, QUERY = "scores", "query"
"""What the softmax scale multiplies."""
U20 = "u20"
"""torch's quick exp on CPUs."""
LIBM, LIBM_FMA, FIRST = "libm", "libm_fma", "first"
"""The C library's exp and log; these, and the sum around them contracted; a softmax divided by its sum at once."""
DIV_FULL = "div_full"
"""Triton's exp, and its quotient."""
SEGMENTS = "segments"
"""Runs that are divided by their sum when they are merged."""
SEGMENTS_OF_VLLM: Final = 16
"""Into how many runs vLLM's Triton attention cuts keys."""
FIXED = "fixed"
SHARED = "shared"
"""Cascade attention: one run for the keys up to a place that many sequences share, another for the rest."""
L2, MACHINE = "l2", "machine"
"""Tiles of as many keys as fit into the second cache of a core, and that of the CPU at hand."""
TILES, SEEN, KEYS = "tiles", "seen", "keys"
"""What split-KV distributes evenly: a sequence's tiles, the tiles that some queries see, or the keys that they see."""
_EAGER = {"implementation": (EAGER,)}
_WRITTEN = {**_EAGER, "softmax": ("divide", "reciprocal")}
_FLASH = {"implementation": (FLASH,)}
_TORCH = {**_FLASH, "order": (NATIVE, None)}
_SPLIT = {**_FLASH, "splits": (ABOVE_1, FIXED, SHARED)}
_EVENLY = {**_FLASH, "splits": (ABOVE_1,)}
_FLASH_SOURCE = Evidence("read", "FlashAttention 0251105, flash_fwd_kernel.h and softmax.h")
_CPU_TILES = Evidence("read", "vLLM 0.32.0, csrc/cpu/cpu_attn_impl.hpp, calcu_tile_size_with_constant_q")
_CPU_SOURCE = Evidence("read", "vLLM 0.33.0, csrc/cpu/cpu_attn_impl.hpp, cpu_attn_vec16.hpp, cpu_arch_macros.h")
_CPU_MLA = Evidence("read", "vLLM 0.32.0, csrc/cpu/mla_decode.cpp, mla_decode_block_head")
_MERGE_SOURCE = Evidence("read", "vLLM 0.33.0, merge_attn_states.cu, and 0155494, triton_decode_attention.py")

FORMS = (
    Attribute(
        name="implementation",
        kind="form",
        default=EAGER,
        values=(EAGER, SDPA, FLASH),
        sources={FLASH: _FLASH_SOURCE},
        says="matmul, softmax, matmul with every result stored; or torch's scaled_dot_product_attention, whose inner "
        "order and roundings are the kernel's own; or the online softmax of FlashAttention over tiles of keys, scores "
        "and output in fp32 (fp64 where a site is) until the end",
    ),
    site("scores", "q @ k.T, its scaling and the mask addition are each rounded to this dtype", when=_EAGER),
    Attribute(
        name="softmax",
        kind="form",
        default=NATIVE,
        values=(NATIVE, OF_SCORES, "divide", "reciprocal"),
        when=_EAGER,
        says="torch's own kernel, for fp32 (for fp64 where a site is), or for the scores' dtype as it is (Llama 4); or "
        "exp(x - max), divided by its sum (torch's kernel on CUDA), or multiplied with the sum's reciprocal (torch's "
        "kernel on CPU)",
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
        name="scale_on",
        kind="form",
        default=SCORES,
        values=(SCORES, QUERY),
        sources={SCORES: _FLASH_SOURCE, QUERY: _CPU_SOURCE},
        when=_TORCH,
        says="the softmax scale multiplies q @ k.T, in the exponent where `exponential` folds it in; or each query, in "
        "fp32, before that product (vLLM's kernels for CPUs without AMX)",
    ),
    sum_order(
        "scores_order",
        "in which order the products of a query and a key are added, in fp32: torch's own GEMM, one written out, or "
        "that of a GPU's tensor cores",
        when=_TORCH,
        tensor_cores=True,
    ),
    sum_order(
        "values_order",
        "in which order a tile's exponentials times v are added, in fp32: torch's own GEMM, whose result is added to "
        "what came before; or one written out or of tensor cores, which starts from what came before",
        when=_TORCH,
        tensor_cores=True,
    ),
    Attribute(
        name="kv_block",
        kind="form",
        default=64,
        values=(L2,),
        least=1,
        sources={"64": _FLASH_SOURCE, L2: _CPU_TILES},
        when=_FLASH,
        says="keys of one tile, of which the first starts at key 0; FlashAttention 2 has 64 at head width 128, 3 has "
        "128 where causal or paged and 176 elsewhere. Or `l2`: a step's queries of a sequence go in blocks of as many "
        "as half of `l2_bytes` holds with equally many keys, and each block has tiles of as many keys as still fit "
        "beside it, whole groups of 32 (vLLM's kernels for CPUs without AMX)",
    ),
    Attribute(
        name="l2_bytes",
        kind="form",
        default=MACHINE,
        values=(MACHINE,),
        least=1 << 10,
        usual=(1 << 20, 1 << 21),
        when={**_FLASH, "kv_block": (L2,)},
        says="bytes of the L2 cache of one core: those of the CPU at hand, or a number, for what another CPU recorded",
    ),
    replace(
        ROWS,
        when=_TORCH,
        says="all queries of a step at once, and tiles as long as there are keys; or blocks of exactly so many queries "
        "of one sequence, and tiles of exactly `kv_block` keys from its first token on, both filled up with zeros, so "
        "that no bit depends on other sequences, on padding, on later keys, or on how many queries a step has. That a "
        "query's place in its block does not matter is tried on the machine at hand, and refused where it does",
    ),
    Attribute(
        name="kv_order",
        kind="order",
        default="descending",
        values=("descending", "ascending"),
        sources={"descending": _FLASH_SOURCE},
        redrawn=False,
        when=_FLASH,
        says="the last tile first, as FlashAttention 2 and 3 go, or the first",
    ),
    Attribute(
        name="exponential",
        kind="form",
        default="exp2_fma",
        values=("exp2_fma", "exp2", "exp", TRITON, U20, LIBM),
        sources={"exp2_fma": _FLASH_SOURCE, U20: _CPU_SOURCE, LIBM: _CPU_MLA},
        when=_TORCH,
        says="with c = scale * log2(e): exp2 of fma(score, c, -(max * c)), or of the difference of two rounded "
        "products, also where what came before is rescaled (vLLM 0.33.0, triton_prefill_attention.py), in fp32 by "
        "ex2.approx as an H200 has it; or exp(score * scale - max), rounded correctly, or (triton) by Triton's "
        "exp, ex2.approx of x * log2(e). Or that by torch's exp_u20 "
        "for CPUs, what came before rescaled by glibc's expf (vLLM's kernels for CPUs with AVX-512; in fp32 only); or "
        "all by glibc's",
    ),
    Attribute(
        name="rescale_above",
        kind="form",
        default=0,
        least=0,
        when=_TORCH,
        says="the maximum is raised, and what came before rescaled, where the highest exponent of a tile lies above it "
        "by more than this, in the units of `exponential`; what does not reach that leaves exponentials above 1",
    ),
    Attribute(
        name="contraction",
        kind="form",
        default="none",
        values=("none", "sum"),
        sources={"sum": _CPU_SOURCE},
        when=_TORCH,
        says="the sum of exponentials so far, rescaled, is rounded before a tile's is added to it, or contracted with "
        "that addition into one fma",
    ),
    sum_order(
        "row_sum",
        "in which order a tile's exponentials are added, before they are rounded; what came before is scaled, then "
        "that sum is added to it. On tensor cores a tile is filled up with zeros to `kv_block`. FlashAttention's four "
        "threads of a row each carry a sum of their own over all tiles (`order`)",
        when=_TORCH,
    ),
    Attribute(
        name="normalize",
        kind="form",
        default="reciprocal",
        values=("reciprocal", FIRST, "divide", DIV_FULL),
        sources={"reciprocal": _FLASH_SOURCE, FIRST: _CPU_MLA},
        when=_TORCH,
        says="the output times 1 / sum, as FlashAttention 2 and 3 do, or divided by the sum; or (div_full) that by "
        "`div.full`, as Triton's kernels do; or exponentials by their sum before they meet v, in runs of one tile",
    ),
    Attribute(
        name="splits",
        kind="form",
        default=1,
        values=(FIXED, SHARED),
        sources={
            FIXED: Evidence("read", "FlashInfer fb28d72 attention/prefill.cuh"),
            SHARED: Evidence("read", "vLLM 5704f34f36 vllm/v1/attention/backends/flash_attn.py"),
        },
        least=1,
        when=_FLASH,
        says="split-KV: the keys are cut into so many runs, or into runs of `split_keys`, each an attention of its own "
        "with a log-sum-exp; or (cascade attention) into the first `shared_keys` and those behind them, for queries "
        "that stand behind them, too",
    ),
    Attribute(
        name="split_by",
        kind="form",
        default=TILES,
        values=(TILES, SEEN, KEYS),
        sources={
            TILES: Evidence("read", "FlashAttention 0251105 csrc/flash_attn/src/flash_fwd_kernel.h"),
            SEEN: Evidence("read", "0f25c7b hopper/block.h, get_n_block_min_max"),
            KEYS: Evidence("read", "vLLM 0155494 vllm/v1/attention/ops/triton_decode_attention.py"),
        },
        when=_EVENLY,
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
        when={**_EVENLY, "split_by": (SEEN, KEYS)},
        says="queries whose keys are cut together; 1: each on its own, as in decode",
    ),
    Attribute(
        name="split_unit",
        kind="form",
        default=1,
        least=1,
        when={**_EVENLY, "split_by": (KEYS,)},
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
    Attribute(
        name="shared_keys",
        kind="form",
        default=256,
        least=1,
        when={**_FLASH, "splits": (SHARED,)},
        says="keys of the prefix that the sequences of a step have in common, whole blocks of a cache; tiles start "
        "anew behind them",
    ),
    site(
        "split",
        "the output of each run is rounded to this dtype, and so is each pairwise merge",
        default="fp32",
        when={**_SPLIT, "merge": ("at_once", "pairwise", "online", LIBM, LIBM_FMA)},
    ),
    Attribute(
        name="merge",
        kind="form",
        default="at_once",
        values=("at_once", "pairwise", "online", SEGMENTS, LIBM, LIBM_FMA),
        sources={**dict.fromkeys(("pairwise", "online"), _MERGE_SOURCE), **dict.fromkeys((LIBM, LIBM_FMA), _CPU_MLA)},
        when=_SPLIT,
        says="all runs with weights exp(lse - lse of all), then one rounding to `output` (FlashAttention's combine); "
        "one after the other, with weights that are quotients, stored as `split` (vLLM's merge_attn_states, for "
        "chunked contexts); or one after the other, rescaled by exp(highest lse before - now) and divided by the sum "
        "of weights at the end (Triton decode kernels of vLLM and SGLang); or divided only then, up to 16 runs as "
        "vLLM's reduce_segments adds them (segments); or as pairwise, with glibc's expf and logf (vLLM's latent decode "
        "on CPUs), nothing contracted or (libm_fma) the later run's product",
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
    site("output", "probabilities @ v is rounded to this dtype", cuts=True),
    TENSOR,
    BLOCKS,
)

INSIDE: Final = frozenset(
    {"implementation", "scores", "softmax", "tf32", "kv_block", "rows", "kv_order", "exponential", "row_sum"}
    | {"l2_bytes", "scale_on", "scores_order", "values_order", "rescale_above", "contraction"}
    | {"normalize", "splits", "probabilities", "output", "blocks"}
)
"""What happens between the two products and inside them, within one kernel. Runs of keys are merged by another
kernel."""


def refuses_keys(call: Call) -> tuple[str, str] | None:
    """Refuses a static cache that is too small for the keys of a step. That of a window drops what no query reaches."""
    places = call.active.get("allocated")
    if places is None or call.params.get("window") is not None or call.length <= places:
        return None
    return "allocated", f"{call.length} tokens do not fit into {places} places. Allocate more."
