"""docs/generated/verified.md: why no run tells what happens inside of a GEMM or of attention, choice by choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

from moeparity.ops.registry import OPS

PLAN, ONE_RANK, OPERANDS, QUERIES = "plan", "one rank", "operands", "queries"
BATCHES, LENGTHS, FLASH_ATTENTION, LIBRARY, LIBRARYS_ATTENTION = (
    "batches", "lengths", "FlashAttention 3", "library", "library's attention",
)  # fmt: skip
SAYS: Final[Mapping[str, str]] = {
    PLAN: "Into how many parts cuBLAS cuts K only its plan for a shape says, which a GPU's library tells: "
    "`moeparity kernel plans`.",
    ONE_RANK: "Fixed blocks make bits independent of the number of ranks. Along outputs or heads they change none, "
    "so that no run tells them; where they cut K, profiles without a record or a run of it say nothing.",
    OPERANDS: "TF32 is of fp32 operands; those of 16 bits leave no choice.",
    QUERIES: "Blocks of queries are those of torch's kernel; an engine's has its own, in `kv_block` and `q_block`.",
    BATCHES: "The products with kv_b's halves are one `torch.bmm` for all heads, and no batched product was "
    "recorded on a GPU.",
    LENGTHS: "The launch decides by lengths, heads and the number of SMs: read. What it decides for was run, at "
    "some lengths.",
    FLASH_ATTENTION: "Its kernels load by TMA, which the PTX interpreter does not have, and no output of theirs was "
    "recorded on a GPU. With `--attention-backend` set to Triton's kernels, which were run, the profiles are those "
    "named for it; prompts with latent attention stay here.",
    LIBRARY: "The engine's own GEMMs (TensorRT-LLM's, TransformerEngine's, FlashInfer's CUTLASS) were not "
    "recorded; that they add in one chain is inferred, or assumed of all GPUs.",
    LIBRARYS_ATTENTION: "Which of cuDNN's, TransformerEngine's, TensorRT-LLM's or FlashInfer's kernels attends, and "
    "how, the profile does not state: binaries, or kernels by TMA.",
}
"""By its short name, each reason."""
_SILENT: Final = ("trtllm", "megatron", "flashinfer-fused")
"""Profiles that say nothing of a library's kernels."""


class Inside(Protocol):
    """A choice inside of a kernel that goes through tensor cores, and how sure it is."""

    @property
    def op(self) -> str:
        """The op."""

    @property
    def attribute(self) -> str:
        """Which of its choices."""

    @property
    def level(self) -> str:
        """How sure it is."""


def reason(profile: str, choice: Inside) -> str:
    """Which of `SAYS` it is. Raises LookupError for a choice that none is given for."""
    gemm = OPS[choice.op].role.gemm
    everywhere = {"blocks": ONE_RANK, "tf32": OPERANDS, "rows": QUERIES, "kv_b_order": LIBRARY if gemm else BATCHES}
    if choice.attribute in everywhere:
        return everywhere[choice.attribute]
    if gemm:
        return {"splits": PLAN, "order": LIBRARY}[choice.attribute]
    if profile in _SILENT:
        return LIBRARYS_ATTENTION
    if choice.level == "read" or (choice.op == "attention" and choice.attribute == "splits"):
        return LENGTHS
    if profile.startswith(("vllm", "sglang")):
        return FLASH_ATTENTION
    raise LookupError(f"{profile}: {choice.op}:{choice.attribute}")


def table(counted: Iterable[tuple[str, Inside]]) -> Iterator[str]:
    """A row for each reason: the choices, and in which profiles they stand."""
    choices: dict[str, dict[str, None]] = {name: {} for name in SAYS}
    profiles: dict[str, dict[str, None]] = {name: {} for name in SAYS}
    for profile, choice in counted:
        name = reason(profile, choice)
        choices[name][f"`{choice.op}:{choice.attribute}`"] = None
        profiles[name][f"`{profile}`"] = None
    yield "| reason | choices | in |\n|---|---|---|"
    for name, says in SAYS.items():
        if choices[name]:
            yield f"| {says} | {', '.join(choices[name])} | {', '.join(profiles[name])} |"
