"""Which program a source is of: the one that its command starts, else the one whose options it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from moeparity.errors import SpecError, Where, listed, shown
from moeparity.profiles.launch import (
    areal,
    megatron,
    miles,
    nemo_rl,
    prime_rl,
    resolved,
    rl_trainers,
    servers,
    skyrl,
    slime,
    verl,
    vllm_resolved,
)
from moeparity.profiles.launch.options import Program
from moeparity.profiles.launch.reading.arguments import options
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.reading.printed import printed
from moeparity.profiles.launch.reading.resolved import Served, served
from moeparity.profiles.launch.reading.shell_words import Word, plain
from moeparity.profiles.launch.reading.sources import read_sources
from moeparity.profiles.launch.signs import server_of, signed, unread
from moeparity.profiles.launch.source import Entry, Source

PROGRAMS = (
    *(servers.VLLM, servers.SGLANG, verl.VERL, nemo_rl.NEMO_RL, slime.SLIME, miles.MILES, megatron.MEGATRON),
    *(skyrl.SKYRL, rl_trainers.OPENRLHF, rl_trainers.TRL, prime_rl.PRIME_RL, areal.AREAL),
)
RELEASES = {program.name: program.version for program in PROGRAMS}
"""The versions whose options and defaults were read, by the package's name."""
_SERVERS = (servers.VLLM, servers.VLLM_OF_TRL, servers.SGLANG)
_COMMANDS = {
    "vllm.entrypoints.openai.api_server": servers.VLLM,
    "vllm.entrypoints.api_server": servers.VLLM,
    "vllm.LLM": servers.VLLM,
    "vllm.EngineArgs": servers.VLLM,
    "vllm.AsyncEngineArgs": servers.VLLM,
    "sglang.launch_server": servers.SGLANG,
    "sglang.Engine": servers.SGLANG,
    "sglang.Runtime": servers.SGLANG,
    "sglang.ServerArgs": servers.SGLANG,
    "verl.trainer.main_ppo": verl.VERL,
    "skyrl.train.entrypoints.main_base": skyrl.SKYRL,
    "skyrl_train.entrypoints.main_base": skyrl.SKYRL,
    "openrlhf.cli.train_ppo_ray": rl_trainers.OPENRLHF,
    "trl.GRPOConfig": rl_trainers.TRL,
    "trl.RLOOConfig": rl_trainers.TRL,
    "trl.OnlineDPOConfig": rl_trainers.TRL,
    "rl": prime_rl.PRIME_RL,
    "inference": prime_rl.PRIME_RL,
}
"""By module, console program, or what a Python file calls."""
_SERVES = {("vllm", "serve"): servers.VLLM, ("sglang", "serve"): servers.SGLANG}
_SERVED = {
    "vllm": (vllm_resolved.source, servers.VLLM),
    "sglang": (resolved.source, servers.SGLANG),
    "megatron": (resolved.source, megatron.MEGATRON),
}
"""Engines that tell what they resolved, by the names that they give themselves."""
_OTHER_COMMANDS = {
    ("trl", "grpo"): rl_trainers.TRL,
    ("trl", "rloo"): rl_trainers.TRL,
    ("trl", "vllm-serve"): servers.VLLM_OF_TRL,
}
"""Programs with a parser of their own, also where the options are another one's."""
_SCRIPTS = {"pretrain_gpt.py": megatron.MEGATRON}
_RECIPES = "Megatron-Bridge runs recipes, which are Python and are not read: what they set is not known here"
_TRTLLM = (
    "trtllm-serve starts TensorRT-LLM, whose options are not read: state its side by hand, with `profile: trtllm` and "
    "its ranks as `placement`"
)
_REFUSED = {**dict.fromkeys(("run_recipe.py", "setup_experiment.py"), _RECIPES), "trtllm-serve": _TRTLLM}
"""Programs that are known and not read, with why."""
FLAGS = frozenset(
    name for program in PROGRAMS for option in program.options if option.kind == "flag" for name in option.names
)
_ANY = Grammar(switches=FLAGS)
"""Of a program whose parser is not known."""


