"""What a capture records: checked once, and handed to a program as one environment variable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypedDict, Unpack

from moeparity.errors import MoeparityError, did_you_mean, listed, shown, whole_number

LEVELS = ("op", "module", "gradient")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSettings:
    """What is recorded, and what is where nothing else is said.

    `levels`: of `op`, `module`, `gradient`. `save`: globs; of a call whose module path or name one of them matches,
    whole tensors are kept, up to `budget` bytes in all. `steps`: the first step and the one behind the last, None for
    all. `rows`, `stats`, `stacks`: whether each value has a digest for each row, statistics, and each call its Python
    stack.
    """

    levels: tuple[str, ...] = ("op", "module")
    save: tuple[str, ...] = ()
    budget: int = 1 << 30
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


class Words(TypedDict, total=False):
    """What may be said of `Settings`, in words: the one list of a capture's options.

    `level`: one of `LEVELS`, or several with commas between. `save`: one glob or several. `budget`: bytes, or a number
    with a unit. `steps`: `A:B`.
    """

    level: tuple[str, ...] | str
    save: Sequence[str] | str
    budget: int | str
    steps: str | None
    rows: bool
    stats: bool
    stacks: bool


def settings_of(**words: Unpack[Words]) -> CaptureSettings:
    """The settings that these words say. Raises MoeparityError for a word that says nothing."""
    fields: dict[str, Any] = {name: value for name, value in words.items() if name not in _READ}
    for name, (field, read_word) in _READ.items():
        if name in words:
            fields[field] = read_word(words[name])  # type: ignore[literal-required]
    return CaptureSettings(**fields)


def _levels(text: tuple[str, ...] | str) -> tuple[str, ...]:
    chosen = tuple(word.strip() for word in (text.split(",") if isinstance(text, str) else text))
    for word in chosen:
        if word not in LEVELS:
            raise MoeparityError(
                f"capture: level {word!r}; expected some of {listed(LEVELS)}.{did_you_mean(word, LEVELS)}"
            )
    return chosen


def _globs(text: Sequence[str] | str) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text)


def written(settings: CaptureSettings) -> str:
    """The settings as JSON, which `read` takes."""
    return json.dumps(asdict(settings))


def read(text: str) -> CaptureSettings:
    """The settings of JSON that `written` made."""
    document: dict[str, Any] = json.loads(text)
    plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in document.items()}
    return CaptureSettings(**plain)


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


_READ: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "level": ("levels", _levels),
    "save": ("save", _globs),
    "budget": ("budget", _bytes),
    "steps": ("steps", _steps),
}
"""Words that are not taken as they are: the field that each sets, and what reads it."""
