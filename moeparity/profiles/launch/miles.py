"""miles as launched: as slime, of which it is a fork, where it is known by an option that slime does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import megatron_rules, megatron_stages, server_rules, slime
from moeparity.profiles.launch.options import Decision, Implied, Settings, embedded, switch, word, words
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.servers import SGLANG
from moeparity.profiles.launch.trainers import TRANSFORMERS
from moeparity.profiles.launch.unstated import table

_SOURCE = "miles 31f1ca961a, miles/backends/sglang_utils/arguments.py validate_args"
SWITCHES = """
allow_partial_train_step check_lora_weight_equal check_rematerialize_param_from_master_weight
check_weight_update_allow_quant_error ci_check_model_hash ci_disable_logprobs_checker ci_disable_weight_update_checker
ci_save_model_hash debug_deterministic_collective debug_disable_optimizer debug_skip_weight_update
delay_split_train_data_by_dp disable_rollout_trim_samples dumper_enable enable_event_analyzer enable_witness
experts_shared_outer_loras fully_async indep_dp lora_base_cpu_backup lora_sync_from_tensor lora_train_only
low_memory_resume mini_ft_controller_enable multi_lora_disable_service_mode no_sglang_lora_use_virtual_experts
observe_training_entropy opd_topk_per_position pin_rollout_manager_to_head recompute_logprobs_via_prefill
rematerialize_param_from_master_weight rollout_external save_local_weight_checksum skip_actor_forward_only
stream_optimizer_state_to_disk true_on_policy_mode use_dynamic_global_batch_size use_indexer_replay use_miles_router
use_mlflow use_prometheus use_rollout_indexer_replay
"""
SEVERAL = """
check_weight_update_skip_list dumper_fwd_bwd dumper_fwd_only dumper_inference extra_high_precision_layers_hf
extra_high_precision_layers_megatron ft_components offload_rollout_level opd_teacher_urls session_server_port
"""
_OTHERS = """
async_max_concurrent_samples chat_template_path control_server_port dsa_attention_backend eval_hf_dir eval_num_gpus
eval_num_gpus_per_engine linear_attention_backend lora_adapter_path lora_alpha lora_dropout lora_rank lora_type
max_weight_staleness megatron_to_hf_mode miles_dsa_topk_backend miles_router_max_connections multi_lora_n_adapters
object_store_backend offload_train_target opd_log_prob_top_k pause_generation_mode qkv_format
rollout_submission_granularity session_server_ip sglang_tensor_parallel_size sglang_tp_size tito_model
update_weight_transfer_mode use_session_server
"""
ONLY = frozenset((SWITCHES + SEVERAL + _OTHERS).split())
"""Options of miles that slime does not have."""
_REPLAYED = "indexers' choices of keys are replayed, not made"
_UNSTATED = (
    *table(
        {
            "lora_rank = 0": "an adapter is added to each GEMM's output",
            "lora_adapter_path": "an adapter is added to each GEMM's output",
            "multi_lora_n_adapters = 0": "adapters are added to each GEMM's output",
            "dsa_attention_backend": "which kernels attend to chosen keys",
            "linear_attention_backend": "which kernels run linear attention",
            "miles_dsa_topk_backend = torch": "which kernel chooses keys",
            "extra_high_precision_layers_megatron": "layers that are kept from quantisation",
            "qkv_format = thd": "rows lie padded in attention, which has other kernels",
            "use_indexer_replay": _REPLAYED,
            "use_rollout_indexer_replay": _REPLAYED,
        },
        role="trainer",
    ),
    *table(
        {
            "recompute_logprobs_via_prefill": "log-probabilities come from a prefill behind the rollout",
            "rollout_external": "its servers are started elsewhere, with options that are not here",
            "extra_high_precision_layers_hf": "layers that are kept from quantisation",
        },
        role="rollout",
    ),
)
_BACKENDS = {"megatron": Implied(says="Megatron-LM, in bf16", dtype="bf16"), "fsdp": TRANSFORMERS}
_OWN = (
    word("train_backend", default="megatron", implies=words(_BACKENDS), choices=tuple(_BACKENDS), role="trainer"),
    word(
        "attn_implementation",
        default="unset",
        implies=words({"eager": Implied(says="eager attention", profile="hf-eager")}, "{}: not stated in a profile"),
        role="trainer",
    ),
    switch(
        "true_on_policy_mode",
        on=Implied(says="both engines' kernels are to be the same", warns="which kernels the trainer takes"),
        off=Implied(says="each engine's own kernels"),
        role="trainer",
    ),
)


def is_miles(names: Collection[str]) -> bool:
    """Whether options of these names, or `name=value`, are miles's, and not slime's."""
    if "hf_checkpoint" in names and not {"attn_implementation", "train_backend=fsdp"}.isdisjoint(names):
        return True
    return "rollout_batch_size" in names and not ONLY.isdisjoint(names)


def _sglang(settings: Settings) -> Mapping[str, Any]:
    """SGLang's ranks: all GPUs of an engine, whatever else is said."""
    gpus = settings.ranks("rollout_num_gpus_per_engine")
    return {"tp_size": gpus, "nnodes": max(gpus // settings.ranks("num_gpus_per_node"), 1)}


def _deterministic(settings: Settings) -> Iterator[Decision]:
    """What makes SGLang's inference deterministic without its own switch."""
    (deterministic,) = [option for option in SGLANG.options if option.name == "enable_deterministic_inference"]
    if settings["true_on_policy_mode"] is True or settings["recompute_logprobs_via_prefill"] is True:
        yield Decision(role="rollout", implied=deterministic.implies(True), source=_SOURCE)


def _grammar() -> Grammar:
    """slime's, where nothing is shortened, with servers for evaluation."""
    slime_grammar = slime.SLIME.grammar
    assert slime_grammar is not None
    read = {name for option in (*_OWN, *_UNSTATED) for name in option.names} | {"use_miles_router"}
    return replace(
        slime_grammar,
        switches=slime_grammar.switches | frozenset(SWITCHES.split()) | _of_evaluation(slime_grammar.switches),
        several=slime_grammar.several | frozenset(SEVERAL.split()) | _of_evaluation(slime_grammar.several),
        spellings={**slime_grammar.spellings, **{f"--{name.replace('_', '-')}": (name, True) for name in sorted(read)}},
        shortened=(),
    )


def _of_evaluation(names: frozenset[str]) -> frozenset[str]:
    """SGLang's options under `--eval-sglang-`."""
    return frozenset(f"eval_{name}" for name in names if name.startswith("sglang_"))


MILES = replace(
    slime.SLIME,
    name="miles",
    engine="miles",
    version="31f1ca961a",
    source="miles/utils/arguments.py, miles/backends/*/arguments.py, Megatron-LM's and SGLang's arguments",
    options=(*(option for option in slime.SLIME.options if option.name != "train_backend"), *_OWN, *_UNSTATED),
    rules=(
        slime.placement(),
        megatron_rules.as_described(""),
        megatron_stages.outer_stages,
        _deterministic,
        slime.over_temperature,
        *(embedded(rule, "sglang_", _sglang) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=slime.SLIME.irrelevant | {"use_miles_router", "eval_sglang_"},
    grammar=_grammar(),
)
