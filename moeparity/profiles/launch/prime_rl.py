"""prime-rl as launched: its trainer, and vLLM, whose options stand under `inference.vllm.`.

Names of earlier versions (004274ec96: `inference.parallel.tp`, `inference.model.`) are read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import server_rules, servers
from moeparity.profiles.launch.knowledge import unstated
from moeparity.profiles.launch.options import (
    NO_PROFILE,
    Decision,
    Implied,
    LaunchSettings,
    Option,
    Program,
    count,
    embedded,
    number,
    of_environment,
    prefixed,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.shared import COMPILED, DTYPES, EAGER, dtype, logprobs_mode, placement, vllm_tensor_ranks
from moeparity.profiles.launch.trainers import TRANSFORMERS, temperature, temperatures

_MODEL, _SERVER, _VLLM = "trainer.model.", "inference.", "inference.vllm."
_GPUS, _NODES, _APART = "deployment.num_infer_gpus", "deployment.type", f"{_SERVER}deployment."
_GPUS_OF_NODE, _NODES_OF_SERVER = "deployment.gpus_per_node", "deployment.num_infer_nodes"
_PROMPTS, _TOKENS = (f"{_APART}{phase}_nodes_per_replica" for phase in ("prefill", "decode"))
_SAMPLER = "orchestrator.train.sampling.temperature"
_SOURCE = "prime-rl 559b44772e, packages/prime-rl-configs/src/prime_rl/configs/"
_IMPLEMENTATIONS = {
    "hf": TRANSFORMERS,
    "custom": Implied(says="prime-rl's own classes: no shipped profile speaks of them", profile=NO_PROFILE),
    "auto": Implied(says="prime-rl's own classes where it has them, else transformers': not decided here"),
}
_FP32_HEAD = Implied(says="logits by a GEMM from bf16 to fp32", sets={"lm_head:output": "fp32"})
_LAUNCHED = "prime-rl 559b44772e, src/prime_rl/templates/inference.sbatch.j2, multi_node_rl.sbatch.j2"
_GATES_IN_FP32 = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})
"""Of those whose gate is vLLM's DeepseekV2MoE."""


def _experts(value: Any) -> Implied:
    """Over how many ranks the trainer's experts lie, or that the number of ranks decides it."""
    if str(value).isdecimal():
        return placement("expert", int(value))
    return Implied(says="as many ranks as hold one copy of the model, 8 at most: not known here")


def _replicas(value: Any) -> Implied:
    return Implied(says="one replica" if value == 1 else f"{value} replicas of attention")


def _gpus(value: Any) -> Implied:
    return Implied(says=f"{value} GPUs for the server: over its tensor ranks, its replicas")


def _nodes(value: Any) -> Implied:
    return Implied(says=f"{value} nodes for each server of its kind, over which experts lie")


def _on_node(value: Any) -> Implied:
    return Implied(says=f"{value} GPUs of a node: over the tensor ranks, the server's ranks there")


