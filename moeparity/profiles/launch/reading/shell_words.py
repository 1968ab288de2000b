"""Words of a command line, of which parts may not be resolved."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from moeparity.errors import Where
from moeparity.profiles.launch.source import Unresolved

_MARK = "\0"
"""Stands around every part of a text that is not resolved: no word of a command line can hold it."""
_FIELD = re.compile(r"\0[^\0]*\0|[ \t\n]+|[^ \t\n\0]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A word, where it was written, and the undecided condition under which it is there (empty: always)."""

    text: str
    where: Where
    condition: str = ""

    @property
    def is_known(self) -> bool:
        """Whether all of it is resolved."""
        return _MARK not in self.text

    def under(self, condition: str) -> Word:
        """The word, if `condition` holds as well."""
        return replace(self, condition=conjunction(self.condition, condition))


@dataclass(frozen=True, slots=True)
class Command:
    """A command that is started: its words, the environment it is given, and the condition it stands under."""

    words: tuple[Word, ...]
    environment: tuple[tuple[str, Word], ...]
    where: Where
    condition: str = ""


def unresolved(text: str) -> str:
    """A part of a word that is not resolved, as it is written."""
    return f"{_MARK}{text.replace(_MARK, '')}{_MARK}"


def is_known(text: str) -> bool:
    """Whether all of a text is resolved."""
    return _MARK not in text


def plain(text: str) -> str:
    """The text for people: what is not resolved as it is written."""
    return text.replace(_MARK, "")


def value_of(text: str) -> Any:
    """A text as an option's value: the text, or an Unresolved."""
    return text if is_known(text) else Unresolved(plain(text))


def conjunction(first: str, second: str) -> str:
    """Two conditions that must hold together."""
    if not first or not second or first == second:
        return first or second
    return f"{first} and {second}"


class Fields:
    """Words as an expansion makes them: quoted text goes on, unquoted text is split at blanks."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.done: list[Word] = []
        self.current: Word | None = None

    def add(self, text: str) -> None:
        """Text that is not split, such as quoted text."""
        before = self.current or Word("", self.where)
        self.current = replace(before, text=before.text + text)

    def split(self, text: str) -> None:
        """Unquoted text: every run of blanks ends a word; what is not resolved is one part of a word."""
        for part in _FIELD.findall(text):
            if part[0] in " \t\n":
                self.close()
            else:
                self.add(part)

    def array(self, words: Iterable[Word]) -> None:
        """Elements, each a word of its own; the first goes on with what stands before, the last with what follows."""
        for number, word in enumerate(words):
            if number:
                self.close()
            if self.current is None or not self.current.text:
                self.current = word
            else:
                self.add(word.text)
                self.current = self.current.under(word.condition)

    def close(self) -> None:
        """End the word that is being made."""
        if self.current is not None:
            self.done.append(self.current)
            self.current = None

    def words(self) -> tuple[Word, ...]:
        """All words."""
        self.close()
        return tuple(self.done)
