"""An engine's own argument parser beside the reader of launch files: lines in every spelling, where the two differ."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import read, servers
from moeparity.profiles.launch.megatron import MEGATRON
from moeparity.profiles.launch.miles import MILES
from moeparity.profiles.launch.report import Launch
from moeparity.profiles.launch.slime import SLIME
from tests.engines.cuda import toolchain
from tests.engines.live import FOLDER
from tests.profiles.launch.answering import Answering

PROGRAMS = {"vllm": servers.VLLM, "sglang": servers.SGLANG, "megatron": MEGATRON, "slime": SLIME,
            "miles": MILES}  # fmt: skip
COMMANDS = {
    "vllm": ("vllm",),
    "sglang": ("sglang",),
    "megatron": ("torchrun", "pretrain_gpt.py"),
    "slime": ("python3", "train.py"),
    "miles": ("python3", "train.py"),
}
"""What stands before the words that a parser is handed."""
_OF_SLIME = ("--hf-checkpoint", "m", "--rollout-batch-size", "8")
_FIRST = {"megatron": (), "slime": _OF_SLIME, "miles": (*_OF_SLIME, "--use-miles-router")}
"""The words without which a parser takes no line; those of servers are `serve` and a model."""
_FOLDERS = {
    "vllm": (toolchain.FOLDER / "vllm" / f"vllm-{toolchain.VLLM}", FOLDER / "vllm-arguments"),
    "sglang": (FOLDER / "sglang", FOLDER / "sglang-arguments", FOLDER / "triton"),
    "megatron": (FOLDER / "megatron-lm", FOLDER / "triton"),
    **{
        trainer: tuple(
            FOLDER / name
            for name in (trainer, "slime-arguments", "megatron-lm", "sglang", "sglang-arguments", "triton")
        )
        for trainer in ("slime", "miles")
    },
}
_CANDIDATES = ("2", "0.5", "word", '{"a": 1}', "[1, 2]", "1,2")
_REFUSED_LATER = {"hf_overrides": ('{"a": 1}', "{}"), "optimization_level": ("0", "1", "2", "3")}
"""Values where the parser hands on any word, and what is built of it refuses those that are not among these."""
_NOT_DRAWN = ("help", "config", "model_path", "model", "config_path", "rollout_batch_size", "hf_checkpoint")
"""What names files, or stands in every line."""
Action = Mapping[str, Any]


class OwnParser:
    """The parser in a process of its own; skips the test that asks, with what to do, where its code is not here."""

    def __init__(self, engine: str) -> None:
        absent = [folder for folder in _FOLDERS[engine] if not folder.is_dir()]
        if absent:
            does = "python -m tests.engines.live; python -m tests.engines.cuda.toolchain install"
            pytest.skip(f"not compared with {engine}'s own parser: no {', '.join(map(str, absent))} ({does})")
        self.engine, self.program = engine, PROGRAMS[engine]
        self._process = Answering("live_arguments.py", engine, _FOLDERS[engine])
        self.actions: list[Action] = [action for action in self._process.greeting if action["names"]]
        self._answers: dict[tuple[str, ...], Mapping[str, Any]] = {}
        self.by_name = {plain(name): action for action in self.actions for name in action["names"]}
        self.first = list(_FIRST.get(engine, ("serve", "m")))
        self.defaults = self.ask(self.first)["values"]
        self._accepted: dict[str, Sequence[str]] = {}

    def ask(self, words: Sequence[str]) -> Mapping[str, Any]:
        """`values` by the parser's names, or `refused`; a line is asked once."""
        if tuple(words) not in self._answers:
            self._answers[tuple(words)] = self._process.ask(words)
        return self._answers[tuple(words)]

    def accepted(self, action: Action) -> Sequence[str]:
        """Values that the action takes, of its choices or of a few candidates."""
        name = action["names"][0]
        if name not in self._accepted:
            tried = action["choices"] or _REFUSED_LATER.get(plain(name), _CANDIDATES)
            self._accepted[name] = [v for v in tried if "values" in self.ask([*self.first, f"{name}={v}"])]
        return self._accepted[name]

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def plain(name: str) -> str:
    """An option's name without dashes."""
    return name.lstrip("-").replace("-", "_")


def lines(parser: OwnParser, count: int, seed: int) -> Iterator[list[str]]:
    """Command lines of a few options each, in every spelling that it may take: those that we read, and now and then
    others.
    """
    draw = random.Random(seed)  # noqa: S311  (no secret)
    actions = [action for action in parser.actions if action["dest"] not in _NOT_DRAWN]
    read_by_us = _known_names(parser)
    weights = [10 if {plain(name) for name in action["names"]} & read_by_us else 1 for action in actions]
    for _ in range(count):
        words: list[str] = []
        for action in draw.choices(actions, weights, k=draw.randint(1, 5)):
            for _ in range(draw.choice((1, 1, 1, 2))):
                words += spelled(parser, action, draw)
        behind = parser.engine in ("vllm", "sglang") and draw.random() >= 0.7
        yield ["serve", *words, "--model", "m"] if behind else [*parser.first, *words]


