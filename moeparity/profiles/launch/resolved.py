"""What an engine resolved, as options of its program: those that say more than its defaults do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from moeparity.errors import SpecError
from moeparity.profiles.launch.knowledge import groups_tokens
from moeparity.profiles.launch.options import Option, Program
from moeparity.profiles.launch.reading.resolved import Served
from moeparity.profiles.launch.source import NULL, Entry, Installed, Source, Unresolved
from moeparity.profiles.launch.values import value_of

_FILLED = frozenset({"tokenizer_path", "served_model_name", "page_size", "sampling_defaults", "rank", "local_rank"})
"""What SGLang and Megatron-LM fill in by themselves, and no profile goes by."""


def source(file: Served, program: Program) -> Source:
    """The options of what SGLang or Megatron-LM printed of itself; nothing tells which of them somebody stated."""
    entries = [entry for entry in file.entries("config") if entry.name not in _FILLED]
    version = str(file.fields["version"])
    where = file.where("version")
    release = Installed(says=f"{program.engine} {version}", where=where, package=program.name, version=version)
    return Source(
        path=file.path,
        options=tuple(legible(telling(entries, program), program)),
        command=(program.name,),
        notes=(release,) if version else (),
        resolved_by=f"{program.engine} {version}".strip(),
    )


def telling(entries: Iterable[Entry], program: Program) -> Iterator[Entry]:
    """The entries that say more than the option's default does, and those that name the model."""
    options = {name: option for option in program.options for name in option.names}
    for entry in entries:
        option = options.get(entry.name)
        says_more = groups_tokens(entry.name) if option is None else not _is_default(option, entry)
        if entry.value is not NULL and (says_more or entry.name in program.model):
            yield entry


def _is_default(option: Option, entry: Entry) -> bool:
    try:
        value = value_of(option, entry)
    except SpecError:
        return False
    return not isinstance(value, Unresolved) and option.implies(value) == option.implies(option.default)


def legible(entries: Iterable[Entry], program: Program) -> Iterator[Entry]:
    """The entries; one of a value that the options read here do not have is not resolved."""
    options = {name: option for option in program.options for name in option.names}
    for entry in entries:
        option = options.get(entry.name)
        try:
            if option is not None and entry.value is not NULL:
                value_of(option, entry)
        except SpecError:
            yield replace(entry, value=Unresolved(str(entry.value)))
        else:
            yield entry
