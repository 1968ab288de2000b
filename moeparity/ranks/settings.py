"""What guards do and how often: set by arguments, else by environment variables `MOEPARITY_RANKS_...`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from moeparity.errors import RankError, did_you_mean

PREFIX = "MOEPARITY_RANKS_"

Rng = Literal["lockstep", "broadcast"]
Collectives = Literal["log", "check", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """How often ranks are compared, and for how long they may be apart.

    folder: for the ranks' journals (None: none is kept). inputs_every: calls between two comparisons of envelope and
    payload (0: never). sample_bytes: how much of each tensor of the payload is compared (None: all). weights_every:
    calls between two fingerprints of the weights. cache_every: calls between two comparisons of the cache's lifecycle.
    rng: with `lockstep` ranks draw the same numbers, so generators are compared; with `broadcast` they are handed
    numbers as tensors. collectives: `log` compares what was called at each guard, `check` before each collective runs.
    heartbeat_s: seconds between two signs of life.
    watchdog_s: seconds after which a rank that others wait for ends the job.
    """

    folder: Path | None = None
    inputs_every: int = 1
    sample_bytes: int | None = 1 << 16
    weights_every: int = 128
    cache_every: int = 64
    rng: Rng = "lockstep"
    collectives: Collectives = "log"
    heartbeat_s: float = 1.0
    watchdog_s: float = 30.0


def settings(arguments: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> GuardSettings:
    """The settings of this process; arguments come before the environment, and that before the defaults.

    Raises RankError for an unknown name or an impossible value.
    """
    variables = os.environ if environment is None else environment
    names = {field.name for field in fields(GuardSettings)}
    read = {
        key.removeprefix(PREFIX).lower(): (value, f"${key}")
        for key, value in variables.items()
        if key.startswith(PREFIX)
    }
    read |= {name: (value, f"{name}=") for name, value in (arguments or {}).items()}
    for name, (_, where) in read.items():
        if name not in names:
            raise RankError(
                f"{where}: no such setting; expected one of {', '.join(sorted(names))}."
                f"{did_you_mean(name, sorted(names))}"
            )
    checked: dict[str, Any] = {name: _value(name, value, where) for name, (value, where) in read.items()}
    return replace(GuardSettings(), **checked)


def _value(name: str, value: object, where: str) -> object:
    choices = {"rng": get_args(Rng), "collectives": get_args(Collectives)}.get(name)
    if choices is not None:
        if value not in choices:
            raise RankError(
                f"{where} {value!r}: expected one of {', '.join(choices)}.{did_you_mean(str(value), choices)}"
            )
        return value
    if name == "folder":
        return None if value in (None, "") else Path(str(value))
    if name == "sample_bytes" and (value is None or value == "all"):
        return None
    kind = float if name.endswith("_s") else int
    try:
        number = kind(str(value))
    except ValueError:
        number = -1
    least = 0.05 if kind is float else 0
    if not number >= least or number == float("inf"):
        raise RankError(f"{where} {value!r}: expected a number of {least:g} or more.")
    return number
