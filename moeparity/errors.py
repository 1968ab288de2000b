"""The errors a user can cause; everything else is a bug and keeps its traceback.

MoeparityError             exit code 2 on the command line
├── SpecError              one of the three YAML files
├── GraphError             a graph and a config.json that do not fit together
├── CheckpointError        safetensors files, config.json
├── TokensError            the token file
├── LogError               a log of log-probabilities that a framework wrote
└── DeviceError            a device that is not there
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class MoeparityError(Exception):
    """A user's mistake, told in one message: where, what was given, what was expected, what to do."""


class SpecError(MoeparityError):
    """A YAML file that is not what its kind asks for."""


class GraphError(MoeparityError):
    """A graph that cannot be expanded with this config.json, or a profile that does not fit the graph."""


class CheckpointError(MoeparityError):
    """A checkpoint that cannot be used as it is."""


class TokensError(MoeparityError):
    """A token file that cannot be used as it is."""


class LogError(MoeparityError):
    """A log of log-probabilities that cannot be used as it is."""


class DeviceError(MoeparityError):
    """A device that was asked for and is not there."""


_LONGEST_PATH = 300
"""Characters of a path that a message shows."""


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file; prints as `path:line`."""

    path: Path
    line: int | None = None

    def __str__(self) -> str:
        path = display_path(self.path)
        return path if self.line is None else f"{path}:{self.line}"


def display_path(path: Path) -> str:
    """The path as a user would type it: relative to the working directory when it lies below it."""
    try:
        text = str(Path(os.path.normpath(path.absolute())).relative_to(Path.cwd()))
    except (OSError, ValueError):  # OSError: the working directory is gone
        text = str(path)
    half = _LONGEST_PATH // 2
    return text if len(text) <= _LONGEST_PATH else f"{text[:half]}...{text[-half:]}"


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = 0.6) -> str:
    """` Did you mean 'x'?` with the nearest known name, or nothing when none is near."""
    neighbours = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f" Did you mean {neighbours[0]!r}?" if neighbours else ""


def counted(count: int, noun: str) -> str:
    """`1 token`, `1,200 tokens`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listed(names: Iterable[str]) -> str:
    """Names for an `expected one of ...`, in the order given."""
    return ", ".join(str(name) for name in names)


def shown(value: Any) -> str:
    """A value as a message names it: `'word'`, `4`, `true`, `null`, `a list`, `a mapping`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
