"""What a capture records: checked once, and handed to a program as one environment variable."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from moeparity.errors import MoeparityError, did_you_mean, listed, shown, whole_number

LEVELS = ("op", "module")
BUDGET = 1 << 30
"""Bytes of whole tensors that are kept where nothing else is said."""
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is recorded.

    `levels`: of `op`, `module`. `save`: globs; of a call whose module path or name one of them matches, whole tensors
    are kept, up to `budget` bytes in all. `steps`: the first step and the one behind the last, None for all. `rows`,
    `stats`, `stacks`: whether each value has a digest for each row, statistics, and each call its Python stack.
    """

    levels: tuple[str, ...] = LEVELS
    save: tuple[str, ...] = ()
    budget: int = BUDGET
    steps: tuple[int, int | None] | None = None
    rows: bool = True
    stats: bool = True
    stacks: bool = True

    def saves(self, name: str, path: str) -> bool:
        """Whether whole tensors of a call of that name and module path are kept."""
        return bool(self.save) and _matches(self.save, name, path)

    def records(self, step: int) -> bool:
        """Whether that step is recorded."""
        if self.steps is None:
            return True
        first, end = self.steps
        return first <= step and (end is None or step < end)


@lru_cache(maxsize=65536)
def _matches(globs: tuple[str, ...], name: str, path: str) -> bool:
    return any(fnmatchcase(path, pattern) or fnmatchcase(name, pattern) for pattern in globs)


def settings_of(
    *,
    levels: tuple[str, ...] | str = LEVELS,
    save: tuple[str, ...] | str = (),
    budget: int | str = BUDGET,
    steps: str | None = None,
    rows: bool = True,
    stats: bool = True,
    stacks: bool = True,
) -> Settings:
    """The settings that these words say. Raises MoeparityError for a word that says nothing."""
    chosen = tuple(word.strip() for word in (levels.split(",") if isinstance(levels, str) else levels))
    for word in chosen:
        if word not in LEVELS:
            raise MoeparityError(
                f"capture: level {word!r}; expected one of {listed(LEVELS)}, or both.{did_you_mean(word, LEVELS)}"
            )
    globs = (save,) if isinstance(save, str) else tuple(save)
    return Settings(
        levels=chosen, save=globs, budget=_bytes(budget), steps=_steps(steps), rows=rows, stats=stats, stacks=stacks
    )


def written(settings: Settings) -> str:
    """The settings as JSON, which `read` takes."""
    return json.dumps(asdict(settings))


def read(text: str) -> Settings:
    """The settings of JSON that `written` made."""
    document: dict[str, Any] = json.loads(text)
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    return Settings(**plain)


def _bytes(budget: int | str) -> int:
    if isinstance(budget, int) and budget >= 0:
        return budget
    text = str(budget).strip().lower().removesuffix("b")
    digits = text.rstrip("kmgi")
    number = whole_number(digits)
    unit = UNITS.get(text[len(digits) :])
    if number is None or unit is None:
        raise MoeparityError(f"capture: budget {shown(budget)}; expected bytes, such as 500000, 500M or 2G.")
    return number * unit


def _steps(text: str | None) -> tuple[int, int | None] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    start = whole_number(first) if first else 0
    end = whole_number(last) if last else None
    if not colon or start is None or (last and end is None) or (end is not None and end <= start):
        raise MoeparityError(
            f"capture: steps {text!r}; expected A:B, from step A up to but without B, such as 0:2, 10: or :3."
        )
    return start, end
