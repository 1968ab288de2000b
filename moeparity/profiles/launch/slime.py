"""slime and miles as launched: Megatron-LM's arguments, SGLang's under `--sglang-`, and their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import (
    megatron,
    megatron_rules,
    megatron_stages,
    megatron_words,
    server_rules,
    server_words,
)
from moeparity.profiles.launch.megatron_config import DISPATCHERS, precision
from moeparity.profiles.launch.options import (
    UNKNOWN,
    Decision,
    Implied,
    Option,
    Program,
    Rule,
    Settings,
    count,
    embedded,
    number,
    prefixed,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.reading.grammar import Grammar, of_parser
from moeparity.profiles.launch.servers import SGLANG
from moeparity.profiles.launch.shared import ORIGINAL
from moeparity.profiles.launch.trainers import divided, temperature
from moeparity.profiles.launch.unstated import table

_SOURCE = "slime 624b824a89, slime/backends/sglang_utils/arguments.py validate_args"
_TAKEN_NAMES = """
model_path model config trust_remote_code random_seed enable_memory_saver tp_size tp tensor_parallel_size port nnodes
node_rank dist_init_addr gpu_id_step base_gpu_id nccl_port skip_server_warmup enable_return_routed_experts
"""
_TAKEN = frozenset(_TAKEN_NAMES.split())
"""SGLang's options that slime sets itself, and passes over where they are given."""
_ELSEWHERE = "options are read from there, over those of the command line"
_OWN_CODE = "code of one's own"
_DEEPGEMM = "GEMMs of quantised weights and activations, by DeepGEMM"
_REPLAYED = "routes are replayed, not chosen"
_TRUNCATED = "the sampler's truncation, where returned log-probabilities are of what remains"
_UNSTATED = (
    *table(
        {
            "qwen_gdn_backend = fla": "which kernels run gated delta nets",
            "train_env_vars": "environment variables of the trainer",
            "allgather_cp": "attention is cut along the sequence",
            "custom_model_provider_path": _OWN_CODE,
            "custom_megatron_init_path": _OWN_CODE,
            "custom_megatron_before_log_prob_hook_path": _OWN_CODE,
            "custom_config_path": _ELSEWHERE,
            "megatron_config_path": _ELSEWHERE,
            "use_routing_replay": _REPLAYED,
            "use_rollout_routing_replay": _REPLAYED,
            "megatron_deepgemm_forward_layers": _DEEPGEMM,
            "megatron_deepgemm_forward_modules": _DEEPGEMM,
            "megatron_deepgemm_moe_forward_layers": _DEEPGEMM,
            "megatron_deepgemm_moe_forward_modules": _DEEPGEMM,
        },
        role="trainer",
    ),
    *table(
        {
            "rollout_top_p = 1 1.0": _TRUNCATED,
            "rollout_top_k = -1": _TRUNCATED,
            "custom_generate_function_path": _OWN_CODE,
            "sglang_config": _ELSEWHERE,
            "prefill_num_servers": "prompts and decodes run on servers of their own",
            "rollout_external_engine_addrs": "its servers are started elsewhere, with options that are not here",
        },
        role="rollout",
    ),
)
_SWITCHES = """
colocate offload release_train update_weight_disk_keep_files recompute_loss_function freeze_indexer allgather_cp
rollout_skip_special_tokens rollout_shuffle partial_rollout mask_offpolicy_in_partial_rollout keep_old_actor
use_fault_tolerance disable_rollout_global_dataset apply_chat_template balance_data balance_by_flops
use_dynamic_batch_size skip_eval_before_train disable_compute_advantages_and_returns use_kl_loss use_unbiased_kl
normalize_advantages disable_grpo_std_normalization disable_rewards_normalization use_rollout_entropy
get_mismatch_metrics reset_optimizer_states use_stateless_adam use_rollout_logprobs use_tis use_routing_replay
use_rollout_routing_replay use_opsm use_opd use_wandb disable_wandb_random_suffix wandb_always_use_train_step
log_multi_turn log_passrate log_correct_samples use_tensorboard check_weight_update_equal use_distributed_post group_rm
enable_mtp_training ci_test ci_disable_kl_checker debug_rollout_only debug_train_only
"""
_SEVERAL = """
only_train_params_name_list freeze_params_name_list rollout_stop rollout_stop_token_ids rollout_external_engine_addrs
eval_prompt_data profile_target megatron_deepgemm_forward_layers megatron_deepgemm_forward_modules
megatron_deepgemm_moe_forward_layers megatron_deepgemm_moe_forward_modules
"""
_DISPATCHERS = {
    **DISPATCHERS,
    "allgather": replace(DISPATCHERS["alltoall"], says=f"slime takes alltoall: {DISPATCHERS['alltoall'].says}"),
}


def _ranks(implies: Callable[[Any], Implied]) -> Callable[[Any], Implied]:
    """SGLang's tensor ranks, of which slime takes as many as an engine has GPUs."""
    return lambda value: replace(implies(value), says=f"SGLang's tp_size: {implies(value).says}")


