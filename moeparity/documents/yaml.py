"""Strict YAML: 1.2 scalars, no repeated keys, no merge keys, bounded anchors, and the line of every mapping kept.

PyYAML reads YAML 1.1, where `1e-6` is a string, `no` is false and of a repeated key the last silently wins. In a tool
about numerics each of these would be a wrong verdict, so only PyYAML's composer is used and the rest is done here.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from moeparity import paths
from moeparity.errors import SpecError, Where, shown

MAX_NODES = 50_000
"""Nodes a document may hold with every alias expanded; the largest graph shipped has about 1,000."""
MAX_DEPTH = 50
"""Levels of nesting; the deepest graph shipped has 8."""
MAX_INT = 2**63

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
    """A YAML mapping that remembers its file, the line it starts on and the line of each key; `key_paths` has the files
    of keys that were taken over from another one.
    """

    path: Path = Path()
    line: int = 0

    def __init__(self, *pairs: Any) -> None:
        super().__init__(*pairs)
        self.key_lines: dict[str, int] = {}
        self.key_paths: dict[str, Path] = {}

    def where(self, key: str) -> Where:
        """The file and line of a key."""
        return Where(self.key_paths.get(key, self.path), self.key_lines.get(key, self.line))


def load(path: Path) -> Mapping:
    """The mapping at the root of a YAML file. Raises SpecError with file and line."""
    return parsed(path, text_of(path))


def documents(path: Path) -> list[Mapping]:
    """The mappings of a YAML file of several documents, separated by `---`. Merge keys (`<<`, YAML 1.1) are followed,
    since other programs' manifests often use them. Raises SpecError with file and line.
    """
    text = text_of(path)
    starts = [match.start() for match in re.finditer(r"^---[ \t]*(#.*)?$", text, re.MULTILINE)]
    edges = [0, *starts, len(text)] if starts else [0, len(text)]
    parts = [(text.count("\n", 0, start), text[start:end].removeprefix("---")) for start, end in pairwise(edges)]
    filled = [(lines, part) for lines, part in parts if re.search(r"^\s*[^#\s]", part, re.MULTILINE)]
    # Empty lines are put before a document, so that line numbers are those of the whole file.
    return [parsed(path, "\n" * lines + part, merges=True) for lines, part in filled or parts[:1]]


def scalar(text: str, where: Where) -> Any:
    """One value from a command line, read as in a file: `1e-6` is a number, `no` a word. Raises SpecError for anything
    else.
    """
    try:
        node = _composed(text)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        node = None
    if not isinstance(node, yaml.ScalarNode):
        raise SpecError(f"{where}: {shown(text)} is not one value; expected a word, a number, true, false or null.")
    return _Builder(where.path, lines=False).build(node)


# Cached, since every bind reads its profile, even for a small forward pass.
@lru_cache(maxsize=256)
def parsed(path: Path, text: str, *, merges: bool = False) -> Mapping:
    """The mapping at the root of a file's text, with merge keys followed or refused. Raises SpecError with file and
    line.
    """
    try:
        root = _composed(text)
    except yaml.reader.ReaderError as error:
        where = Where(path, text.count("\n", 0, error.position) + 1)
        raise SpecError(f"{where}: character U+{error.character:04X} may not stand in YAML. Remove it.") from None
    except yaml.MarkedYAMLError as error:
        raise SpecError(_syntax_message(path, text.splitlines(), error)) from None
    except RecursionError:
        raise SpecError(f"{Where(path)}: nested too deeply; at most {MAX_DEPTH} levels are read.") from None
    except (ValueError, OverflowError):
        # PyYAML raises this for a number out of range in an escape like "\UFFFFFFFF" or in a %YAML directive.
        raise SpecError(f"{Where(path)}: not YAML: an escape or a directive holds an impossible number.") from None
    if not isinstance(root, yaml.MappingNode):
        content = {yaml.SequenceNode: "a list", yaml.ScalarNode: "one value"}.get(type(root), "nothing")
        raise SpecError(f"{Where(path, 1)}: it holds {content}; expected `key: value` pairs. Is it the right file?")
    data = _Builder(path, merges=merges).build(root)
    assert isinstance(data, Mapping)
    return data


_READ_OTHERWISE = re.compile("[\t?\ufeff]")
"""Characters for which the text is left to PyYAML: libyaml accepts tabs and `? ` where PyYAML does not, and counts
columns differently after a byte order mark.
"""

if yaml.__with_libyaml__:

    class _ByLibyaml(Composer, yaml.CSafeLoader):
        """libyaml's scanner and parser with PyYAML's composer: written in Python, that stops in time where a file is
        nested too deeply.
        """

        def __init__(self, text: str) -> None:
            Composer.__init__(self)
            yaml.CSafeLoader.__init__(self, text)


def _composed(text: str) -> yaml.Node | None:
    """The node at the root of a document; None for an empty one. Raises what PyYAML raises.

    Text that both read alike is read by libyaml, in a fraction of the time of PyYAML's own scanner. Where libyaml finds
    a mistake PyYAML reads the text again, since error messages are based on PyYAML's texts and positions.
    """
    if yaml.__with_libyaml__ and not _READ_OTHERWISE.search(text):
        with suppress(yaml.YAMLError, ValueError, OverflowError):
            return yaml.compose(text, Loader=_ByLibyaml)
    return yaml.compose(text, Loader=yaml.SafeLoader)


def text_of(path: Path) -> str:
    """The text of a file. Raises SpecError where it cannot be read, or is not UTF-8."""
    try:
        raw = paths.contents(path, "YAML file")
    except OSError as error:
        raise SpecError(f"{Where(path)}: cannot be read: {error.strerror}. Check the path.") from None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = Where(path, raw.count(b"\n", 0, error.start) + 1)
        raise SpecError(
            f"{where}: byte 0x{raw[error.start]:02x} is not UTF-8. Is this a YAML file? Then save it as UTF-8."
        ) from None


class _Builder:
    """Turns composed nodes into plain data, counting nodes with aliases expanded.

    lines: whether messages name lines. merges: whether `<<` takes over the keys of the mapping (or mappings) it is
    given; keys beside it win.
    """

    def __init__(self, path: Path, *, lines: bool = True, merges: bool = False) -> None:
        self.path, self.lines, self.merges = path, lines, merges
        self.nodes = 0

    def build(self, node: yaml.Node, depth: int = 1) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise SpecError(
                f"{self._where(node)}: more than {MAX_NODES} values once every alias (`*name`) is replaced by what it "
                "stands for. Write the file without aliases."
            )
        if depth > MAX_DEPTH:
            raise SpecError(
                f"{self._where(node)}: nested deeper than {MAX_DEPTH} levels. "
                "Does an alias stand inside its own anchor?"
            )
        if node.tag not in _PLAIN_TAGS:
            raise SpecError(f"{self._where(node)}: tag {_shown_tag(node.tag)} is not read. Remove it.")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, depth + 1) for item in node.value]
        return self._mapping(node, depth)

    def _mapping(self, node: yaml.Node, depth: int) -> Mapping:
        result = Mapping()
        result.path, result.line = self.path, node.start_mark.line + 1
        merged: list[Mapping] = []
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                raise SpecError(
                    f"{self._where(key_node)}: a key is a list or a mapping; expected a word. "
                    'Quote selectors that hold brackets: "layers[*].moe".'
                )
            if key == "<<" and self.merges:
                merged += self._merged(key_node, value_node, depth)
                continue
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
            self._refuse_unprintable(key_node)
            result[key] = self.build(value_node, depth + 1)
        for merged_mapping in merged:
            for key in (key for key in merged_mapping if key not in result):
                result[key], result.key_lines[key] = merged_mapping[key], merged_mapping.key_lines[key]
        return result

    def _merged(self, key_node: yaml.Node, node: yaml.Node, depth: int) -> list[Mapping]:
        """The mappings that a merge key names, one or several; of several with the same key the first wins."""
        value = self.build(node, depth + 1)
        mappings = value if isinstance(value, list) else [value]
        if not all(isinstance(mapping, Mapping) for mapping in mappings):
            raise SpecError(
                f"{self._where(key_node)}: `<<` is given what is no mapping. Give it one, or a list of them."
            )
        return mappings

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        self._refuse_unprintable(node)
        if node.style:
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text) or _OCTAL_HEX.fullmatch(text):
            return self._integer(node)
        return float(text) if _FLOAT.fullmatch(text) else text

    def _integer(self, node: yaml.ScalarNode) -> int:
        text: str = node.value
        # 30 characters hold every 64-bit number, and Python refuses to read numbers of thousands of digits.
        value = int(text, 0 if _OCTAL_HEX.fullmatch(text) else 10) if len(text) <= 30 else MAX_INT
        if abs(value) >= MAX_INT:
            raise SpecError(f"{self._where(node)}: {text[:30]} is too large a number; at most 64 bits are read.")
        return value

    def _refuse_unprintable(self, node: yaml.ScalarNode) -> None:
        """Refuse text with control characters or halves of surrogate pairs (from escapes): they are valid in no path
        and on no terminal.
        """
        bad = _UNPRINTABLE.search(node.value)
        if bad:
            raise SpecError(f"{self._where(node)}: a text holds the character U+{ord(bad[0]):04X}. Remove it.")

    def _where(self, node: yaml.Node) -> Where:
        return Where(self.path, node.start_mark.line + 1 if self.lines else None)


_PLAIN_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value", "seq", "map")
)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_SELECTOR = re.compile(r"(?:[\w.*]+\[[^\]]*\]|\[[\d*:,-]+\]\.)[^\s,}]*")
_ALIAS = re.compile(r"\*[^\s,}\]]*")
_SHOWN = 120
"""The most characters of a line that a message shows."""


_PROBLEMS = {
    "found character '\\t'": "a tab where only spaces may stand",
    "mapping values are not allowed": "a second `: ` in one line; quote a value that holds one",
    "found another document": "`---` begins a second document; a file holds one",
}
"""PyYAML's words -> what to do."""


