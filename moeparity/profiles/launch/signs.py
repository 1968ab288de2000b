"""By which of its options a file that starts no known command is told to be a program's.

One option in common is not enough: AReaL's files have a block `vllm`, as prime-rl's do, and trainers of many kinds have
a `temperature`. So a file's blocks (the first words of its options) have to be mostly the program's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from moeparity.profiles.launch import (
    areal,
    megatron,
    miles,
    nemo_rl,
    prime_rl,
    rl_trainers,
    servers,
    skyrl,
    slime,
    verl,
)
from moeparity.profiles.launch.knowledge import listed
from moeparity.profiles.launch.options import Program

Names = Collection[str]
"""The names of a file's options, and each as `name=value`."""
Sign = Callable[[Names], bool]


def _starts(*beginnings: str) -> Sign:
    return lambda names: any(name.startswith(beginnings) for name in names)


def _has(*together: str) -> Sign:
    return lambda names: all(name in names for name in together)


def _lacks(name: str) -> Sign:
    return lambda names: name not in names


def _all(*signs: Sign) -> Sign:
    return lambda names: all(sign(names) for sign in signs)


def _mostly(program: str) -> Sign:
    """Whether at least half of the blocks are among the program's `blocks` in graphs/launch."""
    own_blocks = listed(program, "blocks")
    return lambda names: _at_least_half(_blocks(names), own_blocks)


def _flat(names: Names) -> bool:
    """Whether no option lies within a block, as in a program that takes its options from a command line alone."""
    return all("." not in name.partition("=")[0] for name in names)


_SIGNS: tuple[tuple[Sign, Program], ...] = (
    (_starts("actor_rollout_ref."), verl.VERL),
    (_all(_starts("gconfig."), _starts("actor.backend=", "rollout.backend=", "allocation_mode=")), areal.AREAL),
    (_all(_starts("policy."), _mostly("nemo-rl")), nemo_rl.NEMO_RL),
    (_starts("generator.inference_engine", "trainer.policy."), skyrl.SKYRL),
    (_all(_starts("trainer.strategy"), _starts("generator.")), skyrl.SKYRL),
    # A file with a block `vllm` and no other of these is one of its program `inference`.
    (_all(_starts("trainer.model.", "inference.", "orchestrator.", "vllm."), _mostly("prime-rl")), prime_rl.PRIME_RL),
    (_all(_flat, miles.is_miles), miles.MILES),
    (_all(_flat, _has("hf_checkpoint", "rollout_batch_size")), slime.SLIME),
    (_has("rollout_num_gpus_per_engine"), slime.SLIME),
    (_starts("vllm_num_engines", "vllm_sync_backend", "vllm.num_engines", "vllm.sync_backend"), rl_trainers.OPENRLHF),
    # ms-swift, which is built on TRL and has other defaults, calls its model `model`.
    (_all(_starts("use_vllm", "vllm_mode"), _lacks("model")), rl_trainers.TRL),
    (_has("tensor_model_parallel_size", "num_layers"), megatron.MEGATRON),
)
"""What only one program has, tried in this order."""


_UNREAD: tuple[tuple[Sign, str], ...] = (
    (_starts("actor_infer.strategy_args.", "actor_train.strategy_args."), "ROLL"),
    (_starts("actor.training_backend="), "RLinf"),
    (_starts("worker.actor.", "worker.rollout."), "EasyR1"),
    (_has("rlhf_type"), "ms-swift"),
    (_all(_has("finetuning_type", "stage"), _flat), "LLaMA-Factory"),
)
"""Frameworks that are known by name, and whose options are not read. Some have options of programs that are."""


def signed(names: Names) -> Program | None:
    """The program that alone has such options, unless they are of a framework that is not read."""
    return None if unread(names) else next((program for sign, program in _SIGNS if sign(names)), None)


def unread(names: Names) -> str | None:
    """The framework that such options are of, if it is one whose options are not read."""
    return next((framework for sign, framework in _UNREAD if sign(names)), None)


def server_of(names: Names) -> Program | None:
    """The server that knows most of the options, and more of them than the other does."""
    of_servers = [(_options_in(program, names), program) for program in (servers.VLLM, servers.SGLANG)]
    (fewer, _), (more, program) = sorted(of_servers, key=lambda pair: len(pair[0]))
    return program if len(fewer) < len(more) and _at_least_half(_blocks(names), _names(program)) else None


def _at_least_half(blocks: set[str], own_blocks: Collection[str]) -> bool:
    """Whether so many of a file's blocks are a program's own."""
    return 2 * len(blocks.intersection(own_blocks)) >= len(blocks)


def _blocks(names: Names) -> set[str]:
    return {name.partition("=")[0].partition(".")[0] for name in names}


def _options_in(program: Program, names: Names) -> set[str]:
    return {name for option in program.options for name in option.names}.intersection(names)


def _names(program: Program) -> set[str]:
    options = {name for option in program.options for name in option.names}
    return {name.partition(".")[0] for name in options | set(program.irrelevant) | set(program.model)}