_TRAINER = (
    word(
        f"{_MODEL}impl", default="auto", implies=words(_IMPLEMENTATIONS), choices=("auto", "custom", "hf"),
        role="trainer",
    ),
    word(f"{_MODEL}attn", default="auto", implies=words({}, "{}: not stated in a profile"), role="trainer"),
    word(f"{_MODEL}ep", default="auto", implies=_experts, role="trainer"),
    *unstated("prime-rl", "model"),
)  # fmt: skip
_REPLAY = unstated("prime-rl", "replay")
_ROLLOUT = (
    vllm_tensor_ranks(f"{_VLLM}tensor_parallel_size", f"{_SERVER}parallel.tp", "vllm.tensor_parallel_size",
                      "parallel.tp", role="rollout"),
    count(f"{_VLLM}data_parallel_size", f"{_SERVER}parallel.dp", "vllm.data_parallel_size", "parallel.dp",
          implies=_replicas, role="rollout", quiet=True),
    count(_GPUS, implies=_gpus, role="rollout", quiet=True),
    replace(word(_NODES, default="single_node", implies=words({}, "{}"), role="rollout"), quiet=True),
    replace(word(f"{_APART}type", default="single_node", implies=words({}, "{}"), role="rollout"), quiet=True),
    *(
        count(name, name.removeprefix(_SERVER), implies=_nodes, role="rollout", quiet=True)
        for name in (_PROMPTS, _TOKENS)
    ),
    count(_NODES_OF_SERVER, implies=_nodes, role="rollout", quiet=True),
    count(_GPUS_OF_NODE, f"{_APART}gpus_per_node", implies=_on_node, default=8, role="rollout", quiet=True),
    *unstated("prime-rl", "deployment"),
    switch(f"{_VLLM}enable_expert_parallel", f"{_SERVER}enable_expert_parallel", "vllm.enable_expert_parallel",
           on=Implied(says="experts lie on the ranks as wholes"),
           off=Implied(says="experts are cut like everything else"), role="rollout"),
    word(f"{_VLLM}dtype", f"{_SERVER}model.dtype", "vllm.dtype", default="auto", implies=dtype, choices=DTYPES,
         role="rollout"),
    switch(f"{_VLLM}enforce_eager", f"{_SERVER}model.enforce_eager", "vllm.enforce_eager", on=EAGER, off=COMPILED,
           role="rollout"),
    logprobs_mode(f"{_VLLM}logprobs_mode", "vllm.logprobs_mode", default="processed_logprobs", role="rollout"),
    switch(f"{_SERVER}enable_fp32_lm_head", "enable_fp32_lm_head", default=True, on=_FP32_HEAD,
           off=Implied(says="logits in the model's dtype"), role="rollout"),
    switch(f"{_SERVER}enable_fp32_router_logits", "enable_fp32_router_logits", default=True,
           on=Implied(says="of DeepSeek's family the gate's output in fp32"),
           off=Implied(says="the gate's output as vLLM has it"), role="rollout", quiet=True),
    number(_SAMPLER, "orchestrator.sampling.temperature", implies=temperature, role="rollout"),
)  # fmt: skip


def _rest_of_vllm() -> Iterator[Option]:
    """vLLM's other options, which are handed on as they are; of the program `inference` they begin with `vllm.`."""
    option_names = {name for option in _ROLLOUT for name in option.names}
    for option in prefixed(servers.VLLM.options, _VLLM):
        if not option_names.intersection(option.names):
            yield replace(option, names=(*option.names, *(name.removeprefix(_SERVER) for name in option.names)))


def _by_gpus(settings: LaunchSettings) -> bool:
    """Whether the server's replicas are its GPUs over its tensor ranks: of the program `rl`, on one node."""
    return _GPUS in settings.stated and settings[_NODES] == "single_node"


def _is_apart(settings: LaunchSettings) -> bool:
    """Whether prompts and tokens have servers apart."""
    return "disaggregated" in (settings[_NODES], settings[f"{_APART}type"])


def _of_prime_rl(settings: LaunchSettings) -> Mapping[str, str]:
    """Options in whose place something else decides."""
    replicas = f"{_VLLM}data_parallel_size"
    if _is_apart(settings) or settings[_NODES] == "multi_node":
        return {replicas: f"over several nodes the launcher decides it ({_LAUNCHED})"}
    return {replicas: f"on one node it is {_GPUS} over the tensor ranks"} if _by_gpus(settings) else {}


