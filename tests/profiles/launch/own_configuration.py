"""A trainer's own configuration beside what the reader makes of the same command line: where the two differ."""

from __future__ import annotations

import json
import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from moeparity.profiles.launch import nemo_rl, prime_rl, read, rl_trainers, skyrl, verl
from moeparity.profiles.launch.options import Option
from moeparity.profiles.launch.report import LaunchSetting
from tests.engines.live import FOLDER
from tests.profiles.launch.answering import Answering

PROGRAMS = {
    "verl": verl.VERL,
    "nemo-rl": nemo_rl.NEMO_RL,
    "skyrl": skyrl.SKYRL,
    "openrlhf": rl_trainers.OPENRLHF,
    "trl": rl_trainers.TRL,
    "prime-rl": prime_rl.PRIME_RL,
}
COMMANDS = {
    "verl": ("python3", "-m", "verl.trainer.main_ppo"),
    "nemo-rl": ("python", "examples/run_grpo_math.py", "--config"),
    "skyrl": ("python", "-m", "skyrl.train.entrypoints.main_base"),
    "openrlhf": ("python3", "-m", "openrlhf.cli.train_ppo_ray"),
    "trl": ("trl", "grpo"),
    "prime-rl": ("uv", "run", "rl"),
}
_DASHED = ("openrlhf", "trl", "prime-rl")
"""Those whose options begin with dashes."""
_TRIED = ("prime-rl",)
"""Those that take few of the values that a kind allows: each is tried alone first."""
_FURTHER = {"prime-rl": ("prime-rl-arguments", "vllm-arguments", "slime-arguments")}
"""Folders of packages that a configuration is made with."""


class OwnConfiguration:
    """The configuration in a process of its own; skips the test that asks, where its code is not here."""

    def __init__(self, trainer: str) -> None:
        folders = [FOLDER / name for name in (trainer, *_FURTHER.get(trainer, ()))]
        absent = [str(folder) for folder in folders if not folder.is_dir()]
        if absent:
            pytest.skip(
                f"not compared with {trainer}'s own configuration: no {', '.join(absent)} (tests/engines/live.py)"
            )
        self.trainer, self.program = trainer, PROGRAMS[trainer]
        self._process = Answering("live_configurations.py", trainer, folders)
        self.defaults: Mapping[str, Any] = self._process.greeting
        self.accepted: dict[str, list[str]] = {}

    def ask(self, words: Sequence[str]) -> Mapping[str, Any]:
        """`values` by dotted names, or `refused`."""
        return self._process.ask(words)

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def lines(trainer_config: OwnConfiguration, first: Sequence[str], count: int, seed: int) -> Iterator[list[str]]:
    """Command lines of a few of the options that we read, each with a value that its kind allows."""
    draw = random.Random(seed)  # noqa: S311  (no secret)
    options = [
        option for option in trainer_config.program.options if not option.environment and _name(trainer_config, option)
    ]
    for _ in range(count):
        words = list(first)
        for option in draw.sample(options, k=draw.randint(1, min(6, len(options)))):
            name = _name(trainer_config, option)
            value = (
                _accepted_value(trainer_config, option, first, draw)
                if trainer_config.trainer in _TRIED
                else _value(option, trainer_config.defaults[name], draw)
            )
            words += _spelled(trainer_config, name, value, draw) if value else []
        yield words


def _accepted_value(trainer_config: OwnConfiguration, option: Option, first: Sequence[str], draw: random.Random) -> str:
    """A value of an option that the trainer takes by itself; empty where it takes none of those that are tried."""
    name = _name(trainer_config, option)
    if name not in trainer_config.accepted:
        tried = dict.fromkeys(
            (str(trainer_config.defaults[name]), *option.choices, "true", "false", "1", "2", "4", "0.7", "fp8")
        )
        trainer_config.accepted[name] = [
            value for value in tried if "values" in trainer_config.ask([*first, f"--{name}", value])
        ]
    return draw.choice(trainer_config.accepted[name]) if trainer_config.accepted[name] else ""


def _name(trainer_config: OwnConfiguration, option: Option) -> str:
    """By which of its names the trainer has an option; empty where it has none of them."""
    return next((name for name in option.names if name in trainer_config.defaults), "")


def _value(option: Option, default: Any, draw: random.Random) -> str:
    if option.kind == "any" and isinstance(default, bool | int | float):
        return draw.choice(("true", "false")) if isinstance(default, bool) else str(type(default)(2))
    if option.kind == "count":
        return draw.choice(("1", "2", "4", "8"))
    if option.kind == "flag":
        return draw.choice(("True", "False", "true", "false"))
    if option.kind == "number":
        return draw.choice(("1.0", "0.7", "1", "0"))
    words = [choice for choice in option.choices if choice not in ("unset", "none")]
    return draw.choice(words or ["1", "0.5", "fp8", "true"])


def _spelled(trainer_config: OwnConfiguration, name: str, value: str, draw: random.Random) -> list[str]:
    if trainer_config.trainer not in _DASHED:
        return [f"{draw.choice(('', '++')) if trainer_config.trainer != 'skyrl' else ''}{name}={value}"]
    if trainer_config.defaults[name] is False and trainer_config.trainer == "openrlhf":
        return [f"--{name}"]
    return draw.choice(([f"--{name}", value], [f"--{name}={value}"]))


def read_otherwise(
    trainer_config: OwnConfiguration, words: Sequence[str], values: Mapping[str, Any], folder: Path
) -> list[str]:
    """Where a script that holds this line alone is read as anything else than the trainer's `values` of it."""
    (folder / "launch.sh").write_text(shlex.join([*COMMANDS[trainer_config.trainer], *words]) + "\n", "utf-8")
    launch = read(folder / "launch.sh")
    options = {option.name: option for option in trainer_config.program.options}
    differences = [
        difference
        for setting in launch.settings
        if (
            difference := _difference(
                setting, options[setting.name], _name(trainer_config, options[setting.name]), values
            )
        )
    ]
    words_given = {word.lstrip("-+").partition("=")[0] for word in words}
    differences += [
        f"not looked at: {key.name}"
        for key in launch.ignored
        if key.name in words_given and key.name in trainer_config.defaults
    ]
    return differences


def _difference(setting: LaunchSetting, option: Option, name: str, values: Mapping[str, Any]) -> str:
    if not name or (not setting.given and values[name] is None):
        return ""
    true = values[name]
    if _same(setting.value, true) or (
        not setting.given and setting.value in ("unset", "none") and true in ("auto", "")
    ):
        return ""
    return f"{name} is {true}, and the reader has {setting.value}{'' if setting.given else ' where nothing is set'}"


def _same(shown: str, true: Any) -> bool:
    if isinstance(true, bool) or true is None:
        return shown.lower() in ({True: ("true", "set", "1"), False: ("false", "0"), None: ("none", "null")}[true])
    if isinstance(true, int | float):
        try:
            return float(shown) == float(true)
        except ValueError:
            return False
    if isinstance(true, dict):
        return bool(json.loads(shown) == true)
    return shown.lower() == str(true).lower()
