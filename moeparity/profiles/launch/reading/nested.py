"""Nested configurations: YAML with `defaults:` chains and `${a.b}`, JSON, TOML, as dotted options with their places."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from moeparity import paths
from moeparity.documents import yaml
from moeparity.errors import SpecError, Where, shown
from moeparity.profiles.launch.source import NULL, Entry, Note, Unresolved

_MOST_FILES = 50
_DEEPEST = 50
_INTERPOLATION = re.compile(r"\$\{")
_REFERENCE = re.compile(r"\$\{\s*([^{}:$\s]+)\s*\}")
_RESOLVER = re.compile(r"\$\{\s*[\w.]+\s*:")
_LONGEST = 5_000
"""Letters that one value may have with its references written out."""
_ALL = 200_000
"""Letters that all of them may have together."""


@dataclass(slots=True)
class _Chain:
    """Files that stand on each other: those that are open, how many were read, what could not be."""

    open: list[Path] = field(default_factory=list)
    read: int = 0
    notes: list[Note] = field(default_factory=list)


def text_of(path: Path) -> str:
    """A file as text. Raises SpecError."""
    try:
        return paths.contents(path, "launch configuration").decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{Where(path)}: is no text. Give a file that holds the command line.") from None
    except OSError as error:
        raise SpecError(f"{Where(path)}: cannot be read: {error.strerror}. Give a launch configuration.") from None


def of_yaml(path: Path, over: Mapping[str, Entry] | None = None) -> tuple[list[Entry], list[Note]]:
    """The options of a YAML file and of all that it stands on; references see what is laid `over` it."""
    chain = _Chain()
    leaves = _file(path, chain)
    lay_over(leaves, over or {})
    return whole(_resolved(leaves)), chain.notes


def of_json(path: Path) -> list[Entry]:
    """The options of a JSON file."""
    try:
        mapping = json.loads(text_of(path))
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{Where(path, getattr(error, 'lineno', None))}: is no JSON: {error}. Correct it.") from None
    if not isinstance(mapping, dict):
        raise SpecError(f"{Where(path)}: holds {shown(mapping)}; expected a mapping of options.")
    return whole(dict(leaves_of(mapping, Where(path))))


def of_toml(path: Path) -> list[Entry]:
    """The options of a TOML file."""
    text = text_of(path)
    try:
        mapping = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        line = re.search(r"at line (\d+)", str(error))
        where = Where(path, int(line[1]) if line else None)
        raise SpecError(f"{where}: is no TOML: {error}. Correct it.") from None
    lines = _toml_lines(text)
    entries = whole(dict(leaves_of(mapping, Where(path))))
    return [replace(entry, where=Where(path, lines.get(entry.name))) for entry in entries]


def _toml_lines(text: str) -> dict[str, int]:
    """The line of every plain key; keys inside of inline tables and texts of several lines have none."""
    lines, table = dict[str, int](), ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\[?\s*([\w.\"' -]+?)\s*\]", line):
            table = header[1].replace('"', "").replace(" ", "") + "."
            lines.setdefault(table[:-1].replace("-", "_"), number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(f"{table}{key[1]}".replace("-", "_"), number)
    return lines


def leaves_of(
    mapping: Mapping[str, Any], where: Where, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Entry]]:
    """Nested keys, joined by dots, except those that hold further keys. An empty mapping is a leaf. `null` counts as
    not set, and so does OmegaConf's `???`, which something else must fill.
    """
    if depth > _DEEPEST:
        raise SpecError(f"{where}: nested deeper than {_DEEPEST} levels. Write it flatter.")
    lines = getattr(mapping, "key_lines", {})
    for key, value in mapping.items():
        at = Where(where.path, lines.get(key, where.line))
        name = f"{prefix}{str(key).replace('-', '_')}"
        if isinstance(value, Mapping) and value:
            yield from leaves_of(value, at, f"{name}.", depth + 1)
        else:
            nothing = NULL if value is None else Unresolved("???") if value == "???" else value
            yield name, Entry(name=name, value=nothing, where=at)


def whole(leaves: Mapping[str, Entry]) -> list[Entry]:
    """A mapping is told whole and key by key: every leaf, and before it each mapping that holds it."""
    entries: dict[str, Entry] = {}
    for name, entry in leaves.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            above = ".".join(parts[:end])
            holder = entries.setdefault(above, Entry(name=above, value={}, where=entry.where))
            if isinstance(holder.value, dict):
                inner = holder.value
                for part in parts[end:-1]:
                    inner = inner.setdefault(part, {})
                    if not isinstance(inner, dict):
                        break
                else:
                    inner[parts[-1]] = None if entry.value is NULL else entry.value
        entries[name] = entry
    return list(entries.values())


def _file(path: Path, chain: _Chain) -> dict[str, Entry]:
    if path.resolve() in chain.open:
        raise SpecError(f"{Where(path)}: stands on itself by `defaults:`. Remove one of them.")
    chain.read += 1
    if chain.read > _MOST_FILES:
        raise SpecError(f"{Where(path)}: stands on more than {_MOST_FILES} files. Give the file that they come to.")
    mapping = yaml.parsed(path, yaml.text_of(path), merges=True)
    chain.open.append(path.resolve())
    entries = dict(mapping)
    bases = entries.pop("defaults", None)
    where = Where(path, mapping.key_lines.get("defaults"))
    # A copy that keeps the lines of its keys.
    rest = yaml.Mapping(entries)
    rest.line, rest.key_lines = mapping.line, mapping.key_lines
    leaves: dict[str, Entry] = {}
    listed = [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else []
    if "_self_" not in listed:
        listed = [*listed, "_self_"]
    for base in listed:
        if base == "_self_":
            lay_over(leaves, dict(leaves_of(rest, Where(path))))
        else:
            lay_over(leaves, _base(base, path, where, chain, listed))
    chain.open.pop()
    return leaves


def lay_over(leaves: dict[str, Entry], entries: Mapping[str, Entry]) -> None:
    """Lay a file's keys over those it stands on; a key marked `_override_` takes nothing over from there."""
    for name in [name for name in entries if name.endswith("._override_")]:
        above = name.removesuffix("_override_")
        for key in [key for key in leaves if key.startswith(above)]:
            del leaves[key]
    for name, entry in entries.items():
        if name.endswith("._override_"):
            continue
        for key in [key for key in leaves if key.startswith(f"{name}.")]:
            del leaves[key]
        parts = name.split(".")
        for key in (".".join(parts[:end]) for end in range(1, len(parts))):
            # A bare flag of that name is an option beside.
            if key in leaves and leaves[key].value is not None:
                del leaves[key]
        leaves[name] = entry


