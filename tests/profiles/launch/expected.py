"""What each file of `files/` comes to: written after the output had been seen, then checked against the file
and the options of its engine.

`sides` are as a recipe writes them, then what comes on top; `given` some of the options that are set; `open` the
options that are not resolved, with a part of what is said; `notes` parts of the notes; `refused` a part of the error;
`values` what all sides set of single ops; `warned` parts of the warnings, `silent` what no warning says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SERVER, TRAINER, ROLLOUT = "server", "trainer", "rollout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One file's result."""

    engine: str = ""
    sides: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)
    open: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refused: str = ""
    values: Mapping[str, str | float] = field(default_factory=dict)
    warned: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


def _vllm(variant: str, *further: str) -> dict[str, tuple[str, ...]]:
    return {SERVER: (f"{{profile: {variant}}}", *further)}


def _two(trainer: str, rollout: str, *further: str) -> dict[str, tuple[str, ...]]:
    return {TRAINER: (f"{{profile: {trainer}}}", *further), ROLLOUT: (f"{{profile: {rollout}}}",)}


_WHOLE_EXPERTS = 'placement: {tensor: 2, sequence: true}, dtype: bf16, set: {"**.experts:tensor": 1}'
_ACTOR = "actor_rollout_ref.actor."
_ROLLOUT = "actor_rollout_ref.rollout."
_MEGATRON = "policy.megatron_cfg."
_VLLM_CFG = "policy.generation.vllm_cfg."
_WHOLE = 'set: {"**.experts:tensor": 1}'
"""Experts that are not cut as attention is."""
_NO_PROFILE = "no shipped profile speaks of it"

