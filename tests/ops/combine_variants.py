"""The engines' ways to combine, by id: what to set, who does it, and on what that rests.

The table of docs/combine.md is printed from here (`python -m scripts.pages combine`), and test_combine_variants.py
computes every row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Settings = Mapping[str, str | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """`sets` are attributes by `op:attribute`, on every node of that op; `ranks`: over how many experts lie.

    evidence: `verified` here, `read` in the sources named, `inferred`. shared: it needs a model with a shared expert.
    """

    id: str
    does: str
    engines: str
    evidence: str
    sets: Settings
    ranks: int = 1
    shared: bool = False


def _sets(*parts: Settings, **more: str | float) -> dict[str, str | float]:
    merged = {name: value for part in parts for name, value in part.items()}
    return merged | {name.replace("__", ":"): value for name, value in more.items()}


_FP32_SUM = {"combine:accumulate": "fp32", "combine:leaves": "slot", "combine:order": "sequential"}
_ROWS_ARE_WEIGHTED = {"router:weights": "fp32", "experts:score_site": "epilogue"}
_ON_ACTIVATION = {
    "router:weights": "fp32",
    "experts:score_site": "activation",
    "experts:activation": "fp32",
    "experts:product": "fp32",
}
_BY_EXPERT_BF16 = {"combine:accumulate": "bf16", "combine:leaves": "expert", "combine:order": "sequential"}
_LANES = {"combine:accumulate": "fp32", "combine:leaves": "slot", "combine:order": "lanes(4) | sequential"}
_FMA = {"combine:weighted": "fp32", "combine:accumulate": "fp32", "combine:leaves": "slot"}
_C3 = _sets(_ROWS_ARE_WEIGHTED, _FP32_SUM)
_C6 = _sets(_FMA, {"router:weights": "fp32", "combine:order": "sequential(fma)"})
_RANKS = {"all_reduce:collective": "none", "all_reduce:order": "sequential", "all_reduce:accumulate": "fp32"}
_INTRANODE = {"combine:partial": "bf16", "all_reduce:collective": "deepep.intranode"}

VARIANTS = (
    Variant(
        id="C1",
        does="each expert's rows are weighted, rounded and added to a bf16 output",
        engines="transformers 4 and 5, eager experts",
        evidence="verified: transformers 5.23.0 on CPU, tests/hf",
        sets=_sets(_BY_EXPERT_BF16, router__weights="bf16", combine__weighted="bf16"),
    ),
    Variant(
        id="C2",
        does="fp32 products added to an fp32 output by expert, rounded at the end",
        engines="transformers 4, DeepSeek-V3 and GLM-4.5",
        evidence="read: transformers 4.57.6",
        sets=_sets(
            {"router:weights": "fp32", "combine:weighted": "fp32", "combine:accumulate": "fp32"},
            {"combine:leaves": "expert", "combine:order": "sequential"},
        ),
    ),
    Variant(
        id="C3",
        does="the GEMM's epilogue multiplies and rounds each row; the rows are added in fp32",
        engines="vLLM and SGLang, Triton experts",
        evidence="read: vLLM 0.33.0 moe_sum, sglang 0.5.23",
        sets=_C3,
    ),
    Variant(
        id="C3s",
        does="C3, the sum scaled in fp32 before it is rounded",
        engines="SGLang, models with a routed_scaling_factor",
        evidence="read: sglang 0.5.23 moe_sum_reduce",
        sets=_sets(_C3, router__scaling="accumulator"),
        shared=True,
    ),
    Variant(
        id="C3o",
        does="C3, the rounded sum scaled and rounded again",
        engines="vLLM, eager: DeepSeek-V3 and GLM-4.5",
        evidence="read: vLLM 0.33.0 moe_runner.py _maybe_apply_routed_scale_to_output",
        sets=_sets(_C3, router__scaling="output"),
        shared=True,
    ),
    Variant(
        id="C4",
        does="bf16 scores, rows weighted and rounded; added in fp32 by four lanes",
        engines="transformers 5, grouped_mm on CUDA; MegaBlocks, whose scores are fp32",
        evidence="read: transformers 5.23.0; torch 2.13 Reduce.cuh. On CPU the order is `native`: verified, tests/hf",
        sets=_sets(_LANES, router__weights="bf16", combine__weighted="bf16"),
    ),
    Variant(
        id="C5",
        does="fp32 scores, products in fp32; added in fp32 by four lanes",
        engines="transformers 5, grouped_mm on CUDA, models with fp32 scores",
        evidence="read: transformers 5.23.0; torch 2.13 Reduce.cuh. On CPU the order is `native`: verified, tests/hf",
        sets=_sets(_LANES, router__weights="fp32", combine__weighted="fp32"),
    ),
    Variant(
        id="C6",
        does="fma of fp32 score and bf16 row into an fp32 accumulator, by slot",
        engines="TensorRT-LLM finalize, vLLM moe_unpermute, ep_gather of vLLM and SGLang",
        evidence="read; that the compilers contract is inferred (SGLang's shuffle_weighted_sum writes the fma: read)",
        sets=_C6,
    ),
    Variant(
        id="C7",
        does="C6 with bf16 scores",
        engines="TensorRT-LLM-gen, where the kernel routes itself",
        evidence="read: FlashInfer fb28d72 trtllm_fused_moe_kernel_launcher.cu",
        sets=_sets(_C6, router__weights="bf16"),
    ),
    Variant(
        id="C8",
        does="weighted rows from the epilogue, added to a bf16 output as they arrive",
        engines="FlashInfer and TensorRT-LLM CUTLASS, fused finalize (the autotuner chooses it or C6)",
        evidence="read: FlashInfer fb28d72 sm90_visitor_scatter.hpp; one draw of an order that is open",
        sets=_sets(_ROWS_ARE_WEIGHTED, _FP32_SUM, combine__accumulate="bf16", combine__order="unordered(0)"),
    ),
    Variant(
        id="C9",
        does="scores on the activations, one rounding; rows added in fp32, highest expert first",
        engines="Megatron-LM with TransformerEngine's permutation",
        evidence="read: Megatron-LM d98e8a64dd, TransformerEngine d0067d0; that it rounds once is inferred",
        sets=_sets(_ON_ACTIVATION, _FP32_SUM, combine__leaves="expert", combine__order="reverse"),
    ),
    Variant(
        id="C10",
        does="C9's rows, added to a bf16 output as they arrive",
        engines="Megatron-LM, unfused, scatter_add",
        evidence="read: Megatron-LM d98e8a64dd; one draw of an order that is open",
        sets=_sets(_ON_ACTIVATION, _FP32_SUM, combine__accumulate="bf16", combine__order="unordered(0)"),
    ),
    Variant(
        id="C10d",
        does="C9's rows, added to a bf16 output by expert",
        engines="Megatron-LM, unfused, deterministic index_add",
        evidence="read: Megatron-LM d98e8a64dd",
        sets=_sets(_ON_ACTIVATION, _BY_EXPERT_BF16),
    ),
    Variant(
        id="C11",
        does="a local combine on each rank (here C3), rounded to bf16; ranks added in fp32, ascending",
        engines="DeepEP, normal mode, one node; its kernels never multiply by scores",
        evidence="read: DeepEP dd758caf45 intranode.cu",
        sets=_sets(_C3, _INTRANODE),
        ranks=8,
    ),
    Variant(
        id="C12",
        does="C11, the sum of each node rounded to bf16, then nodes in fp32",
        engines="DeepEP, normal mode, several nodes",
        evidence="read: DeepEP dd758caf45 internode.cu",
        sets=_sets(_C3, combine__partial="bf16", all_reduce__collective="deepep.internode"),
        ranks=16,
    ),
    Variant(
        id="C13",
        does="C6 on rows that travelled in bf16",
        engines="DeepEP, low latency (without LogFMT, which is not imitated)",
        evidence="read: DeepEP dd758caf45 internode_ll.cu; the contraction inferred",
        sets=_sets(_C6, experts__output="bf16"),
    ),
    Variant(
        id="C14",
        does="C11, ranks in the order in which the token's slots meet them",
        engines="DeepEP v2 (elastic)",
        evidence="read: DeepEP dd758caf45 combine_reduce_epilogue.cuh",
        sets=_sets(_C3, _INTRANODE, combine__partials="first_slot"),
        ranks=8,
    ),
    Variant(
        id="C15",
        does="fp32 scores times fp32 rows in a batched GEMM, rounded once",
        engines="Fireworks' trainer",
        evidence="inferred: Fireworks' blog names the GEMM; its order is not known, and any order may stand here",
        sets=_C6,
    ),
    Variant(
        id="C16",
        does="bf16 scores, rows weighted and rounded, added to a bf16 output by expert",
        engines="torchtitan's wrapper around DeepEP",
        evidence="read: torchtitan b5bcd76 combine_tokens. One rank's sum; DeepEP's own kernels are C11 to C14",
        sets=_sets(_BY_EXPERT_BF16, router__weights="bf16", combine__weighted="bf16"),
    ),
    Variant(
        id="C17",
        does="fp32 sums of each rank's rows by expert, ranks added in fp32, rounded once",
        engines="Megatron-LM, batch-invariant",
        evidence="read: Megatron-LM d98e8a64dd",
        sets=_sets(_ON_ACTIVATION, _RANKS, _FP32_SUM, combine__leaves="expert", combine__partial="fp32"),
        ranks=4,
    ),
    Variant(
        id="C18",
        does="fp32 scores, rows weighted and rounded, added in fp32 by expert, rounded once",
        engines="torchtitan 0.3, local and all-to-all dispatch",
        evidence="verified: torchtitan 0.3.0 on CPU, tests/ops; scatter_add on CUDA is another kernel",
        sets=_sets(
            {"router:weights": "fp32", "combine:weighted": "bf16", "combine:accumulate": "fp32"},
            {"combine:leaves": "expert", "combine:order": "sequential"},
        ),
    ),
    Variant(
        id="S1",
        does="routed sum rounded; the shared expert added to it, rounded",
        engines="transformers, torchtitan, Megatron-LM, vLLM",
        evidence="verified on CPU: transformers 5.23.0, tests/hf; torchtitan 0.3.0 and 0.2.2, tests/ops",
        sets=_sets(_C3, combine__shared="add"),
        shared=True,
    ),
    Variant(
        id="S2",
        does="the shared expert's output after the rows in the same accumulator",
        engines="TensorRT-LLM moe_finalize_fuse_shared",
        evidence="read: FlashInfer fb28d72 moe_finalize_fuse_shared.cu; after the rows inferred",
        sets=_sets(_C6, combine__shared="last"),
        shared=True,
    ),
    Variant(
        id="S3",
        does="the accumulator starts from the shared expert's output",
        engines="the other order of S2",
        evidence="inferred",
        sets=_sets(_C6, combine__shared="first"),
        shared=True,
    ),
    Variant(
        id="S4",
        does="the shared expert as one row more, with weight 1",
        engines="SGLang and vLLM, fused shared experts",
        evidence="read",
        sets=_sets(_FMA, router__weights="fp32", combine__order="sequential", combine__shared="slot"),
        shared=True,
    ),
    Variant(
        id="S5",
        does="S4 with weight 1 / S, and the sum times S before it is rounded",
        engines="SGLang, fused shared experts",
        evidence="read: sglang 0.5.23",
        sets=_sets(
            _FMA,
            {"router:weights": "fp32", "router:scaling": "accumulator"},
            combine__order="sequential",
            combine__shared="slot",
        ),
        shared=True,
    ),
    Variant(
        id="S6",
        does="shared + S * routed, rounded once",
        engines="SGLang with DeepEP; vLLM, compiled: DeepSeek-V3 and GLM-4.5",
        evidence="read: sglang 0.5.23 _scale_routed_and_add_shared; with `shared_fma` where the compiler contracts; "
        "inferred: vLLM 0.33.0 moe_runner.py, of what Inductor fuses",
        sets=_sets(_C3, router__scaling="shared_add"),
        shared=True,
    ),
    Variant(
        id="F1",
        does="fp32 scores, rows weighted and rounded, added to a bf16 output by expert",
        engines="Qwen3.5-MoE case, the blog's Hugging Face (C1 with fp32 scores)",
        evidence="read: Fireworks' blog. transformers 5.23's Qwen3.5 router returns bf16 scores, its default is C4",
        sets=_sets(_BY_EXPERT_BF16, router__weights="fp32", combine__weighted="bf16"),
    ),
    Variant(
        id="F2",
        does="fp32 scores, products and sum; rounded once",
        engines="Qwen3.5-MoE case, Fireworks (C15); torchtitan 0.2; Liger's fused experts",
        evidence="inferred, as C15. verified, tests/ops: torchtitan 0.2.2 on CPU, fma or not by what MKL does; Liger "
        "0.8.5's roundings in Triton's interpreter",
        sets=_sets(_FMA, router__weights="fp32", combine__order="sequential"),
    ),
    Variant(
        id="F3",
        does="bf16 scores, bf16 sum",
        engines="Qwen3.5-MoE case, the blog's DeepEP: torchtitan's wrapper (C16), not DeepEP's kernels",
        evidence="read: torchtitan b5bcd76; that the blog means it is inferred",
        sets=_sets(_BY_EXPERT_BF16, router__weights="bf16", combine__weighted="bf16"),
    ),
)
"""All of them, by id."""


def table() -> str:
    """The table as Markdown."""
    lines = ["| id | what is done | set | engines | evidence |", "|---|---|---|---|---|"]
    for v in VARIANTS:
        sets = ", ".join(f"`{name}={value}`".replace("|", "\\|") for name, value in v.sets.items())
        sets += f"; `placement: {{expert: {v.ranks}}}`" if v.ranks > 1 else ""
        lines.append(f"| {v.id} | {v.does} | {sets} | {v.engines} | {v.evidence} |")
    return "\n".join(lines)
