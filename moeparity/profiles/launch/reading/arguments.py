"""The arguments of a program as options: `--name value`, `--name=value`, `--flag`, `-tp 4`, and hydra's `key=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from moeparity.documents import yaml
from moeparity.errors import SpecError
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.reading.nested import leaves_of
from moeparity.profiles.launch.reading.shell_words import Word, is_known, plain, value_of
from moeparity.profiles.launch.source import FALSE, NULL, TRUE, Entry, Note, Unresolved

_NESTED = re.compile(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z_][\w.-]*")
_DOTTED = re.compile(r"(--?[A-Za-z_][\w-]*)\.([^=]+)", re.DOTALL)
_PATH = re.compile(r"~/.*|(?!-)[^=\0]*(\0[^\0]*\0)[^=\0]*/[^=]*|(?!-)[^=\0]*/[^=\0]*\0[^=]*")
"""A path, parts of which may not be known: no option. Hydra's `~key` takes a key away."""
_LEVEL = re.compile(r"-O=?(\w+)")


def options(words: Sequence[Word], grammar: Grammar) -> tuple[list[Entry], list[Word], list[Note]]:
    """Options, the words that belong to none, and what could not be followed."""
    entries: list[tuple[Entry, str]] = []
    inner: dict[str, tuple[Entry, str]] = {}
    others: list[Word] = []
    notes: list[Note] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name = word.text.partition("=")[0]
        if _PATH.fullmatch(word.text):
            others.append(word)
        elif not is_known(name):
            notes.append(_unknown(word))
        elif word.text.startswith("~"):
            notes.append(Note(says=f"`{word.text}` takes a key away, which is not followed", where=word.where))
        elif grammar.dotted and (dotted := _DOTTED.fullmatch(name)):
            _put(inner, dotted[1], dotted[2].split("."), word, rest)
        elif nested := _NESTED.fullmatch(word.text):
            entries += ((entry, word.condition) for entry in _overrides(nested[1], nested[2], word))
        elif word.text.startswith("-") and len(word.text) > 1:
            entries.append(_option(word, rest, grammar))
        else:
            others.append(word)
    for text, (entry, condition) in inner.items():
        entries.append((replace(entry, name=grammar.option_of(text)[0]), condition))
    return _decided(entries), others, notes


def _overrides(name: str, text: str, word: Word) -> Iterator[Entry]:
    """What hydra makes of `name=text`: a mapping's keys one by one, nothing of `null`."""
    mapping = None
    if text.startswith("{") and is_known(text):
        with suppress(SpecError):
            # Hydra wants no blank behind a key's colon.
            spaced = re.sub(r"""([{,]\s*(?:[\w.-]+|"[^"]*"|'[^']*')):(?=\S)""", r"\1: ", text)
            mapping = yaml.parsed(word.where.path, spaced)
    if mapping:
        for key, entry in leaves_of(mapping, word.where, f"{name}."):
            yield replace(entry, name=key, where=word.where)
    else:
        yield _entry(name, NULL if text == "null" else value_of(text), word)


def _put(inner: dict[str, tuple[Entry, str]], name: str, keys: Sequence[str], word: Word, rest: list[Word]) -> None:
    """One key of a mapping that is given key by key: those of one name are put together, behind all other options."""
    _, equals, attached = word.text.partition("=")
    text = attached if equals else (rest.pop(0).text if rest else "")
    *heads, last = keys
    value: Any = text.split(",") if last.endswith("+") else _json(text)
    before, condition = inner.get(name, (_entry(name, {}, word), word.condition))
    if not is_known(text) or condition != word.condition or isinstance(before.value, Unresolved):
        under = f" if {word.condition}" if word.condition else ""
        unresolved = Unresolved(f"{'.'.join(keys)}={plain(text)}{under}")
        inner[name] = replace(before, value=unresolved), ""
        return
    for key in reversed([*heads, last.removesuffix("+")]):
        value = {key: value}
    inner[name] = replace(before, value=_merged(before.value, value)), condition


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _merged(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in over.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merged(before, value)
        else:
            merged[key] = before + value if isinstance(before, list) and isinstance(value, list) else value
    return merged


def _unknown(word: Word) -> Note:
    under = f", there if {word.condition}" if word.condition else ""
    says = f"`{plain(word.text)}` is not resolved{under}: what it sets is not known"
    return Note(says=says, where=word.where, opens="options")


def _option(word: Word, rest: list[Word], grammar: Grammar) -> tuple[Entry, str]:
    """An option and the condition it stands under; the words of its value are taken from `rest`."""
    text, equals, attached = word.text.partition("=")
    level = _LEVEL.fullmatch(word.text)
    if level:
        return _entry(grammar.option_of("-O")[0], level[1], word), word.condition
    name, on = grammar.option_of(text)
    following = rest[0] if rest else None
    if not on:
        return _entry(name, False, word), word.condition
    if equals and grammar.apart and name.startswith(grammar.apart):
        return _entry(f"{name}={attached}", None, word), word.condition
    if equals:
        return _entry(name, value_of(attached), word), word.condition
    if following is None or _OPTION.fullmatch(following.text.partition("=")[0]) or following.text == "--":
        return _entry(name, None, word), word.condition
    if name in grammar.switches and (
        grammar.spellings or following.text not in (*TRUE, *FALSE, "yes", "no", "on", "off")
    ):
        return _entry(name, None, word), word.condition
    texts = [rest.pop(0)]
    if texts[0].condition != word.condition:
        while rest and rest[0].condition and not rest[0].text.startswith("-"):
            texts.append(rest.pop(0))
        alternatives = " or ".join(f"{plain(text.text)} if {text.condition}" for text in texts)
        return Entry(name=name, value=Unresolved(alternatives), where=word.where), word.condition
    while rest and rest[0].condition == word.condition and _goes_on(name, following, rest[0], grammar):
        texts.append(rest.pop(0))
    return _entry(name, value_of(" ".join(text.text for text in texts)), word), word.condition


def _goes_on(name: str, first: Word, word: Word, grammar: Grammar) -> bool:
    """Whether a word is one more value of an option: of a parser that is not known, numbers after a number."""
    if grammar.spellings:
        return name in grammar.several and not _OPTION.fullmatch(word.text.partition("=")[0])
    return _number(word.text) and _number(first.text)


def _number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d*)?", text))


def _entry(name: str, value: Any, word: Word) -> Entry:
    return Entry(name=name, value=value, where=word.where)


def _decided(entries: Sequence[tuple[Entry, str]]) -> list[Entry]:
    """What is given only under a condition says what it is otherwise."""
    last: dict[str, Entry] = {}
    for entry, condition in entries:
        before = last.pop(entry.name, None)
        if condition:
            value_before = "not set" if before is None else _shown(before)
            unresolved = Unresolved(f"{_shown(entry)} if {condition}, else {value_before}")
            last[entry.name] = replace(entry, value=unresolved)
        else:
            last[entry.name] = entry
    return list(last.values())


def _shown(entry: Entry) -> str:
    return "set" if entry.value is None else str(entry.value).removeprefix("unresolved: ")