def _base(base: Any, path: Path, where: Where, chain: _Chain, listed: list[Any]) -> dict[str, Entry]:
    """One entry of `defaults:`: a path, or hydra's name of a file, or `group@package: name`."""
    if isinstance(base, str):
        group, package, name = "", "", base
    elif isinstance(base, dict) and len(base) == 1:
        key, name = next(iter(base.items()))
        group, _, package = str(key).removeprefix("override ").removeprefix("optional ").partition("@")
        package = package or group.replace("/", ".")
    else:
        raise SpecError(f"{where}: an entry of `defaults:` is {shown(base)}; expected a file or `group: name`.")
    if name is None:
        return {}
    name = _resolved_name(str(name), listed)
    file = path.parent / group / (name if name.endswith((".yaml", ".yml")) else f"{name}.yaml")
    if not paths.is_file(file):
        says = f"its base {f'{group}/' if group else ''}{name} is not there: what it sets is not known"
        chain.notes.append(Note(says=says, where=where, opens="options"))
        return {}
    leaves = _file(file, chain)
    prefix = "" if package in ("", "_global_", "_here_") else f"{package}."
    return {f"{prefix}{key}": replace(entry, name=f"{prefix}{key}") for key, entry in leaves.items()}


def _resolved_name(name: str, listed: list[Any]) -> str:
    """A file's name in which another entry of the list is spelled `${entry}`."""
    choices = {key: value for item in listed if isinstance(item, dict) for key, value in item.items()}
    return re.sub(r"\$\{(\w+)\}", lambda match: str(choices.get(match[1], match[0])), name)