def _rollout() -> Iterator[Option]:
    """SGLang's options under `--sglang-`; its number of tensor ranks is slime's own argument."""
    for option in SGLANG.options:
        if option.name == "tp_size":
            ranks = _ranks(option.implies)
            yield replace(option, names=("rollout_num_gpus_per_engine",), implies=ranks, role="rollout")
        elif option.environment:
            yield replace(option, role="rollout")
        elif option.name not in _TAKEN:
            (passed,) = prefixed([option], "sglang_")
            yield replace(passed, quiet=option.quiet)
    nodes = Implied(says="how many of an engine's ranks one node holds")
    yield count("num_gpus_per_node", implies=lambda _: nodes, default=8, role="rollout", quiet=True)


def _tensor(settings: Settings) -> int:
    return max(settings.ranks("rollout_num_gpus_per_engine") // settings.ranks("sglang_pp_size"), 1)


def _sglang(settings: Settings) -> Mapping[str, Any]:
    nodes = settings.ranks("rollout_num_gpus_per_engine") // settings.ranks("num_gpus_per_node")
    return {"tp_size": _tensor(settings), "nnodes": max(nodes, 1)}


def _staged(settings: Settings) -> Iterator[Decision]:
    """How many of an engine's ranks are tensor parallel, where it has pipeline stages."""
    stages = settings.ranks("sglang_pp_size")
    if stages > 1:
        says = f"tensor parallel over {_tensor(settings)} ranks: those of an engine over {stages} pipeline stages"
        yield Decision(
            role="rollout", implied=Implied(says=says, placement={"tensor": _tensor(settings)}), source=_SOURCE
        )


def over_temperature(settings: Settings) -> Iterator[Decision]:
    """The temperature, which the trainer divides by, and SGLang where it does not return the original ones."""
    return divided(settings, "rollout_temperature", rollout=settings[ORIGINAL] is False)


def _sent(settings: Settings) -> str:
    dispatcher = megatron.dispatcher_of(settings)
    return "alltoall" if dispatcher == "allgather" else dispatcher


def placement() -> Rule:
    """Over how many ranks the trainer's experts lie, and which dispatcher sends to them."""
    return megatron_rules.placement("", "", lambda _: True, _sent)


_OPTIONS = (
    word(
        "train_backend",
        default="megatron",
        implies=words({"megatron": Implied(says="Megatron-LM, in bf16", dtype="bf16")}, UNKNOWN),
        choices=("megatron",),
        role="trainer",
    ),
    switch("fp16", on=precision("fp16"), off=Implied(says="bf16"), role="trainer"),
    *megatron.arguments("alltoall", _DISPATCHERS),
    number("rollout_temperature", implies=temperature, role="rollout"),
    *megatron.unstated(),
    *_UNSTATED,
    *_rollout(),
)
_OF_SGLANG = frozenset(f"sglang_{name}" for name in SGLANG.irrelevant - _TAKEN) - {
    "sglang_pp_size",
    "sglang_pipeline_parallel_size",
}


def _prefixed(names: frozenset[str]) -> frozenset[str]:
    return frozenset(f"sglang_{name}" for name in names - _TAKEN)


def _grammar() -> Grammar:
    """Its parsers: Megatron-LM's, which takes no option shortened, and SGLang's, which does."""
    shortest = _OF_SGLANG - _prefixed(server_words.SGLANG_ELSEWHERE)
    return of_parser(
        megatron.synonyms(_OPTIONS, megatron.IRRELEVANT | shortest | {"hf_checkpoint"}),
        switches=frozenset(_SWITCHES.split())
        | megatron_words.SWITCHES
        | megatron_words.TOGGLES
        | _prefixed(server_words.SGLANG_SWITCHES),
        toggles=_prefixed(server_words.SGLANG_TOGGLES),
        several=frozenset(_SEVERAL.split())
        | megatron_words.SEVERAL
        | _prefixed(server_words.SGLANG_SEVERAL | server_words.SGLANG_GONE_SEVERAL),
        shortened=("--sglang-",),
        underscores=False,
    )


def _of_slime(settings: Settings) -> Mapping[str, str]:
    """Options that Megatron-LM or SGLang passes over, for what else is set."""
    return {**megatron_rules.idle("")(settings), **server_rules.idle_of_sglang("sglang_")(settings)}


SLIME = Program(
    name="slime",
    engine="slime or miles",
    version="624b824a89",
    source="slime/utils/arguments.py, slime/backends/*/arguments.py, Megatron-LM's and SGLang's arguments",
    start={"trainer": "megatron", "rollout": "sglang"},
    options=_OPTIONS,
    model=("hf_checkpoint",),
    rules=(
        placement(),
        megatron_rules.as_described(""),
        megatron_stages.outer_stages,
        _staged,
        over_temperature,
        *(embedded(rule, "sglang_", _sglang) for rule in server_rules.OF_SGLANG),
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=megatron.IRRELEVANT | _OF_SGLANG | {"hf_checkpoint"},
    inactive=_of_slime,
    grammar=_grammar(),
)
