"""`extends:` of graph files: what a file says is laid over what the file that it extends says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moeparity.documents import yaml
from moeparity.errors import SpecError, display_path, shown

_WHOLE = {"op", "sum", "product", "quotient", "portion", "is"}
"""Keys of mappings that stand for themselves: a node with its op, arithmetic."""


def extended(data: yaml.Mapping, base: yaml.Mapping) -> yaml.Mapping:
    """`data` laid over `base`; each key keeps the file and line that it comes from.

    Mappings are merged key by key; anything else, a node that names its `op` and arithmetic replace what stood there;
    null drops it. A key that only `data` has comes before the next key in `data` that `base` has too, else last. Raises
    SpecError where `base` extends a third file.
    """
    if "extends" in base:
        raise SpecError(
            f"{data.where('extends')}: {display_path(base.path)} extends {shown(base['extends'])} itself, and a graph "
            "is to be read in two files at most. Extend one that stands alone."
        )
    return _merged(data, base)


def _merged(data: yaml.Mapping, base: yaml.Mapping) -> yaml.Mapping:
    merged = yaml.Mapping()
    merged.path, merged.line = data.path, data.line
    for key in _in_order(data, base):
        source = data if key in data else base
        value = source[key]
        if value is None and source is data:
            continue
        if source is data and _merges(value) and isinstance(base.get(key), yaml.Mapping):
            value = _merged(value, base[key])
        merged[key] = value
        merged.key_lines[key], merged.key_paths[key] = source.key_lines[key], source.path
    return merged


def _merges(value: Any) -> bool:
    return isinstance(value, yaml.Mapping) and not _WHOLE & value.keys()


def _in_order(data: Iterable[str], base: Iterable[str]) -> list[str]:
    keys, waiting = list(base), list[str]()
    for key in data:
        if key in keys:
            at = keys.index(key)
            keys[at:at], waiting = waiting, []
        else:
            waiting.append(key)
    return keys + waiting
