"""The errors a user can cause; everything else is a bug and keeps its traceback.

MoeparityError             exit code 2 on the command line
├── SpecError              one of the three YAML files
├── GraphError             a graph and a config.json that do not fit together
├── CheckpointError        safetensors files, config.json
├── TokensError            the token file
├── LogError               a log of log-probabilities that a framework wrote
├── DeviceError            a device that is not there
├── RunError               the folder of a run
├── TraceError             the trace of a program
├── MismatchError          a program that computed other values than the trace it is held to
├── RankError              ranks of a job that are not in step, or can't be guarded
├── WeightsError           fingerprints of weights that can't be taken, read or compared
└── ContractError          a contract that can't be read, or a process that breaks it
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
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


class RunError(MoeparityError):
    """A run's folder that cannot be used: another's, held, damaged, newer."""


class TraceError(MoeparityError):
    """A trace that cannot be written or used as it is."""


class MismatchError(MoeparityError):
    """A program computed other values than the trace that it is held to, and was to stop there."""


class RankError(MoeparityError):
    """Ranks of one job that are not in step, or cannot be guarded as asked."""


class WeightsError(MoeparityError):
    """Fingerprints of weights that cannot be taken, read or compared as asked."""


class ContractError(MoeparityError):
    """A contract that cannot be read, or a process that breaks the contract it is held to."""


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
        folder = os.getcwd()  # noqa: PTH109
    except OSError:  # It is gone.
        folder = None
    return _shown_from(path, folder)


# A report says where each of its many values was set, and they come from few files.
@lru_cache(maxsize=1024)
def _shown_from(path: Path, folder: str | None) -> str:
    """A path relative to a folder that it lies below, or as it is; a long one without its middle."""
    try:
        text = str(path) if folder is None else str(Path(os.path.normpath(folder / path)).relative_to(folder))
    except ValueError:
        text = str(path)
    half = _LONGEST_PATH // 2
    return text if len(text) <= _LONGEST_PATH else f"{text[:half]}...{text[-half:]}"


_LOOSE = 0.6


def did_you_mean(name: str, names: Iterable[str], *, cutoff: float = _LOOSE) -> str:
    """` Did you mean 'x'?` with the known name that is meant, or the nearest; nothing where none is near.

    Case does not count; another tool's word for the same, and a name with something added, are taken for it.
    """
    by_lower = {known_name.lower(): known_name for known_name in names}
    lower = name.lower().replace("-", "_")
    meant = _ELSEWHERE.get(lower)
    parts = [part for part in by_lower if part in lower.split("_") and cutoff <= _LOOSE]
    near = difflib.get_close_matches(lower, list(by_lower), n=1, cutoff=cutoff)
    key = next((key for key in (lower, meant, *near, *parts) if key in by_lower), None)
    return f" Did you mean {by_lower[key]!r}?" if key is not None and by_lower[key] != name else ""


_ELSEWHERE = {
    **dict.fromkeys(("bfloat16", "bfloat", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("float32", "float", "single", "torch.float32"), "fp32"),
    **dict.fromkeys(("float64", "double", "torch.float64"), "fp64"),
    **dict.fromkeys(("gpu", "cuda:0"), "cuda"),
    **dict.fromkeys(("tp", "tp_size", "tensor_parallel", "tensor_parallel_size"), "tensor"),
    **dict.fromkeys(("ep", "ep_size", "expert_parallel", "expert_parallel_size"), "expert"),
}
"""What other tools call it -> the word here."""


def counted(count: int, noun: str) -> str:
    """`1 token`, `1,200 tokens`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def whole_number(text: str) -> int | None:
    """The number that decimal digits say, where 64 bits hold it; None for anything else.

    Python's own `int` raises for more than 4,300 digits, takes `1_0` and blanks, and what it makes of 30 digits
    overflows in a tensor.
    """
    digits = text.lstrip("0") or text[:1]
    number = int(digits) if digits.isdecimal() and len(digits) < 20 else None
    return number if number is not None and number < 1 << 63 else None


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