def compared_lines(parser: OwnParser, count: int, seed: int, folder: Path) -> int:
    """How many of some random lines the parser takes; each of them must be read as it takes it."""
    accepted = 0
    for words in lines(parser, count, seed):
        if "values" in parser.ask(words):
            accepted += 1
            try:
                assert read_otherwise(parser, words, folder) == [], words
            except SpecError as error:
                # What the engine refuses behind its parser.
                assert "refuses" in str(error), words
    return accepted


def _known_names(parser: OwnParser) -> set[str]:
    """The names of what the reader has a list for."""
    assert parser.program.grammar is not None
    return {plain(spelling) for spelling in parser.program.grammar.spellings}


def spelled(parser: OwnParser, action: Action, draw: random.Random) -> list[str]:
    """One option with a value, by any of its names, shortened or not, with dashes or underscores."""
    name = draw.choice(action["names"])
    if draw.random() < 0.3:
        name = _abbreviated(parser.engine, name, [name for action in parser.actions for name in action["names"]], draw)
    if parser.engine == "vllm" and name.startswith("--") and draw.random() < 0.3:
        name = "--" + name[2:].replace("-", "_")
    if action["words"] == 0:
        return [name]
    values = parser.accepted(action)
    if not values:
        return []
    value = draw.choice(values)
    dotted = parser.engine == "vllm" and name.startswith("--") and action["words"] is None and "word" not in values
    if dotted and value.startswith("{") and draw.random() < 0.5:
        return [f"{name}.b.c", "7"]
    if action["words"] in ("+", "*"):
        return [name, *draw.choices(values, k=draw.randint(1, 3))]
    return [f"{name}={value}"] if draw.random() < 0.4 else [name, value]


def _abbreviated(engine: str, name: str, strings: Sequence[str], draw: random.Random) -> str:
    """A beginning that no other option has."""
    short = [name[:end] for end in range(4, len(name)) if [s for s in strings if s.startswith(name[:end])] == [name]]
    grammar = PROGRAMS[engine].grammar
    assert grammar is not None
    short = [beginning for beginning in short if beginning.startswith(grammar.shortened)]
    return draw.choice(short) if short and name.startswith("--") else name


def differences(parser: OwnParser, launch: Launch, values: Mapping[str, Any]) -> list[str]:
    """Where the reader tells anything else of a line than the parser, whose values these are."""
    by_parser = _known_names(parser)
    lines_apart = [
        f"not looked at: {key.name}"
        for key in launch.ignored
        if not key.name.isupper() and (plain(key.name) in by_parser or parser.engine in ("vllm", "sglang"))
    ]
    lines_apart += [f"note: {note.says}" for note in launch.notes if "its parser refuses it" in note.says]
    read_values = {setting.name: setting.value for setting in launch.settings if setting.given}
    without_effect = {key.name for key in launch.irrelevant}
    by_dest: dict[str, list[str]] = {}
    denied = set[str]()
    for option in parser.program.options:
        action = next((parser.by_name[name] for name in option.names if name in parser.by_name), None)
        if action is not None and not option.environment and action["dest"] in parser.defaults:
            by_dest.setdefault(action["dest"], []).append(option.name)
            denied |= {action["dest"]} if action["class"] == "_StoreFalseAction" else set()
    for dest, names in by_dest.items():
        if not without_effect.intersection(names):
            value = next((read_values[name] for name in names if name in read_values), None)
            true = not values[dest] if dest in denied else values[dest]
            lines_apart += _compared(
                dest, value, true, not parser.defaults[dest] if dest in denied else parser.defaults[dest]
            )
    return lines_apart


def read_otherwise(parser: OwnParser, words: Sequence[str], folder: Path) -> list[str]:
    """Where the reader tells anything else of a script that holds this line alone."""
    file = folder / "launch.sh"
    file.write_text(shlex.join([*COMMANDS[parser.engine], *words]) + "\n", "utf-8")
    return differences(parser, read(file), parser.ask(words)["values"])


def _compared(name: str, value: str | None, true: Any, default: Any) -> list[str]:
    if value is None:
        return [] if true == default else [f"{name} is {true}, and the reader has nothing"]
    return [] if _same(value, true) else [f"{name} is {true}, and the reader has {value}"]


def _same(value: str, true: Any) -> bool:
    if isinstance(true, Mapping):
        try:
            mapping = json.loads(value)
        except ValueError:
            return False
        return isinstance(mapping, dict) and _within(mapping, true)
    if isinstance(true, list):
        return value == " ".join(map(str, true)) or value == json.dumps(true)
    if isinstance(true, bool):
        return (value != "false") == true
    if isinstance(true, int | float):
        return float(value) == float(true)
    return value.lower() in (str(true).lower(), str(true).lower().rpartition(".")[2])


def _within(values: Mapping[str, Any], true: Mapping[str, Any]) -> bool:
    """Whether the keys that are given have these values; the parser may add its defaults."""
    return all(_alike(value, true.get(key)) for key, value in values.items())


def _alike(value: Any, true: Any) -> bool:
    if isinstance(value, dict) and isinstance(true, dict):
        return _within(value, true)
    if isinstance(value, list) and isinstance(true, list):
        return len(value) == len(true) and all(map(_alike, value, true))
    return str(value) == str(true)
