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
    entries: list[tuple[Entry, str]] = []
    others: list[Word] = []
    notes: list[Note] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word.text.partition("=")[0]
        if not known(name):
            notes.append(_unknown(word))
        elif nested := _NESTED.fullmatch(word.text):
            entries.append((_entry(nested[1], value_of(nested[2]), word), word.condition))
        elif word.text.startswith("-") and len(word.text) > 1:
            entries.append(_option(word, rest, flags))
        else:
            others.append(word)
    return _decided(entries), others, notes


def _unknown(word: Word) -> Note:
    under = f", there if {word.condition}" if word.condition else ""
    return Note(says=f"`{plain(word.text)}` is not resolved{under}: what it sets is not known", where=word.where)


def _option(word: Word, rest: list[Word], flags: Collection[str]) -> tuple[Entry, str]:
    """An option and the condition it stands under; the words of its value are taken from `rest`."""
    name, equals, attached = word.text.lstrip("-").partition("=")
    if not word.text.startswith("--"):
        level = re.fullmatch(r"-O(\d)", word.text)
        if level:
            return _entry("O", level[1], word), word.condition
        name = _SHORT.get(f"-{name}", name)
    name = name.replace("-", "_")
    if equals:
        return _entry(name, value_of(attached), word), word.condition
    following = rest[0] if rest else None
    if following is None or _OPTION.fullmatch(following.text.partition("=")[0]) or following.text == "--":
        return _entry(name, None, word), word.condition
    if name in flags and following.text not in (*TRUE, *FALSE, "yes", "no", "on", "off"):
        return _entry(name, None, word), word.condition
    texts = [rest.pop(0)]
    if texts[0].condition != word.condition:
        while rest and rest[0].condition and not rest[0].text.startswith("-"):
            texts.append(rest.pop(0))
        told = " or ".join(f"{plain(text.text)} if {text.condition}" for text in texts)
        return Entry(name=name, value=Unresolved(told), where=word.where), word.condition
    while rest and _number(rest[0].text) and _number(following.text) and rest[0].condition == word.condition:
        texts.append(rest.pop(0))
    return _entry(name, value_of(" ".join(text.text for text in texts)), word), word.condition


def _number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d*)?", text))


def _entry(name: str, value: Any, word: Word) -> Entry:
    return Entry(name=name, value=value, where=word.where)


def _decided(entries: Sequence[tuple[Entry, str]]) -> list[Entry]:
    """What is given only under a condition says what it is otherwise."""
    last: dict[str, Entry] = {}
    for entry, condition in entries:
        before = last.get(entry.name)
        if condition:
            other = "not set" if before is None else _shown(before)
            told = Unresolved(f"{_shown(entry)} if {condition}, else {other}")
            last[entry.name] = replace(entry, value=told)
        else:
            last[entry.name] = entry
    return list(last.values())


def _shown(entry: Entry) -> str:
    return "set" if entry.value is None else str(entry.value).removeprefix("unresolved: ")
