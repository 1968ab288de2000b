"""The arguments of a program as options: `--name value`, `--name=value`, `--flag`, `-tp 4`, and hydra's `key=value`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from moeparity.profiles.launch.reading.words import Word, known, plain, value_of
from moeparity.profiles.launch.source import FALSE, TRUE, Entry, Note, Unresolved

_NESTED = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z_][\w.-]*")
_SHORT = {"-tp": "tp", "-O": "O", "-ep": "ep", "-dp": "dp", "-pp": "pp"}
"""Short options that concern numerics."""


def options(words: Sequence[Word], flags: Collection[str]) -> tuple[list[Entry], list[Word], list[Note]]:
    """Options, the words that belong to none, and what could not be followed. `flags` take no value but a boolean."""
    entries: list[Entry] = []
    others: list[Word] = []
    notes: list[Note] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word.text.partition("=")[0]
        if not known(name):
            notes.append(_unknown(word))
        elif nested := _NESTED.fullmatch(word.text):
            entries.append(_entry(nested[1], value_of(nested[2]), word))
        elif word.text.startswith("-") and len(word.text) > 1:
            entries.append(_option(word, rest, flags))
        else:
            others.append(word)
    return _decided(entries), others, notes


def _unknown(word: Word) -> Note:
    under = f", there if {word.condition}" if word.condition else ""
    return Note(says=f"`{plain(word.text)}` is not resolved{under}: what it sets is not known", where=word.where)


def _option(word: Word, rest: list[Word], flags: Collection[str]) -> Entry:
    name, equals, attached = word.text.lstrip("-").partition("=")
    if not word.text.startswith("--"):
        level = re.fullmatch(r"-O(\d)", word.text)
        if level:
            return _entry("O", level[1], word)
        name = _SHORT.get(f"-{name}", name)
    name = name.replace("-", "_")
    if equals:
        return _entry(name, value_of(attached), word)
    following = rest[0] if rest else None
    if following is None or _OPTION.fullmatch(following.text.partition("=")[0]) or following.text == "--":
        return _entry(name, None, word)
    if name in flags and following.text not in (*TRUE, *FALSE, "yes", "no", "on", "off"):
        return _entry(name, None, word)
    rest.pop(0)
    further = []
    while rest and known(rest[0].text) and _number(rest[0].text) and _number(following.text):
        further.append(rest.pop(0).text)
    value = value_of(" ".join([following.text, *further]))
    return _entry(name, value, word if not following.condition or word.condition else following)


def _number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d*)?", text))


def _entry(name: str, value: Any, word: Word) -> Entry:
    shown = "set" if value is None else str(value).removeprefix("unresolved: ")
    value = Unresolved(f"{shown} if {word.condition}") if word.condition else value
    return Entry(name=name, value=value, where=word.where)


def _decided(entries: Sequence[Entry]) -> list[Entry]:
    """What is given only under a condition says what it is otherwise."""
    last: dict[str, Entry] = {}
    for entry in entries:
        before = last.get(entry.name)
        conditional = isinstance(entry.value, Unresolved) and " if " in entry.value.text
        if conditional:
            other = "not set" if before is None else _shown(before)
            entry = replace(entry, value=Unresolved(f"{_shown(entry)}, else {other}"))  # noqa: PLW2901
        last[entry.name] = entry
    return list(last.values())


def _shown(entry: Entry) -> str:
    return "set" if entry.value is None else str(entry.value).removeprefix("unresolved: ")
