"""SkyRL, OpenRLHF, TRL and prime-rl as launched: a trainer and the engine that it samples with."""

from __future__ import annotations

from moeparity.profiles.launch import megatron_rules
from moeparity.profiles.launch.megatron_config import DISPATCHERS, overrides, precision
from moeparity.profiles.launch.options import NO_PROFILE, Implied, Program, number, switch, word, words
from moeparity.profiles.launch.shared import (
    COMPILED,
    DTYPES,
    EAGER,
    dtype,
    expert_ranks,
    logprobs_mode,
    tensor_ranks,
    vllm_tensor_ranks,
)
from moeparity.profiles.launch.trainers import temperature

_TRANSFORMERS = Implied(
    says="transformers' classes; attention and log-probabilities are the framework's own: not stated",
    profile="hf-default",
)
_NOT_STATED = "{}: not stated in a profile"
_VLLM = Implied(says="vLLM", profile="vllm")


_POLICY, _ENGINE = "trainer.policy.megatron_config.", "generator.inference_engine."
SKYRL = Program(
    name="skyrl",
    engine="SkyRL",
    version="59387573 (index of public files)",
    source="skyrl/train/config/config.py, skyrl/train/config/megatron_config/policy.yaml",
    start={"trainer": "hf-default", "rollout": "vllm"},
    options=(
        word(
            "trainer.strategy",
            default="fsdp",
            implies=words(
                {
                    **dict.fromkeys(("fsdp", "fsdp2"), _TRANSFORMERS),
                    "megatron": Implied(says="Megatron-LM", profile="megatron"),
                }
            ),
            choices=("fsdp", "fsdp2", "megatron"),
            role="trainer",
        ),
        switch("trainer.bf16", default=True, on=precision("bf16"), off=precision("fp32"), role="trainer"),
        tensor_ranks(f"{_POLICY}tensor_model_parallel_size", role="trainer"),
        expert_ranks(f"{_POLICY}expert_model_parallel_size", role="trainer"),
        megatron_rules.expert_cut(_POLICY),
        word(f"{_POLICY}moe_token_dispatcher_type", default="alltoall", implies=words(DISPATCHERS), role="trainer"),
        *overrides(f"{_POLICY}transformer_config_kwargs."),
        word(
            f"{_ENGINE}backend",
            "generator.backend",
            default="vllm",
            implies=words({"vllm": _VLLM, "sglang": Implied(says="SGLang", profile="sglang")}),
            choices=("vllm", "sglang"),
            role="rollout",
        ),
        vllm_tensor_ranks(
            f"{_ENGINE}tensor_parallel_size", "generator.inference_engine_tensor_parallel_size", role="rollout"
        ),
        expert_ranks(
            f"{_ENGINE}expert_parallel_size", "generator.inference_engine_expert_parallel_size", role="rollout"
        ),
        word(
            f"{_ENGINE}model_dtype",
            "generator.model_dtype",
            default="bfloat16",
            implies=dtype,
            choices=DTYPES,
            role="rollout",
        ),
        switch(f"{_ENGINE}enforce_eager", "generator.enforce_eager", on=EAGER, off=COMPILED, role="rollout"),
        number("generator.sampling_params.temperature", implies=temperature, role="rollout"),
        logprobs_mode(
            f"{_ENGINE}engine_init_kwargs.logprobs_mode",
            "generator.engine_init_kwargs.logprobs_mode",
            default="processed_logprobs",
            role="rollout",
        ),
    ),
    model=("trainer.policy.model.path",),
    rules=(
        megatron_rules.placement(
            _POLICY,
            _POLICY,
            lambda s: s["trainer.strategy"] == "megatron",
            lambda s: str(s[f"{_POLICY}moe_token_dispatcher_type"]),
        ),
    ),
)
OPENRLHF = Program(
    name="openrlhf",
    engine="OpenRLHF",
    version="021d1b0964",
    source="openrlhf/cli/train_ppo_ray.py",
    start={"trainer": "hf-default", "rollout": "vllm"},
    options=(
        switch("bf16", on=precision("bf16"), off=Implied(says="as param_dtype says"), role="trainer"),
        word(
            "param_dtype",
            default="unset",
            implies=words({name: precision(name) for name in ("bf16", "fp16", "fp32")}, "as --bf16 says"),
            choices=("unset", "bf16", "fp16", "fp32"),
            role="trainer",
        ),
        word(
            "attn_implementation",
            default="flash_attention_2",
            implies=words({"eager": Implied(says="eager attention", profile="hf-eager")}, _NOT_STATED),
            role="trainer",
        ),
        tensor_ranks("ds_tensor_parallel_size", role="trainer"),
        vllm_tensor_ranks("vllm_tensor_parallel_size", role="rollout"),
        switch("enforce_eager", on=EAGER, off=COMPILED, role="rollout"),
        number("temperature", implies=temperature, role="rollout"),
    ),
)
_SAMPLED_BY_VLLM = Implied(says="completions by vLLM", profile="vllm")
TRL = Program(
    name="trl",
    engine="TRL",
    version="006d32c9bf",
    source="trl/trainer/grpo_config.py",
    start={"trainer": "hf-default", "rollout": "hf-default"},
    options=(
        switch("bf16", default=True, on=precision("bf16"), off=Implied(says="no autocast to bf16"), role="trainer"),
        word("dtype", "torch_dtype", default="auto", implies=dtype, choices=DTYPES, role="trainer"),
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
            default="server",
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
    ),
)
_MODEL, _SERVER = "trainer.model.", "inference."
PRIME_RL = Program(
    name="prime-rl",
    engine="prime-rl",
    version="004274ec96",
    source="packages/prime-rl-configs/src/prime_rl/configs/trainer.py, inference.py",
    start={"trainer": NO_PROFILE, "rollout": "vllm"},
    options=(
        word(
            f"{_MODEL}impl",
            default="auto",
            implies=words(
                {
                    "hf": _TRANSFORMERS,
                    "custom": Implied(
                        says="prime-rl's own classes: no shipped profile speaks of them", profile=NO_PROFILE
                    ),
                    "auto": Implied(
                        says="prime-rl's own classes where it has them, else transformers': not decided here"
                    ),
                }
            ),
            choices=("auto", "custom", "hf"),
            role="trainer",
        ),
        word(
            f"{_MODEL}attn",
            default="flash_attention_2",
            implies=words({}, "{}: not stated in a profile"),
            role="trainer",
        ),
        expert_ranks(f"{_MODEL}ep", role="trainer"),
        switch(
            f"{_MODEL}fp8",
            on=Implied(says="GEMMs in fp8: no shipped profile speaks of them"),
            off=Implied(says="no fp8"),
            role="trainer",
        ),
        vllm_tensor_ranks(
            f"{_SERVER}parallel.tp",
            f"{_SERVER}vllm.tensor_parallel_size",
            "parallel.tp",
            "vllm.tensor_parallel_size",
            role="rollout",
        ),
        switch(
            f"{_SERVER}enable_expert_parallel",
            f"{_SERVER}vllm.enable_expert_parallel",
            on=Implied(says="experts lie on the ranks as wholes", placement={"expert": True}),
            off=Implied(says="experts are cut like everything else"),
            role="rollout",
        ),
        word(
            f"{_SERVER}model.dtype",
            f"{_SERVER}vllm.dtype",
            default="auto",
            implies=dtype,
            choices=DTYPES,
            role="rollout",
        ),
        switch(f"{_SERVER}model.enforce_eager", f"{_SERVER}vllm.enforce_eager", on=EAGER, off=COMPILED, role="rollout"),
        switch(
            f"{_SERVER}enable_fp32_lm_head",
            on=Implied(says="logits by a GEMM from bf16 to fp32: set lm_head's output fp32"),
            off=Implied(says="logits in the model's dtype"),
            role="rollout",
        ),
        number(
            "orchestrator.train.sampling.temperature",
            "orchestrator.sampling.temperature",
            implies=temperature,
            role="rollout",
        ),
    ),
)
