"""What trainers that sample with an engine share: which engine it is, on how many ranks it runs, and the sampler's
temperature.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from moeparity.profiles.launch.options import (
    Decision,
    Implied,
    LaunchSettings,
    Option,
    Rule,
    count,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.shared import ORIGINAL, tensor_ranks

MEGATRON = Implied(says="Megatron-LM", profile="megatron")
FSDP = Implied(says="transformers' classes; flash_attention_2 and autocast are not stated", profile="verl-fsdp")
TRANSFORMERS = Implied(
    says="transformers' classes; attention and log-probabilities are the framework's own: not stated",
    profile="hf-default",
)
_ROLLOUTS = {
    "vllm": Implied(says="vLLM", profile="vllm"),
    "sglang": Implied(says="SGLang", profile="sglang"),
    "hf": Implied(says="transformers", profile="hf-default"),
    "megatron": MEGATRON,
    "trtllm": Implied(says="TensorRT-LLM", profile="trtllm"),
}


def temperature(value: Any) -> Implied:
    """The sampler's temperature, which trainers divide by too; a greedy sampler divides by none."""
    if value in (0, 1):
        return Implied(says="logits are not divided")
    return Implied(says=f"logits over it on both sides: set log_probs:temperature {value}")


def nearest_bf16(value: float) -> float:
    """The nearest bf16, ties to even."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", nearest))[0])


def rollout_engine(name: str, engines: tuple[str, ...]) -> Option:
    """The option that names the engine a trainer samples with, one of these."""
    return word(name, default="vllm", implies=words(_ROLLOUTS, "{}"), choices=engines, role="rollout")


def enforce_eager(name: str) -> Option:
    """vLLM's switch of that name, as a trainer hands it on."""
    return switch(
        name,
        on=Implied(says="with vLLM: kernels in C in place of Inductor's", overlay="vllm-eager"),
        off=Implied(says="with vLLM: compiled by Inductor"),
        role="rollout",
    )


def megatron_ranks(prefix: str, *, cut: Option) -> tuple[Option, ...]:
    """Over how many ranks Megatron-LM lies, by options behind a prefix; `cut` says how many share an expert."""
    return (
        cut,
        tensor_ranks(f"{prefix}tensor_model_parallel_size", role="trainer"),
        count(f"{prefix}expert_model_parallel_size", implies=_sent, role="trainer"),
    )


def _sent(value: Any) -> Implied:
    return Implied(
        says="one rank" if value == 1 else f"experts on {value} ranks: what is added where, the dispatcher says"
    )


def sequence_parallel(prefix: str, *, default: bool) -> Option:
    """Whether sums are scattered by tokens, by the option behind a prefix."""
    return switch(
        f"{prefix}sequence_parallel",
        default=default,
        on=Implied(says="under tensor parallel, sums are scattered by tokens"),
        off=Implied(says="sums are whole on every rank"),
        role="trainer",
    )


def divided(settings: LaunchSettings, sampler: str, *, rollout: bool, rounds: bool = False) -> Iterator[Decision]:
    """The temperature that a trainer divides by, and the rollout too where its log-probabilities are those of the
    distribution that is sampled from. `sampler`: its option. `rounds`: the trainer rounds it to bf16.
    """
    yield from divided_on("trainer", settings, sampler, rounds=rounds)
    if rollout:
        yield from divided_on("rollout", settings, sampler)


def divided_on(role: str, settings: LaunchSettings, sampler: str, *, rounds: bool = False) -> Iterator[Decision]:
    """The temperature that one side divides by, as `divided` has it."""
    temperature = settings[sampler]
    if isinstance(temperature, int | float) and temperature not in (0, 1):
        value = nearest_bf16(temperature) if rounds else temperature
        implied = Implied(says=f"logits over the temperature {value}", sets={"log_probs:temperature": value})
        yield Decision(role=role, implied=implied, source=sampler)


def temperatures(sampler: str, *, mode: str, rollout: str | None, fsdp: Callable[[LaunchSettings], bool]) -> Rule:
    """The sampler's temperature, on both sides. On the rollout's side it counts if its log-probabilities are those of
    the distribution that is sampled from.

    `rollout` names the engine's option, None if the engine is vLLM.
    """

    def rule(settings: LaunchSettings) -> Iterator[Decision]:
        if rollout is not None and settings[rollout] == "sglang":
            is_of_samples = settings.values.get(ORIGINAL) is not True
        else:
            is_of_samples = str(settings[mode]).startswith("processed")
        yield from divided(settings, sampler, rollout=is_of_samples, rounds=fsdp(settings))

    return rule
