"""Syntax that bash reads and tree-sitter's grammar does not. The parser is shown other text in its place: text of the
same meaning, or text of the same length, and then the hidden part is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

_LONGEST_SUM = 500
"""Letters of one sum."""
_LONGEST_WORD = 5_000
"""Letters of one default."""
_COMMENT = re.compile(r"`#[^`\n]*`")
_SUM = re.compile(r"\$\(\(")
_DEFAULT = re.compile(r"\$\{\w+:?[-=+]")
_LOOP = re.compile(r"\bfor\s*\(\(([^\n]*?)\)\)\s*(?:;|\n|do\b|\{)")
_ROUND = "i=0;i<1;i++"
_LAST_BACKSLASH = re.compile(r"\\\n?\s*\Z")


def without_comments(text: str) -> str:
    """A script without its comments in backquotes, which stand behind words of a line that goes on."""
    return _COMMENT.sub(lambda comment: " " * len(comment[0]) if _is_plain(text, comment.start()) else comment[0], text)


def _is_plain(text: str, place: int) -> bool:
    """Whether a place is in no quotation that its line opens."""
    before = text[text.rfind("\n", 0, place) + 1 : place]
    return before.count("'") % 2 == 0 and before.count('"') % 2 == 0


def with_braces(text: str, root: Node) -> str:
    """A script with `${N}` for every `$N` that the parser has taken for a `$` and a word of its own, as behind `]*`."""
    written = text.encode()
    for start in sorted(_dollars(root), reverse=True):
        name = re.match(rb"[A-Za-z_]\w*", written[start + 1 :])
        if name:
            written = b"".join((written[:start], b"${", name[0], b"}", written[start + 1 + len(name[0]) :]))
    return written.decode()


def _dollars(root: Node) -> Iterator[int]:
    """Where a `$` stands that is no part of an expansion."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type == "$" and node.parent is not None and node.parent.type in ("concatenation", "command", "array"):
            yield node.start_byte
        waiting += node.children


def hidden_parts(text: str) -> tuple[str, dict[int, str]]:
    """A script with `x` in place of sums and of defaults in quotes, which are kept by the byte they start on."""
    text = _LAST_BACKSLASH.sub(lambda end: " " * (len(end[0]) - 1) + "\n", text)
    text = _LOOP.sub(_one_round, text)
    hidden: dict[int, str] = {}
    parts, end = [], 0
    for start, inner, close in sorted([*_sums(text), *_defaults(text)]):
        if start < end or not text[inner:close].isascii():
            continue
        parts += [text[end:inner], "x" * (close - inner)]
        closing = 2 if text[start + 1] == "(" else 1
        hidden[len(text[:start].encode())] = text[start : close + closing]
        end = close
    return "".join([*parts, text[end:]]), hidden


def _one_round(loop: re.Match[str]) -> str:
    """The head of a loop whose rounds nobody counts."""
    inner = loop[1]
    return loop[0].replace(inner, _ROUND.ljust(len(inner))) if len(inner) >= len(_ROUND) else loop[0]


def _sums(text: str) -> Iterator[tuple[int, int, int]]:
    """Where each `$((...))` starts, and from where to where its inside goes."""
    for match in _SUM.finditer(text):
        depth, close = 2, match.end()
        while depth and close < min(len(text), match.end() + _LONGEST_SUM):
            depth += {"(": 1, ")": -1}.get(text[close], 0)
            close += 1
        inner = text[match.end() : close - 2]
        if not depth and inner and "\n" not in inner and text[close - 2 : close] == "))":
            yield match.start(), match.end(), close - 2


def _defaults(text: str) -> Iterator[tuple[int, int, int]]:
    """The same of each `${NAME:-word}` between double quotes, where the word is no plain one."""
    for match in _DEFAULT.finditer(text):
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if len(re.findall(r'(?<!\\)"', line)) % 2 == 0:
            continue
        close, depth = match.end(), 0
        while close < min(len(text), match.end() + _LONGEST_WORD) and (text[close] != "}" or depth):
            depth += text.startswith("${", close) - (text[close] == "}")
            close += 2 if text[close] == "\\" else 1
        word = text[match.end() : close]
        if close < len(text) and text[close] == "}" and "\n" not in word and re.search(r"[\[\]{}'\"\\]", word):
            yield match.start(), match.end(), close
