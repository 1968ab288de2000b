"""Whose configuration a source is: the program that its command starts, else the one whose options it has."""

from __future__ import annotations

from moeparity.errors import SpecError, Where, listed
from moeparity.profiles.launch import servers, trainers
from moeparity.profiles.launch.options import Program
from moeparity.profiles.launch.source import Source

PROGRAMS = (servers.VLLM, servers.SGLANG, trainers.VERL, trainers.NEMO_RL)
_COMMANDS = {
    "vllm": servers.VLLM,
    "vllm.entrypoints.openai.api_server": servers.VLLM,
    "sglang": servers.SGLANG,
    "sglang.launch_server": servers.SGLANG,
    "verl.trainer.main_ppo": trainers.VERL,
}


def program_of(source: Source) -> Program:
    """Whose configuration it is: by its command, else by the options it knows. Raises SpecError where it cannot be told."""
    for word in source.command:
        if word in _COMMANDS:
            return _COMMANDS[word]
    names = {entry.name for entry in source.options}
    if any(name.startswith("actor_rollout_ref") for name in names):
        return trainers.VERL
    if any(name.startswith("policy.") for name in names):
        return trainers.NEMO_RL
    scores = {
        program.name: sum(name in option.names for option in program.options for name in names)
        for program in (servers.VLLM, servers.SGLANG)
    }
    best = max(scores, key=lambda name: scores[name])
    if list(scores.values()).count(scores[best]) > 1:
        reason = "no option that only one engine knows" if scores[best] else "no option of an engine known here"
        raise SpecError(
            f"{Where(source.path)}: whose configuration this is cannot be told: it has {reason}. Expected one "
            f"of {listed(program.engine for program in PROGRAMS)}, or its command line, as in "
            "`vllm serve MODEL --tensor-parallel-size 4` or `python -m sglang.launch_server --model-path MODEL`."
        )
    return next(program for program in PROGRAMS if program.name == best)