def _on_nodes(settings: LaunchSettings, nodes: int) -> int:
    """The replicas of attention in a server on so many nodes."""
    return max(nodes * settings.ranks(_GPUS_OF_NODE) // settings.ranks(f"{_VLLM}tensor_parallel_size"), 1)


def _replicas_of_server(settings: LaunchSettings, expert: bool) -> int:
    """Replicas of attention in one server: over nodes those of all, where experts lie on them as wholes, else one."""
    if _is_apart(settings):
        return _on_nodes(settings, settings.ranks(_TOKENS))
    if settings[_NODES] == "multi_node":
        return _on_nodes(settings, settings.ranks(_NODES_OF_SERVER)) if expert else 1
    if _by_gpus(settings):
        return max(settings.ranks(_GPUS) // settings.ranks(f"{_VLLM}tensor_parallel_size"), 1)
    return settings.ranks(f"{_VLLM}data_parallel_size")


def _parallel(settings: LaunchSettings) -> Mapping[str, Any]:
    """vLLM's ranks, by its own names."""
    name = f"{_VLLM}enable_expert_parallel"
    expert = name not in settings.stated if _is_apart(settings) and settings[name] is not True else settings[name]
    return {
        "tensor_parallel_size": settings.ranks(f"{_VLLM}tensor_parallel_size"),
        "data_parallel_size": _replicas_of_server(settings, expert is True),
        "enable_expert_parallel": expert,
        **({"all2all_backend": "deepep_low_latency"} if _is_apart(settings) else {}),
    }


def _disaggregated(settings: LaunchSettings) -> Iterator[Decision]:
    """What servers apart for prompts and tokens are started with beside what is set."""
    if not _is_apart(settings):
        return
    tokens, prompts = (_on_nodes(settings, settings.ranks(name)) for name in (_TOKENS, _PROMPTS))
    warns = (
        f"prompts run on servers of their own, of {prompts} replicas of attention and with DeepEP's normal mode; what "
        "runs here is the servers of tokens"
    )
    says = f"tokens are made by servers of {tokens} replicas of attention, with DeepEP's low-latency mode"
    overlay = "deepep-low-latency" if tokens > 1 and _parallel(settings)["enable_expert_parallel"] is True else None
    yield Decision(role="rollout", implied=Implied(says=says, overlay=overlay, warns=warns), source=_LAUNCHED)


def _gate(settings: LaunchSettings) -> Iterator[Decision]:
    """The gate's output of models that have DeepSeek's, unrounded."""
    if settings[f"{_SERVER}enable_fp32_router_logits"] is True and settings.model.architecture in _GATES_IN_FP32:
        implied = Implied(says="the gate's output in fp32", sets={"gate:output": "fp32"})
        yield Decision(role="rollout", implied=implied, source=f"{_SOURCE}inference.py enable_fp32_router_logits")


_OPTIONS = (*_TRAINER, *_REPLAY, *of_environment(servers.VLLM.options), *_ROLLOUT, *_rest_of_vllm())
_FLAGS = frozenset(name for option in _OPTIONS if option.kind == "flag" for name in option.names)


PRIME_RL = Program(
    name="prime-rl",
    engine="prime-rl",
    version="559b44772e",
    source="packages/prime-rl-configs/src/prime_rl/configs/trainer.py, inference.py, rl.py",
    start={"trainer": NO_PROFILE, "rollout": "vllm"},
    options=_OPTIONS,
    model=("model.name", f"{_VLLM}model", "vllm.model"),
    rules=(
        *(embedded(rule, _VLLM, _parallel) for rule in server_rules.OF_VLLM),
        temperatures(_SAMPLER, mode=f"{_VLLM}logprobs_mode", rollout=None, fsdp=lambda _: False),
        _gate,
        _disaggregated,
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=servers.VLLM.irrelevant
    | {f"{prefix}{name}" for name in servers.VLLM.irrelevant - {"model"} for prefix in (_VLLM, "vllm.")},
    inactive=_of_prime_rl,
    variables=lambda _: {
        "env_vars.": ("trainer", "rollout"),
        f"{_SERVER}env_vars.": ("rollout",),
        f"{_APART}decode_env_vars.": ("rollout",),
        "deployment.decode_env_vars.": ("rollout",),
        "trainer.env_vars.": ("trainer",),
    },
    # Its parser takes `--inference.NAME=VALUE` for the name of a switch, of which vLLM hears and nobody else.
    grammar=Grammar(switches=_FLAGS, negated=_FLAGS, apart=(_SERVER,)),
)
