"""A launch file, of whatever kind, as the sources that it holds: one for every program it starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from moeparity import paths
from moeparity.documents import yaml
from moeparity.errors import SpecError, Where
from moeparity.profiles.launch.reading import containers, nested
from moeparity.profiles.launch.reading.arguments import options
from moeparity.profiles.launch.reading.grammar import Grammar
from moeparity.profiles.launch.reading.launchers import Started, started
from moeparity.profiles.launch.reading.python import of_python
from moeparity.profiles.launch.reading.shell.interpret import interpreted
from moeparity.profiles.launch.reading.shell_words import Word, plain, value_of
from moeparity.profiles.launch.source import Entry, Note, Source, Unresolved

_UNITS = (".service", ".conf")
_NESTED = (".yaml", ".yml", ".json", ".toml")
GrammarOf = Callable[[str, Sequence[Word]], Grammar]
"""By a program's name and its arguments."""
_FOLDERS_UP = 6
"""A script's `--config` is looked for beside it, then so many folders up: it is run from a repository's root."""


def read_sources(path: Path, grammar_of: GrammarOf) -> list[Source]:
    """What a file gives each program that it starts, taken apart as that program does. Raises SpecError."""
    if not paths.present(path):
        raise SpecError(
            f"{Where(path)}: there is no such file. Give a launch configuration (YAML, JSON, TOML), a script, a "
            "unit, a manifest, or a command line."
        )
    notes: list[Note] = []
    if path.suffix in (".yaml", ".yml"):
        documents = yaml.documents(path)
        if any(map(containers.is_manifest, documents)):
            programs = [program for document in documents for program in containers.of_manifest(document, path, notes)]
            return _sources(programs, path, notes, grammar_of)
        return [_configured(path, {})]
    if path.suffix in _NESTED:
        return [_configured(path, {})]
    text = nested.text_of(path)
    if path.suffix == ".py" or re.match(r"#!.*python", text):
        return of_python(text, path)
    if path.suffix in _UNITS:
        return _sources(list(containers.of_unit(text, path, notes)), path, notes, grammar_of)
    scope = interpreted(text, path)
    programs = [program for command in scope.commands for program in started(command, notes)]
    programs = _whole_commands(programs, notes)
    others = [plain(command.words[0].text) for command in scope.commands]
    sources = _sources(programs, path, [*scope.notes.values(), *notes], grammar_of)
    return sources or [Source(path=path, options=(), command=tuple(dict.fromkeys(others)), notes=(*notes,))]


def _whole_commands(programs: list[Started], notes: list[Note]) -> list[Started]:
    """The commands that start a program. One that begins with an option starts none: it was to go on with the line
    before, which lacks its last backslash or has a blank behind it. Each such one is noted. If none starts a program,
    all are kept: the text is a list of options.
    """
    if not any(program.name for program in programs):
        return programs
    for program in programs:
        if not program.name:
            option = plain(program.arguments[0].text)
            says = (
                f"`{option} ...` begins a command of its own: the one before it has ended, perhaps for want of a `\\`"
            )
            notes.append(Note(says=says, where=program.command.where))
    return [program for program in programs if program.name]


def _configured(path: Path, over: Mapping[str, Entry]) -> Source:
    """A configuration file, with what stands over it where it refers to that."""
    notes: list[Note] = []
    if path.suffix == ".json":
        entries = nested.of_json(path)
    elif path.suffix == ".toml":
        entries = nested.of_toml(path)
    else:
        entries, notes = nested.of_yaml(path, over)
    return Source(path=path, options=tuple(entries), notes=tuple(notes))


def _sources(programs: Sequence[Started], path: Path, notes: Sequence[Note], grammar_of: GrammarOf) -> list[Source]:
    return [_source(program, path, notes, grammar_of) for program in programs]


