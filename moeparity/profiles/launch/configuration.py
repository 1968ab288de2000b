"""One program that a launch file starts: what is stated of its options, and what the others are by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from moeparity.errors import Where
from moeparity.profiles.launch.options import Program
from moeparity.profiles.launch.source import Entry, Source

Values = Mapping[str, tuple[Entry, Any]]
"""By an option's own name: where it stands, and its value."""


class OptionValue(NamedTuple):
    """The value of an option in words, whether it is stated, and where: its line, or whose default it is."""

    text: str
    stated: bool
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """A program in the release that the file starts, with the options that are stated. `checkpoint`: whose model it is
    read for, None: the model that the file names.
    """

    source: Source
    program: Program
    checkpoint: Path | None
    stated: Values

    @property
    def release(self) -> str:
        """The engine and its release: `vLLM 0.18.1`."""
        return f"{self.program.engine} {self.program.version}"

    @property
    def resolved(self) -> Mapping[str, Any]:
        """Every option's value by its own name, the default where none is stated."""
        defaults = {option.name: option.default for option in self.program.options}
        return defaults | {name: value for name, (_, value) in self.stated.items()}

    def value(self, name: str) -> OptionValue:
        """An option of the program. Raises KeyError."""
        text = in_words(name, self.resolved[name])
        if name in self.stated:
            return OptionValue(text, stated=True, where=str(self.stated[name][0].where))
        return OptionValue(text, stated=False, where=f"default of {self.release}")

    def with_value_of(self, name: str, peer: Configuration) -> Configuration:
        """The same with one option as another configuration has it, which must have it too."""
        stated = {key: value for key, value in self.stated.items() if key != name}
        if name in peer.stated:
            stated[name] = peer.stated[name]
        elif in_words(name, peer.resolved[name]) != in_words(name, replace(self, stated=stated).resolved[name]):
            value = peer.resolved[name]
            stated[name] = Entry(name=name, value=value, where=Where(peer.source.path)), value
        return replace(self, stated=stated)


def in_words(name: str, value: Any) -> str:
    """A value as it is compared and shown: a bare flag is true, and so is what is on unless it is switched off."""
    if value == "by default":
        return {"enable": "true", "disable": "false"}.get(name.partition("_")[0], "default")
    return "true" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