def _resolved(leaves: Mapping[str, Entry]) -> dict[str, Entry]:
    """The leaves with every `${a.b}` replaced by what it names; one that asks for more than a name is unresolved."""
    if not any(_asks(entry.value) for entry in leaves.values()):
        return dict(leaves)
    from omegaconf import OmegaConf

    nested: dict[str, Any] = {entry.name: entry.value for entry in whole(leaves) if "." not in entry.name}
    try:
        tree = OmegaConf.create(_guarded(nested))
    except Exception:  # noqa: BLE001  # keys that omegaconf does not take: nothing is resolved then
        tree = OmegaConf.create({})
    sizes = Sizes(leaves)
    return {
        name: replace(entry, value=_value(entry.value, name, tree, fits=sizes.allow(name)))
        if _asks(entry.value)
        else entry
        for name, entry in leaves.items()
    }


def _asks(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_asks, value))
    return isinstance(value, str) and bool(_INTERPOLATION.search(value))


def _guarded(value: Any) -> Any:
    """The same without what a resolver would be asked for: the environment is none of the file's business."""
    if isinstance(value, dict):
        return {str(key): _guarded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_guarded(item) for item in value]
    if value is NULL:
        return None
    if isinstance(value, Unresolved):
        return "\0" + value.text[:_LONGEST].replace("${", "$\0{")
    if isinstance(value, str) and (len(value) > _LONGEST or not _only_names(value)):
        return "\0" + value[:_LONGEST].replace("${", "$\0{")
    return value


def _only_names(text: str) -> bool:
    """Whether every `${` starts a plain reference to another key, no resolver and nothing nested."""
    return not _RESOLVER.search(text) and len(_REFERENCE.findall(text)) == text.count("${")


def _value(value: Any, name: str, tree: Any, *, fits: bool) -> Any:
    if isinstance(value, list) or not fits:
        return Unresolved(str(value)[:200])
    from omegaconf import Container, OmegaConf

    try:
        resolved = OmegaConf.select(tree, name, throw_on_resolution_failure=True)
        resolved = OmegaConf.to_container(resolved) if isinstance(resolved, Container) else resolved
    except Exception:  # noqa: BLE001  # whatever omegaconf makes of a stranger's text, it is not resolved
        return Unresolved(value)
    if resolved is None:
        return NULL
    return Unresolved(value) if "\\x00" in repr(resolved) else resolved


class Sizes:
    """How many letters values would have with every reference written out, so that none grows without bound."""

    def __init__(self, leaves: Mapping[str, Entry]) -> None:
        self.leaves, self.sizes, self.room = leaves, dict[str, int](), _ALL

    def allow(self, name: str) -> bool:
        """Whether a key may be written out; what it takes is no longer there for others."""
        size = self.of(name)
        self.room -= size if size <= _LONGEST else 0
        return size <= _LONGEST and self.room >= 0

    def of(self, name: str, depth: int = 0) -> int:
        """The letters of a key, or of all keys inside it; beyond every limit where it refers to itself."""
        if name not in self.sizes:
            self.sizes[name] = _LONGEST + 1
            inside = [key for key in self.leaves if key.startswith(f"{name}.")] if name not in self.leaves else [name]
            self.sizes[name] = sum(self._leaf(key, depth) for key in inside) if depth < _DEEPEST else _LONGEST + 1
        return self.sizes[name]

    def _leaf(self, name: str, depth: int) -> int:
        text = str(self.leaves[name].value)
        if "${" not in text:
            return len(text)
        references = _REFERENCE.findall(text) if _only_names(text) else []
        return len(text) + sum(self.of(_absolute(reference, name), depth + 1) for reference in references)


def _absolute(reference: str, name: str) -> str:
    """`.a` is beside the key, `..a` one level above."""
    dots = len(reference) - len(reference.lstrip("."))
    if not dots:
        return reference.replace("-", "_")
    return ".".join([*name.split(".")[:-dots], reference[dots:]]).replace("-", "_")
