"""OpenRLHF and TRL as launched: a trainer and the engine that it samples with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch.megatron_config import precision
from moeparity.profiles.launch.options import (
    Decision,
    Implied,
    Program,
    Settings,
    number,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.shared import (
    COMPILED,
    DTYPES,
    EAGER,
    dtype,
    tensor_ranks,
    vllm_tensor_ranks,
)
from moeparity.profiles.launch.trainers import temperature
from moeparity.profiles.launch.unstated import table

_NOT_STATED = "{}: not stated in a profile"


OPENRLHF = Program(
    name="openrlhf",
    engine="OpenRLHF",
    version="0.11.2",
    source="openrlhf/cli/train_ppo_ray.py",
    start={"trainer": "hf-default", "rollout": "vllm"},
    options=(
        switch("bf16", on=precision("bf16"), off=Implied(says="as param_dtype says"), role="trainer", quiet=True),
        word(
            "ds.param_dtype",
            "param_dtype",
            default="bf16",
            implies=words({name: precision(name) for name in ("bf16", "fp16", "fp32")}),
            choices=("bf16", "fp16", "fp32"),
            role="trainer",
        ),
        word(
            "ds.attn_implementation",
            "attn_implementation",
            default="flash_attention_2",
            implies=words({"eager": Implied(says="eager attention", profile="hf-eager")}, _NOT_STATED),
            role="trainer",
        ),
        tensor_ranks("ds.tensor_parallel_size", "ds_tensor_parallel_size", role="trainer"),
        vllm_tensor_ranks("vllm.tensor_parallel_size", "vllm_tensor_parallel_size", role="rollout"),
        switch("vllm.enforce_eager", "enforce_eager", on=EAGER, off=COMPILED, role="rollout"),
        number("rollout.temperature", "temperature", implies=temperature, role="rollout"),
        *table(
            {
                "ds.experts_implementation experts_implementation": "which experts' kernel transformers takes",
                "ds.use_liger_kernel use_liger_kernel": "Liger's kernels in place of transformers'",
                "ds.load_in_4bit load_in_4bit": "GEMMs of weights in 4 bits",
                "ds.lora.rank lora_rank": "an adapter is added to each GEMM's output",
                "ds.ring_attn_size ring_attn_size = 1": "attention is cut along the sequence, and its parts are merged",
                "ds.deepcompile deepcompile": "kernels are compiled",
            },
            role="trainer",
        ),
        *table(
            {
                "rollout.top_p top_p = 1 1.0": "the sampler's truncation",
                "vllm.enable_prefix_caching enable_prefix_caching": "keys of a prefix come from another call",
            },
            role="rollout",
        ),
    ),
    model=("actor.model_name_or_path", "pretrain"),
)


def _weights(value: Any) -> Implied:
    """The dtype that TRL loads weights in: fp32 unless it is told."""
    return replace(dtype(value), says=f"weights are loaded in {'their own dtype' if value == 'auto' else value}")


def _autocast(settings: Settings) -> Iterator[Decision]:
    """What TRL's trainers run in: weights in fp32 under autocast, where neither is set."""
    if settings["bf16"] is True and settings["dtype"] in ("float32", "float"):
        warns = (
            "torch.autocast chooses each op's dtype, and hf-autocast-bf16 has its lists for CPU, with eager attention"
        )
        implied = Implied(says="fp32 weights under autocast to bf16", profile="hf-autocast-bf16", warns=warns)
        yield Decision(
            role="trainer", implied=implied, source="TRL 1.16.0, trl/trainer/base_config.py:108, utils.py:1332"
        )


_SAMPLED_BY_VLLM = Implied(says="completions by vLLM", profile="vllm")
TRL = Program(
    name="trl",
    engine="TRL",
    version="1.16.0",
    source="trl/trainer/grpo_config.py, model_config.py, base_config.py",
    start={"trainer": "hf-default", "rollout": "hf-default"},
    options=(
        switch(
            "bf16",
            default=True,
            on=Implied(says="torch.autocast to bf16"),
            off=Implied(says="no autocast to bf16"),
            role="trainer",
        ),
        word("dtype", "torch_dtype", default="float32", implies=_weights, choices=DTYPES, role="trainer"),
        word(
            "attn_implementation",
            default="unset",
            implies=words({"eager": Implied(says="eager attention", profile="hf-eager")}, _NOT_STATED),
            role="trainer",
        ),
        switch(
            "cast_lm_head_to_fp32",
            on=Implied(says="the head in fp32: set lm_head's dtype"),
            off=Implied(says="logits in the model's dtype"),
            role="trainer",
        ),
        switch("use_vllm", on=_SAMPLED_BY_VLLM, off=Implied(says="completions by transformers"), role="rollout"),
        word(
            "vllm_mode",
            default="colocate",
            implies=words(
                {
                    "server": Implied(
                        says="with vLLM: a server of its own (`trl vllm-serve`), whose command line decides"
                    ),
                    "colocate": Implied(says="with vLLM: in the trainer's process"),
                }
            ),
            choices=("server", "colocate"),
            role="rollout",
        ),
        vllm_tensor_ranks("vllm_tensor_parallel_size", role="rollout"),
        number("temperature", implies=temperature, role="rollout"),
        *table(
            {
                "model_init_kwargs": "what the model is loaded with: its dtype, its attention",
                "use_peft": "an adapter is added to each GEMM's output",
                "load_in_8bit": "GEMMs of weights in 8 bits",
                "load_in_4bit": "GEMMs of weights in 4 bits",
                "use_liger_kernel": "Liger's kernels in place of transformers'",
                "fp16": "autocast to fp16",
            },
            role="trainer",
        ),
    ),
    model=("model_name_or_path",),
    rules=(_autocast,),
)
