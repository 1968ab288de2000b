"""Strict YAML: 1.2 scalars, no repeated keys, no merge keys, bounded anchors, and the line of every mapping kept.

PyYAML reads YAML 1.1, where `1e-6` is a string, `no` is false and a repeated key silently wins. In a tool about
numerics each of these is a wrong verdict, so its composer is used and everything above it is ours.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from moeparity.errors import SpecError, Where

MAX_BYTES = 1_000_000
MAX_NODES = 50_000
"""Nodes a document may hold with every alias expanded; the largest graph shipped has about 1,000."""

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


class Mapping(dict[str, Any]):
    """A YAML mapping that remembers the line it starts on and the line of each key."""

    line: int
    key_lines: dict[str, int]


def load(path: Path) -> Mapping:
    """The mapping at the root of a YAML file. Raises SpecError with file and line."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{Where(path)}: cannot be read: {error.strerror}. Check the path.") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{Where(path)}: {len(raw)} bytes, at most {MAX_BYTES} are read. Is this the right file?")
    try:
        root = yaml.compose(raw.decode("utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SpecError(f"{Where(path)}: byte {error.start} is not UTF-8. Save the file as UTF-8.") from None
    except yaml.YAMLError as error:
        raise SpecError(_syntax_message(path, error)) from None
    if not isinstance(root, yaml.MappingNode):
        raise SpecError(f"{Where(path, 1)}: the file holds no mapping; expected `kind: graph|profile|recipe` and more.")
    data = _Builder(path).build(root)
    assert isinstance(data, Mapping)
    return data


class _Builder:
    """Turns composed nodes into plain data, counting nodes with aliases expanded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes = 0

    def build(self, node: yaml.Node) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise SpecError(
                f"{self._where(node)}: more than {MAX_NODES} values with all aliases expanded. Write it without `*`."
            )
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item) for item in node.value]
        return self._mapping(node)

    def _mapping(self, node: yaml.Node) -> Mapping:
        result = Mapping()
        result.line, result.key_lines = node.start_mark.line + 1, {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise SpecError(f"{self._where(key_node)}: a key must be a word. Quote it if it starts with `[`.")
            if key == "<<":
                raise SpecError(
                    f"{self._where(key_node)}: merge keys (`<<`) are not part of YAML 1.2. Write the keys out."
                )
            if key in result:
                raise SpecError(
                    f"{self._where(key_node)}: key {key!r} is given twice, first on line {result.key_lines[key]}. "
                    "Keep one."
                )
            result.key_lines[key] = key_node.start_mark.line + 1
            result[key] = self.build(value_node)
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = node.value
        if node.tag not in _PLAIN_TAGS:
            raise SpecError(f"{self._where(node)}: tag {node.tag!r} is not read. Remove it.")
        if node.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _OCTAL_HEX.fullmatch(text):
            return int(text, 0)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _where(self, node: yaml.Node) -> Where:
        return Where(self.path, node.start_mark.line + 1)


_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")
)


def _syntax_message(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = Where(path, mark.line + 1 if mark else None)
    problem = getattr(error, "problem", None) or str(error)
    line = _line(path, mark.line) if mark else ""
    if re.search(r"(:\s+|-\s+|^\s*)\*\S*", line) or "alias" in problem:
        return f'{where}: `*` starts an alias in YAML: {line.strip()!r}. Quote selectors: "layers[*].moe".'
    if re.search(r"(^|[\s{,])[\w.]+\[[^\]]*\]?[^:]*:", line) or re.search(r":\s*[\[{]", line):
        return f'{where}: {problem}: {line.strip()!r}. Quote selectors that hold brackets: "layers[*].moe".'
    return f"{where}: not YAML: {problem}: {line.strip()!r}."


def _line(path: Path, index: int) -> str:
    lines = path.read_text("utf-8", errors="replace").splitlines()
    return lines[index] if index < len(lines) else ""