def _source(program: Started, path: Path, notes: Sequence[Note], grammar_of: GrammarOf) -> Source:
    grammar = grammar_of(plain(program.name), program.arguments)
    entries, others, further = options(program.arguments, grammar)
    condition = program.command.condition
    if condition:
        where = program.command.where
        further.append(Note(says=f"`{plain(program.name)}` is started only if {condition}", where=where))
    by_name = {entry.name: entry for entry in entries}
    below: dict[str, Entry] = {}
    for name, where in [*_files(entries), *_at_files(others)]:
        below |= {entry.name: entry for entry in map(grammar.canonical, _beside(name, where, path, by_name, further))}
    by_name = {name: _followed(entry, below) for name, entry in by_name.items()}
    environment = {
        name: Entry(name=name, value=value_of(word.text), where=word.where) for name, word in program.environment
    }
    return Source(
        path=path,
        options=tuple(_over(below, by_name)),
        model=_positional(others, by_name, grammar, further),
        environment=tuple(environment.values()),
        command=(plain(program.name), *(plain(word.text) for word in others)),
        notes=(*notes, *further),
    )


def _followed(entry: Entry, below: Mapping[str, Entry]) -> Entry:
    """An option of the command line; one that refers to another as the configuration resolves it, else unresolved."""
    if not isinstance(entry.value, str) or "${" not in entry.value:
        return entry
    resolved = below[entry.name].value if entry.name in below else entry.value
    return replace(entry, value=Unresolved(entry.value) if resolved == entry.value else resolved)


def _over(below: Mapping[str, Entry], above: Mapping[str, Entry]) -> list[Entry]:
    """A file's options, and over them those of the command line, every mapping as it is then."""
    leaves = {name: entry for name, entry in below.items() if not (isinstance(entry.value, Mapping) and entry.value)}
    nested.lay_over(leaves, above)
    return nested.whole(leaves)


def _positional(
    others: Sequence[Word], by_name: Mapping[str, Entry], grammar: Grammar, notes: list[Note]
) -> Entry | None:
    """The model as a word behind `serve`, where that is what counts; a word that a parser has no place for is noted."""
    if not grammar.spellings:
        return None
    serves = bool(grammar.positional) and bool(others) and others[0].text == "serve"
    models, unplaced = (others[1:2], others[2:]) if serves else (others[:0], others)
    does = "its parser refuses it" if grammar.positional else "its parser refuses it, or passes over it"
    notes += (Note(says=f"`{plain(word.text)}` is no option's value: {does}", where=word.where) for word in unplaced)
    if not models or (grammar.positional in by_name and not grammar.over):
        return None
    return Entry(name=grammar.positional, value=value_of(models[0].text), where=models[0].where)


def _files(entries: Sequence[Entry]) -> Iterator[tuple[str, Where]]:
    """The configurations that a command line names: `--config FILE`, or hydra's folder and name."""
    values = {entry.name: entry for entry in entries}
    for name in ("config", "config_file_path"):
        entry = values.get(name)
        if entry is not None and isinstance(entry.value, str) and entry.value.endswith(_NESTED):
            yield entry.value, entry.where
        elif entry is not None and isinstance(entry.value, Unresolved):
            yield str(entry.value), entry.where
    folder, name_entry = values.get("config_path"), values.get("config_name")
    if folder is not None and name_entry is not None and isinstance(folder.value, str):
        name = str(name_entry.value)
        yield f"{folder.value}/{name if name.endswith('.yaml') else name + '.yaml'}", name_entry.where


def _at_files(words: Sequence[Word]) -> Iterator[tuple[str, Where]]:
    """`@ FILE` and `@FILE`, as prime-rl's programs take them."""
    for place, word in enumerate(words):
        if word.text == "@" and place + 1 < len(words):
            yield plain(words[place + 1].text), word.where
        elif word.text.startswith("@") and len(word.text) > 1:
            yield plain(word.text[1:]), word.where


def _beside(name: str, where: Where, path: Path, entries: Mapping[str, Entry], notes: list[Note]) -> tuple[Entry, ...]:
    """The options of a configuration that a command line names; where it is not there, that is said."""
    folders = [path.absolute().parent, *path.absolute().parent.parents][:_FOLDERS_UP]
    candidates = [Path(name)] if name.startswith("/") else [folder / name for folder in folders]
    file = next((candidate for candidate in candidates if paths.is_file(candidate)), None)
    if file is None or file.suffix not in _NESTED:
        says = f"its configuration {name} is not there: what it sets is not known"
        notes.append(Note(says=says, where=where, opens="options"))
        return ()
    source = _configured(file, {key: entry for key, entry in entries.items() if entry.value is not None})
    notes += source.notes
    return source.options
