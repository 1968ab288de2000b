"""Which trials cannot run, from what the engines do. Knows nothing of moeparity but the names of its toggles.

What a file starts is written down here by hand, from the file and the engine's documentation, not read by a program.
Sources: NCCL 2.27 has a tree for all-reduce and none for reduce-scatter (src/enqueue.cc); vLLM's, SGLang's and
FlashInfer's one-kernel all-reduces have no reduce-scatter, and run on the ranks of one node
(vllm/distributed/device_communicators/custom_all_reduce.py, flashinfer/comm/allreduce.py); torch's grouped GEMM takes
rows of whole 16 bytes (aten/src/ATen/native/GroupedMMUtils.h). vLLM and SGLang add routed and shared experts on each
rank before one all-reduce, so that both lie on the same ranks (vllm/model_executor/layers/fused_moe/runner/
moe_runner.py, sglang/srt/models/deepseek_v2.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

ENGINE, TREE, RING = "the engine's own kernel", "NCCL's tree", "NCCL's ring"
NODE: Final = (2, 4, 8)
"""Ranks that an engine's own kernel adds up: those of one node, of 8 GPUs."""
EXPERTS: Final = "**.experts:tensor"
"""The toggle of the ranks over which each routed expert is cut."""
ROW: Final = 16
"""Bytes that a row of torch's grouped GEMM must be a multiple of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a launch file starts.

    ranks: over how many a row-parallel GEMM is cut; 1: it is whole. adds: what adds up their sums; of whole ones what
    would. scattered: sequence parallel. cut_experts: each expert is cut over the ranks too. grouped: torch's grouped
    GEMM runs the experts. at_once: routed and shared experts are added on each rank before one all-reduce.
    """

    ranks: int = 1
    adds: str = RING
    scattered: bool = False
    cut_experts: bool = True
    grouped: bool = False
    at_once: bool = False


SERVERS: Final = {
    "vllm-offline.py": Side(adds=ENGINE),
    "vllm-batch-invariant.sh": Side(ranks=2, adds=ENGINE),
    "vllm-tp4-ep.sh": Side(ranks=4, adds=ENGINE, cut_experts=False),
    "vllm-eager-tp8.sh": Side(ranks=8, adds=ENGINE),
    "vllm-dp-ep.yaml": Side(ranks=2, adds=ENGINE, cut_experts=False),
    "vllm-two-nodes.sh": Side(ranks=16),
    "sglang-engine.py": Side(ranks=2, adds=ENGINE),
    "sglang-deterministic.yaml": Side(ranks=4, adds=TREE),
    "sglang-tp8.sh": Side(ranks=8, adds=ENGINE),
    "sglang-dp-attention.sh": Side(adds=ENGINE, cut_experts=False),
    "sglang-tp32.yaml": Side(ranks=32),
}
"""All of them add up both kinds of experts at once."""
_MEGATRON: Final = Side(ranks=4, scattered=True, cut_experts=False)
_TRANSFORMERS: Final = Side(grouped=True)
TRAINERS: Final = {
    "megatron-lm.sh": _MEGATRON,
    "verl/fsdp.sh": _TRANSFORMERS,
    "verl/megatron.sh": _MEGATRON,
    "verl/mbridge.sh": Side(cut_experts=False),
    "verl/hydra.yaml": replace(_MEGATRON, ranks=2),
    "nemo-rl/grpo-moe-4n8g-megatron.yaml": _MEGATRON,
    "slime/run.sh": _MEGATRON,
    "miles.sh": replace(_MEGATRON, ranks=8),
    "skyrl.sh": _MEGATRON,
    "trl.py": _TRANSFORMERS,
    "openrlhf.sh": _TRANSFORMERS,
}
REFUSED: Final = {
    "trtllm-tp4-ep4.sh": "trtllm-serve",
    "prime-rl.toml": "prime-rl",
}
"""Files that start something that no profile speaks of, and how it is called."""


def impossible(
    server: str, trainer: str, toggles: Collection[str], expert_width: int, *, shared: bool
) -> set[tuple[str, str]]:
    """The trials that cannot run, of a model with `shared` experts or without: a toggle, with `alone` or `restored`."""
    reference, candidate = TRAINERS[trainer], replace(SERVERS[server], at_once=shared)
    trials = set()
    for toggle in toggles:
        for way, base, source in (("alone", reference, candidate), ("restored", candidate, reference)):
            mixed = mixture(base, source, toggle)
            # A whole side says nothing of sequence parallel: where no toggle does, ranks come with the other's.
            if toggle == "placement tensor" and base.ranks == 1 and "placement sequence" not in toggles:
                mixed = replace(mixed, scattered=source.scattered)
            # Routed experts stay cut as they were where they have a toggle of their own.
            stay_cut = toggle == "placement tensor" and EXPERTS in toggles and base.cut_experts
            torn = base.at_once and stay_cut and 1 < mixed.ranks != base.ranks
            if torn or not runs(mixed, expert_width):
                trials.add((toggle, way))
    return trials


def mixture(base: Side, source: Side, toggle: str) -> Side:
    """A side with what one toggle takes from the other."""
    if toggle == "placement tensor":
        return replace(base, ranks=source.ranks, cut_experts=base.cut_experts and source.cut_experts)
    if toggle == "placement sequence":
        return replace(base, scattered=source.scattered)
    if toggle == "op experts:implementation":
        return replace(base, grouped=source.grouped)
    if "all_reduce:collective" in toggle or "allreduce" in toggle:
        return replace(base, adds=source.adds)
    return base


def runs(side: Side, expert_width: int) -> bool:
    """Whether anybody could run such a side with experts of that width in 16 bits."""
    if side.ranks > 1:
        if side.scattered and side.adds != RING:
            return False
        if side.adds == ENGINE and side.ranks not in NODE:
            return False
    cut = side.ranks if side.cut_experts else 1
    return not (side.grouped and expert_width // cut * 2 % ROW)