def programs_of(path: Path) -> list[tuple[Source, Program]]:
    """What a file starts, one of each kind. Raises SpecError where it cannot be told, or where there are several."""
    file = served(path) or printed(path)
    if file is not None:
        return [_of_served(file)]
    sources = read_sources(path, _grammar)
    of_programs = [(source, program) for source in sources if (program := _program(source)) is not None]
    if not of_programs:
        raise SpecError(_unknown(path, sources))
    chosen: dict[str, tuple[Source, Program]] = {}
    for source, program in of_programs:
        side = "server" if program in _SERVERS else "trainer"
        before = chosen.get(side)
        if before is not None and (before[1] is not program or _settings(before) != _settings((source, program))):
            raise SpecError(
                f"{Where(path)}: starts {before[1].engine} and {program.engine}, each as a {side} and with its own "
                "options: which is meant cannot be told. Keep one of them in a file of its own."
            )
        chosen.setdefault(side, (source, program))
    return [(_typed(source, program), program) for source, program in chosen.values()]


def _of_served(file: Served) -> tuple[Source, Program]:
    """What an engine resolved by itself. Raises SpecError for an engine of which no such file is read."""
    if file.fields["engine"] not in _SERVED:
        raise SpecError(
            f"{file.where('engine')}: engine is {shown(file.fields['engine'])}; expected {listed(_SERVED)}. Give the "
            "launch file of this engine."
        )
    make, program = _SERVED[file.fields["engine"]]
    return make(file, program), program


def _grammar(head: str, arguments: Sequence[Word]) -> Grammar:
    """How a program that is started so takes its options apart; one of no known name goes by its options."""
    word = plain(arguments[0].text) if arguments else ""
    program = None if (head, word) in _OTHER_COMMANDS else _commanded(head, word) or signed(_names(arguments))
    return _ANY if program is None or program.grammar is None else program.grammar


def _names(arguments: Sequence[Word]) -> frozenset[str]:
    entries, _, _ = options(arguments, _ANY)
    return frozenset(_spelled(entries))


def _spelled(entries: Iterable[Entry]) -> Iterator[str]:
    """Each option's name, and its name with its value."""
    for entry in entries:
        yield from (entry.name.lstrip("+"), f"{entry.name}={entry.value}")


def _settings(pair: tuple[Source, Program]) -> dict[str, str]:
    """The values of the options that the program is read by."""
    source, program = pair
    names = {name for option in program.options for name in option.names}
    entries = (*source.options, *source.environment)
    return {entry.name: str(entry.value) for entry in entries if entry.name in names}


def _program(source: Source) -> Program | None:
    """Whose options these are; None where they are no known program's."""
    head, word = (*source.command, "", "")[:2]
    commanded = _commanded(head, word)
    if commanded is not None:
        return commanded
    names = frozenset(_spelled(source.options))
    return signed(names) or (None if head else server_of(names))


def _commanded(head: str, word: str) -> Program | None:
    """The program of that name, with its first word; None where it is none known here."""
    program = _COMMANDS.get(head) or _SCRIPTS.get(head.rpartition("/")[2])
    return program or _SERVES.get((head, word)) or _OTHER_COMMANDS.get((head, word))


def _unknown(path: Path, sources: Sequence[Source]) -> str:
    names = {entry.name for source in sources if not source.command for entry in source.options}
    shared = any(name in option.names for program in _SERVERS for option in program.options for name in names)
    reason = "no option that only one engine knows" if shared else "no option of an engine known here"
    commands = [source.command[0] for source in sources if source.command and source.command[0]]
    starts = f" It starts {listed(list(dict.fromkeys(commands))[:5])}." if commands else ""
    refused = next((_REFUSED[base] for name in commands if (base := name.rpartition("/")[2]) in _REFUSED), None)
    if refused is not None:
        return f"{Where(path)}: {refused}. Give the command line of a server, or of a trainer that is read."
    framework = next(filter(None, (unread(frozenset(_spelled(source.options))) for source in sources)), None)
    if framework is not None:
        return (
            f"{Where(path)}: these are options of {framework}, which are not read: state the sides by hand, each with "
            "the `profile` of its engine and its ranks as `placement`, or give the command line of its server."
        )
    telling = [n for each in sources for n in each.notes if "script" in n.says or "begins a command" in n.says]
    notes = list(dict.fromkeys(f"{note.where}: {note.says}" for note in telling))
    return (
        f"{Where(path)}: whose configuration this is cannot be told: it has {reason}.{starts} Expected one "
        f"of {listed(program.engine for program in PROGRAMS)}, or its command line, as in "
        "`vllm serve MODEL --tensor-parallel-size 4` or `python -m sglang.launch_server --model-path MODEL`."
        + "".join(f"\n{note}" for note in dict.fromkeys(notes))
    )


def _typed(source: Source, program: Program) -> Source:
    """The same with a file's options by their own names."""
    if source.command or program.grammar is None:
        return source
    return replace(source, options=tuple(map(program.grammar.canonical, source.options)))
