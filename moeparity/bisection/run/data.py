"""Both sides as they ran, the machine, and the cost; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.output.words import enumerated, few

_NAMED = 8
"""At most this many overrides of a side are printed; a recipe may have hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One side as it ran. placement: such as `tensor 4, expert 2`, "" on one rank.

    schedule: in words, what is computed together; micro_batch: its size, if the schedule is nothing but micro-batches.
    gpu: the GPU whose tensor cores add up its GEMMs; None for this machine. plans: the plans that say into how many
    parts its GEMMs cut K, such as `cuBLASLt 13.1.0 on NVIDIA H200, h200.yaml`; None if there are none, so that one part
    is assumed. unstated: ops with a state of which the side's profile says nothing, so that they compute by defaults.
    overrides: the recipe's own settings of this side on top of its profile: values, functions and faults.
    """

    profile: str
    dtype: str
    micro_batch: int | None
    schedule: str
    placement: str = ""
    gpu: str | None = None
    plans: str | None = None
    unstated: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`hf-default, bf16, micro-batch 8`, its placement and GPU, and of what nothing is known."""
        suffix = f", {self.placement}" if self.placement else ""
        if self.gpu:
            suffix += f", gpu {self.gpu}, " + (f"plans of {self.plans}" if self.plans else "K in one part (inferred)")
        if self.unstated:
            suffix += f"; the profile says nothing of {enumerated(self.unstated)}, which compute as in transformers"
        return f"{self.profile}, {self.dtype}, {self.schedule}{suffix}"

    @property
    def in_full(self) -> str:
        """The side with its overrides: `hf-default, bf16, micro-batch 8, set: layers[*].moe.gate:output fp32`."""
        return f"{self}, {few(list(self.overrides), _NAMED)}" if self.overrides else str(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was run, and on what. variants: the number of walkers that are not shadows. formats: those of quantised
    weights (`moeparity show formats`), which are multiplied out before a GEMM, but where a side in `of_codes`
    multiplies their codes. adapter: the folder of the LoRA adapter beside the weights.
    """

    recipe: str
    checkpoint: str
    model_type: str
    sequences: int
    tokens_per_sequence: int
    scored_tokens: int
    pairs: bool = False
    sampled_from: str
    device: str
    cpu: str
    torch: str
    threads: int
    variants: int
    pads: int = 0
    sampling: str | None = None
    formats: tuple[str, ...] = ()
    of_codes: tuple[str, ...] = ()
    adapter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run cost. It varies from run to run, so no digest includes it.

    evaluations: kernel calls; naive_evaluations: how many they would be without sharing work. seconds: of the
    bisection's own passes; search_passes, search_seconds: of further passes for shares and fixes. Memory is in bytes.
    """

    evaluations: int
    naive_evaluations: int
    weight_bytes_read: int
    seconds: float
    memory_estimated: int
    memory_peak: int | None
    search_passes: int = 0
    search_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The run, both sides, and the cost."""

    run: Run
    reference: Variant
    candidate: Variant
    cost: Cost
