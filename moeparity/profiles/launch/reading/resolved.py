"""Files of what an engine resolved by itself, in place of a launch file: as `moeparity.hooks` writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeparity import paths
from moeparity.errors import SpecError, Where, listed, shown
from moeparity.profiles.launch.reading.nested import text_of
from moeparity.profiles.launch.source import NULL, Entry

FORMAT = "moeparity.served/1"
_OF_SGLANG = {"model_path", "version", "internal_states"}
"""Keys of what SGLang answers at `/server_info`."""
_KEYS = ("engine", "version", "config", "defaults", "stated", "environment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One such file: its fields, and by dotted name the line of each key."""

    path: Path
    fields: Mapping[str, Any]
    lines: Mapping[str, int | None]

    def where(self, name: str) -> Where:
        """The line of a key."""
        return Where(self.path, self.lines.get(name))

    def entries(self, name: str) -> Iterator[Entry]:
        """The keys of a mapping of the file, by their own names; none where it holds no such mapping."""
        mapping: Any = self.fields
        for part in name.split("."):
            mapping = mapping.get(part) if isinstance(mapping, Mapping) else None
        for key, value in mapping.items() if isinstance(mapping, Mapping) else ():
            yield Entry(name=key, value=NULL if value is None else value, where=self.where(f"{name}.{key}"))


def served(path: Path) -> Served | None:
    """What an engine resolved; None where the file is another one. Raises SpecError for one that is not whole."""
    if path.suffix != ".json" or not paths.present(path):
        return None
    text = text_of(path)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(fields, dict) and fields.keys() >= _OF_SGLANG:
        lines = {f"config.{name}": number for name, number in _lines(text)} | {"version": None}
        fields = {"engine": "sglang", "version": fields["version"], "config": fields}
        return Served(path=path, fields=fields, lines=lines)
    version = fields.get("format") if isinstance(fields, dict) else None
    if not str(version).startswith(f"{FORMAT.partition('/')[0]}/"):
        return None
    if version != FORMAT:
        raise SpecError(f"{Where(path)}: format is {shown(version)}; expected {FORMAT!r}. Take the moeparity of it.")
    missing = [key for key in _KEYS if key not in fields]
    if missing:
        hint = " It is a worker's: give the file of the engine, which lies beside it." if "rank" in fields else ""
        raise SpecError(f"{Where(path)}: has no {listed(missing)}; expected what an engine resolved.{hint}")
    return Served(path=path, fields=fields, lines=dict(_lines(text)))


def workers(file: Served) -> list[Served]:
    """The files of the engine's workers, which lie beside it; those that cannot be read are left out."""
    beside = []
    for path in sorted(file.path.parent.glob(f"{file.path.stem}.worker-*.json")):
        text = text_of(path)
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(fields, dict):
            beside.append(Served(path=path, fields=fields, lines=dict(_lines(text))))
    return beside


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """The line of every key that begins one, by its dotted name; how far it is indented says below what it is."""
    above: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        key = re.match(r'(\s*)"((?:[^"\\]|\\.)*)"\s*:', line)
        if key:
            above = [pair for pair in above if pair[0] < len(key[1])]
            above.append((len(key[1]), key[2]))
            yield ".".join(name for _, name in above), number