def _shown_tag(tag: str) -> str:
    """`!!python/object` for `tag:yaml.org,2002:python/object`: as it stands in the file."""
    return tag.replace("tag:yaml.org,2002:", "!!")


def _near(line: str, column: int) -> str:
    """The part of a line around a column that a message shows; a line may be a megabyte long."""
    start = max(0, column - _SHOWN // 2)
    return line[start : start + _SHOWN].strip()


def _syntax_message(path: Path, lines: list[str], error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return f"{Where(path)}: not YAML: {error.problem}."
    where = Where(path, mark.line + 1)
    line = _near(lines[mark.line], mark.column) if mark.line < len(lines) else ""
    if selector := _SELECTOR.search(line):
        return f'{where}: a selector with brackets must be quoted: {line!r}. Write "{selector[0].rstrip(":")}".'
    if "alias" in f"{error.context} {error.problem}":
        alias = _ALIAS.search(line)
        example = alias[0].rstrip(":") if alias else "*.norm"
        return f'{where}: `*` starts an alias in YAML: {line!r}. Quote selectors: "{example}".'
    since, problem = error.context_mark, str(error.problem)
    if since is not None and "stream" in problem:
        at = min(since.line, len(lines) - 1)
        return f"{Where(path, at + 1)}: not YAML: what begins here is not closed: {_near(lines[at], 0)!r}."
    for words, advice in _PROBLEMS.items():
        if words in problem:
            problem = advice
    began = f" (in what began on line {since.line + 1})" if since and since.line != mark.line else ""
    return f"{where}: not YAML: {problem}{began}: {line!r}."
