"""prime-rl as launched: its trainer, and vLLM, whose options stand under `inference.vllm.`.

Names of earlier versions (004274ec96: `inference.parallel.tp`, `inference.model.`) are read, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch import server_rules, servers, vllm_unstated
from moeparity.profiles.launch.options import (
    NO_PROFILE,
    Decision,
    Implied,
    Option,
    Program,
    Settings,
    count,
    embedded,
    number,
    prefixed,
    switch,
    word,
    words,
)
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.shared import COMPILED, DTYPES, EAGER, dtype, logprobs_mode, placement, vllm_tensor_ranks
from moeparity.profiles.launch.trainers import TRANSFORMERS, temperature, temperatures
from moeparity.profiles.launch.unstated import table

_MODEL, _SERVER, _VLLM = "trainer.model.", "inference.", "inference.vllm."
_GPUS, _NODES = "deployment.num_infer_gpus", "deployment.type"
_SAMPLER = "orchestrator.train.sampling.temperature"
_SOURCE = "prime-rl 559b44772e, packages/prime-rl-configs/src/prime_rl/configs/"
_IMPLEMENTATIONS = {
    "hf": TRANSFORMERS,
    "custom": Implied(says="prime-rl's own classes: no shipped profile speaks of them", profile=NO_PROFILE),
    "auto": Implied(says="prime-rl's own classes where it has them, else transformers': not decided here"),
}
_FP32_HEAD = Implied(says="logits by a GEMM from bf16 to fp32", sets={"lm_head:output": "fp32"})
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


_TRAINER = (
    word(
        f"{_MODEL}impl", default="auto", implies=words(_IMPLEMENTATIONS), choices=("auto", "custom", "hf"),
        role="trainer",
    ),
    word(f"{_MODEL}attn", default="auto", implies=words({}, "{}: not stated in a profile"), role="trainer"),
    word(f"{_MODEL}ep", default="auto", implies=_experts, role="trainer"),
    *table(
        {
            "quantization quantization.type": "GEMMs of quantised weights and activations",
            "fp8 = false": "GEMMs in fp8",
            "lora lora.rank lora.alpha lora.target_modules": "an adapter is added to each GEMM's output",
            "cp = 1": "attention is cut along the sequence, and its parts are merged",
            "ep_comm_backend = torch": "rows are sent and added by DeepEP's kernels",
            "moe_fused_kernel = false": "routed experts are one kernel of prime-kernels",
            "moe_use_grouped_mm = true": "experts are no grouped GEMM",
            "moe_router_dtype = float32": "the gate is computed in the model's dtype, of prime-rl's own classes",
            "index_cache": "layers attend to the keys that earlier ones chose",
        },
        prefix=_MODEL,
        role="trainer",
    ),
)  # fmt: skip
_ROLLOUT = (
    vllm_tensor_ranks(f"{_VLLM}tensor_parallel_size", f"{_SERVER}parallel.tp", "vllm.tensor_parallel_size",
                      "parallel.tp", role="rollout"),
    count(f"{_VLLM}data_parallel_size", f"{_SERVER}parallel.dp", "vllm.data_parallel_size", "parallel.dp",
          implies=_replicas, role="rollout", quiet=True),
    count(_GPUS, implies=_gpus, role="rollout", quiet=True),
    replace(word(_NODES, default="single_node", implies=words({}, "{}"), role="rollout"), quiet=True),
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


def _by_gpus(settings: Settings) -> bool:
    """Whether the server's replicas are its GPUs over its tensor ranks: of the program `rl`, on one node."""
    return _GPUS in settings.stated and settings[_NODES] == "single_node"


def _of_prime_rl(settings: Settings) -> Mapping[str, str]:
    """Options in whose place something else decides."""
    replicas = f"{_VLLM}data_parallel_size"
    return {replicas: f"on one node it is {_GPUS} over the tensor ranks"} if _by_gpus(settings) else {}


def _parallel(settings: Settings) -> Mapping[str, Any]:
    """vLLM's ranks, by its own names."""
    tensor = settings.ranks(f"{_VLLM}tensor_parallel_size")
    asked_ranks = settings.ranks(f"{_VLLM}data_parallel_size")
    return {
        "tensor_parallel_size": tensor,
        "data_parallel_size": max(settings.ranks(_GPUS) // tensor, 1) if _by_gpus(settings) else asked_ranks,
        "enable_expert_parallel": settings[f"{_VLLM}enable_expert_parallel"],
    }


def _gate(settings: Settings) -> Iterator[Decision]:
    """The gate's output of models that have DeepSeek's, unrounded."""
    if settings[f"{_SERVER}enable_fp32_router_logits"] is True and settings.model.architecture in _GATES_IN_FP32:
        implied = Implied(says="the gate's output in fp32", sets={"gate:output": "fp32"})
        yield Decision(role="rollout", implied=implied, source=f"{_SOURCE}inference.py enable_fp32_router_logits")


_OPTIONS = (*_TRAINER, *_ROLLOUT, *_rest_of_vllm())
_FLAGS = frozenset(name for option in _OPTIONS if option.kind == "flag" for name in option.names)


PRIME_RL = Program(
    name="prime-rl",
    engine="prime-rl",
    version="559b44772e",
    source="packages/prime-rl-configs/src/prime_rl/configs/trainer.py, inference.py, rl.py",
    start={"trainer": NO_PROFILE, "rollout": "vllm"},
    options=_OPTIONS,
    model=("model.name", f"{_VLLM}model"),
    rules=(
        *(embedded(rule, _VLLM, _parallel) for rule in server_rules.OF_VLLM),
        temperatures(_SAMPLER, mode=f"{_VLLM}logprobs_mode", rollout=None, fsdp=lambda _: False),
        _gate,
        server_rules.stored_quantised("rollout"),
    ),
    irrelevant=vllm_unstated.IRRELEVANT | {f"{_VLLM}{name}" for name in servers.VLLM.irrelevant},
    inactive=_of_prime_rl,
    # Its parser takes `--inference.NAME=VALUE` for the name of a switch, of which vLLM hears and nobody else.
    grammar=Grammar(switches=_FLAGS, negated=_FLAGS, apart=(_SERVER,)),
)