_SERVERS = {
    "vllm/serve.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm-allreduce-norm, placement: {tensor: 4, expert: 4}", "vllm-fp32-head"),
        stated={"tensor_parallel_size": "4", "moe_backend": "triton", "hf_overrides": '{"head_dtype": "float32"}'},
        notes=("set nowhere outside, so that their defaults hold: MODEL, TP",),
    ),
    "vllm/undecided.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm"),
        open={
            "tensor_parallel_size": "'8' if line 5: [ \"$GPUS\" -ge 8 ] or '4' if not",
            "dtype": "'float32' if line 12: $PRECISION is high or 'bfloat16' if line 13",
            "enforce_eager": 'set if line 5: [ "$GPUS" -ge 8 ], else not set',
        },
    ),
    "vllm/docker.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm-batch-invariant-eager, placement: {tensor: 2}"),
        stated={"VLLM_BATCH_INVARIANT": "true", "enforce_eager": "true"},
    ),
    "vllm/compose.yaml": Expected(
        engine="vLLM",
        sides=_vllm("vllm-allreduce-norm, placement: {tensor: 8}"),
        stated={"VLLM_ALLREDUCE_USE_FLASHINFER": "false"},
        open={"dtype": "${DTYPE}"},
    ),
    "vllm/deployment.yaml": Expected(
        engine="vLLM",
        sides=_vllm("vllm-batch-invariant, placement: {tensor: 4}", "deepep-normal"),
        stated={"all2all_backend": "deepep_high_throughput"},
    ),
    "vllm/policy.service": Expected(
        engine="vLLM",
        sides=_vllm("vllm-batch-invariant-eager, placement: {tensor: 4}"),
        open=dict.fromkeys(
            (*("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_FLASHINFER_ALLREDUCE_BACKEND"),),
            "perhaps set by `EnvironmentFile=-/etc/default/policy`",
        ),
        notes=("`EnvironmentFile=-/etc/default/policy` is not read",),
    ),
    "vllm/offline.py": Expected(
        engine="vLLM",
        sides=_vllm("vllm-batch-invariant-eager, placement: {tensor: 2}, dtype: bf16", "vllm-fp32-head"),
        stated={"tensor_parallel_size": "2"},
        open={"moe_backend": "args.moe"},
    ),
    "vllm/server.yaml": Expected(
        engine="vLLM",
        sides=_vllm("vllm-allreduce-norm, placement: {tensor: 8}"),
        stated={"logprobs_mode": "processed_logprobs"},
    ),
    "vllm/with-config.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm-allreduce-norm, placement: {tensor: 2}"),
        stated={"logprobs_mode": "processed_logprobs", "tensor_parallel_size": "2"},
    ),
    "sglang/launch.sh": Expected(
        engine="SGLang",
        sides=_vllm("sglang, placement: {tensor: 8, expert: 8}", "deepep-normal"),
        stated={"deepep_mode": "normal", "SGLANG_RETURN_ORIGINAL_LOGPROB": "true"},
    ),
    "sglang/two-nodes.sh": Expected(engine="SGLang", sides=_vllm("sglang-deterministic, placement: {tensor: 16}")),
    "sglang/engine.py": Expected(
        engine="SGLang",
        sides=_vllm("sglang-fp32-head, placement: {tensor: 4}", "sglang-allreduce-norm"),
        stated={"attention_backend": "fa3"},
    ),
    "sglang/pod.yaml": Expected(engine="SGLang", sides=_vllm("sglang-rl-on-policy, placement: {tensor: 2}")),
    "sglang/heredoc.sh": Expected(engine="SGLang", sides=_vllm("sglang-allreduce-norm, placement: {tensor: 8}")),
}
_TRAINERS = {
    "verl/megatron.sh": Expected(
        engine="verl",
        sides=_two(
            "megatron-router-fp32, placement: {tensor: 4, sequence: true}",
            "vllm-eager, placement: {tensor: 4}, dtype: bf16",
            "megatron-permute-fusion",
            "megatron-unfused-rope",
            "megatron-unfused-swiglu",
        ),
        stated={"model_engine": "megatron", f"{_ROLLOUT}name": "vllm", f"{_ROLLOUT}enforce_eager": "true"},
        notes=("INFER_BACKEND, ACTOR_TP, ACTOR_EP, ROLLOUT_TP",),
    ),
    "areal/megatron.yaml": Expected(
        engine="AReaL",
        sides=_two(
            f"megatron-deterministic, {_WHOLE_EXPERTS}",
            "sglang-allreduce-norm, placement: {tensor: 4}, dtype: bf16",
            "megatron-unfused-rope",
        ),
        stated={"actor.megatron.use_deterministic_algorithms": "true", "actor.temperature": "0.9"},
        values={"log_probs:temperature": 0.9},
        warned=("moe_router_dtype fp32: AReaL hands it to nobody, and mbridge decides it by the model's class",),
        silent=("enable_compile", "moe_token_dispatcher_type"),
    ),
    "areal/fsdp.yaml": Expected(
        engine="AReaL",
        sides=_two(
            "hf-default, placement: {tensor: 2}, dtype: bf16", "vllm-eager, placement: {tensor: 2}, dtype: bf16"
        ),
        stated={"actor.attn_impl": "sdpa", "vllm.enforce_eager": "true"},
        # vLLM's log-probabilities are of the logits before the temperature, unless it is told otherwise.
        values={"log_probs:temperature": 0.7},
        warned=("gconfig.top_p 0.95",),
    ),
    "areal/bridge.yaml": Expected(
        engine="AReaL",
        sides=_two(
            f"megatron-permute-fusion, {_WHOLE_EXPERTS}",
            "sglang-allreduce-norm, placement: {tensor: 2}, dtype: bf16",
            "megatron-unfused-rope",
            "megatron-unfused-swiglu",
        ),
        stated={"actor.megatron.bridge_type": "megatron-bridge"},
        warned=("moe_permute_fusion True: AReaL hands it to nobody",),
    ),
    "areal/allocation.yaml": Expected(
        engine="AReaL",
        sides={TRAINER: ("no shipped profile speaks of it",), ROLLOUT: ("no shipped profile speaks of it",)},
        warned=("allocation_mode", "write actor.backend and rollout.backend"),
    ),
    "areal/other-trainer.yaml": Expected(
        engine="AReaL",
        sides={TRAINER: ("no shipped profile speaks of it",), ROLLOUT: ("{profile: sglang, dtype: bf16}",)},
    ),
    "verl/fsdp.sh": Expected(
        engine="verl",
        sides=_two("verl-fsdp", "sglang, placement: {tensor: 2}, dtype: bf16"),
        stated={f"{_ACTOR}strategy": "fsdp2", f"{_ROLLOUT}temperature": "0.7"},
    ),
    "verl/composed.yaml": Expected(
        engine="verl",
        sides=_two(
            "megatron, placement: {tensor: 2, sequence: true}",
            "vllm-allreduce-norm, placement: {tensor: 8}, dtype: bf16",
        ),
        open={f"{_ROLLOUT}temperature": "${oc.env:TEMPERATURE}"},
        notes=("its base ppo_trainer is not there",),
    ),
    "verl/ray.sh": Expected(
        engine="verl",
        sides=_two("megatron", "vllm-allreduce-norm, placement: {tensor: 2}, dtype: bf16"),
        stated={"config_name": "ppo_megatron_trainer"},
        open={f"{_ACTOR}megatron.tensor_model_parallel_size": "$TP"},
    ),
    "slime/run.sh": Expected(
        engine="slime or miles",
        sides={
            TRAINER: (
                "{profile: megatron-router-fp32, placement: {tensor: 4, sequence: true}, dtype: bf16}",
                "megatron-permute-fusion",
            ),
            ROLLOUT: ("{profile: sglang-fp32-head, placement: {tensor: 8, expert: 8}}", "sglang-allreduce-norm"),
        },
        open={"NCCL_NVLS_ENABLE": "'1' if"},
        stated={"rollout_temperature": "0.8", "SGLANG_RETURN_ORIGINAL_LOGPROB": "true", "sequence_parallel": "true"},
    ),
    "slime/no-model.sh": Expected(
        engine="slime or miles",
        sides=_two("megatron-unfused-rope, dtype: bf16", "sglang, placement: {tensor: 2}"),
        open={
            "tensor_model_parallel_size": "${TP}",
            "SGLANG_RETURN_ORIGINAL_LOGPROB": "perhaps set by `source models/not-there.sh`",
        },
        notes=("`source models/not-there.sh` is not there", "nothing in this file sets MODEL_ARGS"),
    ),
    "nemo-rl/base.yaml": Expected(engine="NeMo-RL", sides=_two("nemo-rl-dtensor, dtype: bf16", "vllm")),
    "nemo-rl/megatron.yaml": Expected(
        engine="NeMo-RL",
        sides=_two(
            "megatron-router-fp32, dtype: bf16",
            "vllm-allreduce-norm, placement: {tensor: 8}",
            "megatron-permute-fusion",
        ),
        stated={f"{_MEGATRON}expert_model_parallel_size": "8", f"{_VLLM_CFG}tensor_parallel_size": "8"},
    ),
    "nemo-rl/override.yaml": Expected(
        engine="NeMo-RL",
        sides=_two(
            "megatron-router-fp32, dtype: bf16",
            "vllm-allreduce-norm, placement: {tensor: 2}",
            "megatron-permute-fusion",
        ),
        stated={f"{_VLLM_CFG}tensor_parallel_size": "2"},
    ),
    "nemo-rl/run.sh": Expected(
        engine="NeMo-RL",
        sides=_two(
            "megatron-router-fp32, dtype: bf16",
            "vllm-eager, placement: {tensor: 8}",
            "megatron-permute-fusion",
            "megatron-unfused-rope",
        ),
        stated={f"{_VLLM_CFG}enforce_eager": "true", f"{_MEGATRON}apply_rope_fusion": "false"},
    ),
    "nemo-rl/lost-base.yaml": Expected(
        engine="NeMo-RL",
        sides=_two("megatron-permute-fusion, dtype: bf16", "vllm"),
        notes=("its base ../not/there.yaml is not there: what it sets is not known",),
    ),
    "skyrl/megatron.sh": Expected(
        engine="SkyRL",
        sides=_two(
            "megatron-router-fp32, placement: {tensor: 4, sequence: true}, dtype: bf16",
            "vllm-eager, placement: {tensor: 8}, dtype: bf16",
            "megatron-permute-fusion",
            "megatron-unfused-rope",
            "megatron-unfused-swiglu",
        ),
        stated={"trainer.strategy": "megatron", "generator.inference_engine.enforce_eager": "true"},
    ),
    "skyrl/fsdp.sh": Expected(
        engine="SkyRL",
        sides=_two("hf-default, dtype: bf16", "vllm-allreduce-norm, placement: {tensor: 2}, dtype: bf16"),
        stated={"generator.inference_engine.tensor_parallel_size": "2", "generator.sampling_params.temperature": "0.6"},
        notes=("NUM_GPUS, TP",),
    ),
    "openrlhf/ppo.sh": Expected(
        engine="OpenRLHF",
        sides=_two("hf-default, dtype: bf16", "vllm-eager, placement: {tensor: 2}"),
        stated={"vllm.tensor_parallel_size": "2", "ds.param_dtype": "bf16", "vllm.enforce_eager": "true"},
    ),
    "openrlhf/submitted.sh": Expected(
        engine="OpenRLHF",
        sides=_two("hf-eager, dtype: bf16", "vllm"),
        stated={"rollout.temperature": "0.9", "bf16": "true"},
    ),
    "trl/grpo.sh": Expected(
        engine="TRL",
        sides=_two("trl-autocast-bf16, dtype: fp32", "vllm-allreduce-norm, placement: {tensor: 2}"),
        stated={"vllm_mode": "colocate", "temperature": "0.7", "bf16": "true"},
    ),
    "trl/server-and-trainer.sh": Expected(
        engine="vLLM, by trl vllm-serve and TRL",
        sides={
            **_vllm("vllm-allreduce-norm, placement: {tensor: 4}"),
            **_two("trl-autocast-bf16, dtype: fp32", "vllm"),
        },
        stated={"tensor_parallel_size": "4", "vllm_mode": "server", "attn_implementation": "eager"},
    ),
    "trl/grpo.yaml": Expected(
        engine="TRL", sides=_two("trl-autocast-bf16, dtype: fp32", "vllm"), stated={"use_vllm": "true"}
    ),
    "trl/grpo.py": Expected(
        engine="TRL", sides=_two("trl-autocast-bf16, dtype: fp32", "vllm"), stated={"cast_lm_head_to_fp32": "true"}
    ),
    "megatron/pretrain.sh": Expected(
        engine="Megatron-LM",
        sides={TRAINER: ("{profile: megatron-permute-fusion, dtype: bf16}",)},
        stated={"expert_model_parallel_size": "8", "moe_token_dispatcher_type": "alltoall"},
    ),
    "megatron/deterministic.sh": Expected(
        engine="Megatron-LM",
        # fp32: nothing says --bf16.
        sides={
            TRAINER: (
                "{profile: megatron-deterministic, placement: {tensor: 2, sequence: true}, dtype: fp32}",
                "megatron-unfused-swiglu",
            )
        },
        stated={"deterministic_mode": "true", "sequence_parallel": "true"},
    ),
    "miles/run.sh": Expected(
        engine="miles",
        sides=_two(
            f"megatron, placement: {{tensor: 4, sequence: true}}, dtype: bf16, {_WHOLE}",
            "sglang-deterministic, placement: {tensor: 8}",
        ),
        stated={"true_on_policy_mode": "true", "rollout_num_gpus_per_engine": "8"},
    ),
    "prime-rl/rl.toml": Expected(
        engine="prime-rl",
        sides={TRAINER: (_NO_PROFILE,), ROLLOUT: ("{profile: vllm-allreduce-norm, placement: {tensor: 4}}",)},
        stated={"trainer.model.ep": "4", "trainer.model.impl": "custom", "deployment.num_infer_gpus": "4"},
    ),
    "prime-rl/run.sh": Expected(
        engine="prime-rl",
        sides={TRAINER: (_NO_PROFILE,), ROLLOUT: ("{profile: vllm-eager, placement: {tensor: 4}}",)},
        stated={
            "trainer.model.impl": "auto",
            "inference.vllm.enforce_eager": "true",
            "inference.enable_fp32_lm_head": "false",
        },
    ),
}
_VARIABLES = (
    *("VLLM_BATCH_INVARIANT", "VLLM_USE_V2_MODEL_RUNNER"),
    *("VLLM_ALLREDUCE_USE_FLASHINFER", "VLLM_FLASHINFER_ALLREDUCE_BACKEND"),
)
_SIGMOID = "{profile: megatron-router-fp32, placement: {tensor: 2, expert: 4, sequence: true}, dtype: bf16, "
_V1 = {"log_probs:form": "log_softmax"}
_NCCL = {"all_reduce:collective": "nccl.ring"}
_UNSET = {"VLLM_BATCH_INVARIANT": "$VLLM_BATCH_INVARIANT"}
_FUSED, _INVARIANT = "vllm-allreduce-norm, placement: {tensor: %d}", "vllm-batch-invariant"
_CONSTRUCTS = {
    "trl/vllm-serve.sh": Expected(engine="vLLM, by trl vllm-serve", sides=_vllm(f"{_FUSED % 2}, dtype: bf16")),
    "trl/lora.py": Expected(
        engine="TRL",
        sides=_two("trl, dtype: bf16", "vllm"),
        values={"log_probs:temperature": 0.9},
        stated={"dtype": "bfloat16", "attn_implementation": "flash_attention_2"},
        warned=("use_peft true: an adapter is added",),
        silent=("autocast",),
    ),
    "vllm/actors.py": Expected(
        engine="vLLM",
        sides=_vllm(f"{_INVARIANT}-eager, placement: {{tensor: 2}}, dtype: bf16"),
        values=_V1,
        stated={"VLLM_BATCH_INVARIANT": "true", "VLLM_USE_V2_MODEL_RUNNER": "false"},
    ),
    "vllm/updated.py": Expected(
        engine="vLLM",
        sides=_vllm(f"{_INVARIANT}-eager, placement: {{tensor: 4}}"),
        values=_V1,
        stated={"compilation_config": '{"mode": 0}', "VLLM_ALLREDUCE_USE_FLASHINFER": "false"},
    ),
    "vllm/unread.py": Expected(
        engine="vLLM",
        sides=_vllm(_FUSED % 2),
        open=dict.fromkeys(_VARIABLES, "perhaps set by `cluster['variables']`"),
        notes=("`cluster['runtime_env']` sets environment variables that are not known",),
    ),
    "vllm/without-value.sh": Expected(engine="vLLM", sides=_vllm(_FUSED % 2), values=_V1, open=_UNSET),
    "vllm/without-value.yaml": Expected(engine="vLLM", sides=_vllm(_FUSED % 2), values=_V1, open=_UNSET),
    "vllm/invariant.sh": Expected(
        engine="vLLM", sides=_vllm(f"{_INVARIANT}-eager, placement: {{tensor: 2}}, dtype: bf16")
    ),
    "vllm/invariant-compiled.sh": Expected(
        engine="vLLM", sides=_vllm(f"{_INVARIANT}, placement: {{tensor: 4}}, dtype: bf16")
    ),
    "vllm/invariant-told.sh": Expected(
        engine="vLLM", sides=_vllm(f"{_INVARIANT}, placement: {{tensor: 2}}, dtype: bf16")
    ),
    "vllm/nodes.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm, placement: {tensor: 16}"),
        values=_NCCL,
        stated={"nnodes": "2"},
        warned=("16 ranks, 8 on each node: NCCL adds them",),
    ),
    "vllm/one-node-each.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm, placement: {tensor: 4}"),
        values=_NCCL,
        warned=("4 ranks, 2 on each node: NCCL adds them",),
    ),
    "vllm/prefixed.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm-allreduce-norm, placement: {tensor: 4, expert: 4}"),
        warned=("fp8 weights: the weights of ${BASE_DIR}/Qwen3-235B-A22B-FP8 are stored as fp8",),
    ),
    "vllm/pinned.sh": Expected(
        engine="vLLM", sides=_vllm(_FUSED % 2), warned=("vllm==0.9.2: options, defaults and profiles are read from",)
    ),
    "vllm/pinned.yaml": Expected(
        engine="vLLM", sides=_vllm(_FUSED % 2), warned=("image vllm/vllm-openai:v0.10.1.1: options, defaults and",)
    ),
    "vllm/pod-shell.yaml": Expected(
        engine="vLLM",
        sides=_vllm("vllm"),
        stated={"logprobs_mode": "processed_logprobs", "enable_expert_parallel": "true"},
        open={"tensor_parallel_size": "$(TP)"},
    ),
    "vllm/comment.sh": Expected(
        engine="vLLM",
        sides=_vllm(_FUSED % 4),
        stated={"enforce_eager": "false", "logprobs_mode": "raw_logprobs"},
        notes=("`--enforce-eager ...` begins a command of its own",),
    ),
    "vllm/wide.sh": Expected(
        engine="vLLM",
        sides=_vllm("vllm-allreduce-norm, placement: {tensor: 4, expert: 8, attention: 2, gathered: experts}"),
        warned=("sequence-parallel MoE", "sums of attention are reduce-scattered"),
        silent=("fp8",),
    ),
    "sglang/deterministic.sh": Expected(
        engine="SGLang",
        sides=_vllm("sglang-deterministic, placement: {tensor: 4}"),
        warned=("attention_backend flashinfer",),
    ),
    "sglang/graphs.sh": Expected(engine="SGLang", sides=_vllm("sglang-allreduce-norm, placement: {tensor: 8}")),
    "megatron/one-rank.sh": Expected(engine="Megatron-LM", sides={TRAINER: ("{profile: megatron, dtype: bf16}",)}),
    "megatron/sigmoid.sh": Expected(
        engine="Megatron-LM",
        sides={TRAINER: (f"{_SIGMOID}{_WHOLE}}}",)},
        warned=("NVTE_FLASH_ATTN 0: which attention kernel", "CUBLAS_WORKSPACE_CONFIG"),
        silent=("moe_router_pre_softmax", "NVTE_FUSED_ATTN", "NCCL_ALGO", "experts"),
    ),
    "slime/loop.sh": Expected(
        engine="slime or miles",
        sides=_two(
            "megatron-router-fp32, placement: {tensor: 8, sequence: true}, dtype: bf16",
            "sglang-allreduce-norm, placement: {tensor: 8}",
        ),
        warned=("use_rollout_routing_replay",),
    ),
    "slime/sixteen.sh": Expected(
        engine="slime or miles",
        sides=_two(
            f"megatron, placement: {{tensor: 4, sequence: true}}, dtype: bf16, {_WHOLE}",
            "sglang, placement: {tensor: 16}",
        ),
        values=_NCCL,
        silent=("experts",),
    ),
    "verl/replay.sh": Expected(
        engine="verl",
        sides=_two(
            "megatron-permute-fusion, placement: {tensor: 2, sequence: true}",
            f"{_FUSED % 2}, dtype: bf16",
            "megatron-unfused-rope",
            "megatron-unfused-swiglu",
        ),
        warned=("megatron.router_replay.mode R3: routes are replayed",),
    ),
    "prime-rl/replay.toml": Expected(
        engine="prime-rl",
        sides=_two("hf-default", _FUSED % 2),
        values={"lm_head:output": "fp32"},
        warned=("trainer.enable_router_replay true: the rollout's routes are replayed",),
    ),
    "miles/fsdp.sh": Expected(
        engine="miles",
        sides=_two("hf-default", "sglang-allreduce-norm, placement: {tensor: 4}, dtype: bf16"),
        stated={"train_backend": "fsdp", "attn_implementation": "flash_attention_2"},
    ),
    "skyrl/tensor.sh": Expected(
        engine="SkyRL",
        sides=_two(
            "megatron-router-fp32, placement: {tensor: 4, pipeline: 2, sequence: true}, dtype: bf16",
            "vllm-allreduce-norm, placement: {tensor: 2, expert: 4, attention: 2, gathered: experts}, dtype: bf16",
            "megatron-permute-fusion",
            "megatron-unfused-rope",
            "megatron-unfused-swiglu",
        ),
        warned=("context_parallel_size 2", "sequence-parallel MoE"),
    ),
    "nemo-rl/trtllm.yaml": Expected(
        engine="NeMo-RL",
        sides=_two(
            "nemo-rl-dtensor, placement: {tensor: 4}, dtype: bf16",
            "trtllm, placement: {tensor: 4, expert: 4}, dtype: bf16",
        ),
    ),
    "nemo-rl/sglang.yaml": Expected(
        engine="NeMo-RL",
        sides=_two(
            "nemo-rl-dtensor, placement: {tensor: 2}, dtype: bf16",
            "sglang-allreduce-norm, placement: {expert: 8, tensor: 8}, dtype: bf16",
        ),
        values={"log_probs:temperature": 0.8},
    ),
    "nemo-rl/megatron-generation.yaml": Expected(
        engine="NeMo-RL",
        sides=dict.fromkeys(
            (TRAINER, ROLLOUT),
            (
                f"{{profile: megatron-router-fp32, placement: {{tensor: 2, sequence: true}}, dtype: bf16, {_WHOLE}}}",
                "megatron-permute-fusion",
            ),
        ),
    ),
}
"""What was read wrongly before, or not at all."""
_REFUSED = {
    "refused/roll.yaml": Expected(refused="these are options of ROLL, which are not read"),
    "refused/swift.yaml": Expected(refused="these are options of ms-swift, which are not read"),
    "refused/sft.yaml": Expected(refused="whose configuration this is cannot be told"),
    "refused/trtllm.sh": Expected(refused="trtllm-serve starts TensorRT-LLM, whose options are not read"),
    "slime/models/moe.sh": Expected(refused="whose configuration this is cannot be told"),
    "refused/two-servers.sh": Expected(refused="starts vLLM and vLLM, each as a server and with its own options"),
    "refused/delegates.sh": Expected(refused="`bash other/launch.sh` starts another script, which is not read"),
    "refused/other-engine.sh": Expected(refused="model_engine is 'veomni'; expected one of none, megatron, dp"),
    "refused/loop.yaml": Expected(refused="stands on itself by `defaults:`"),
    "refused/lost-backslash.sh": Expected(refused="`--num-layers ...` begins a command of its own"),
    "refused/growing.sh": Expected(refused="takes more than 4,000,000 letters"),
}
EXPECTED = {**_SERVERS, **_TRAINERS, **_CONSTRUCTS, **_REFUSED}
