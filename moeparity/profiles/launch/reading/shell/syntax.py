"""A script as a tree: tree-sitter's grammar of bash, what it refuses, and the limits on what is walked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from moeparity.errors import SpecError, Where, shown
from moeparity.profiles.launch.reading.shell.hiding import hidden_parts, with_braces, without_comments

STEPS = 200_000
"""Statements and expansions that are walked in one file, with all that it sources."""
DEPTH = 60
"""Levels of statements, functions and expansions inside each other."""
LETTERS = 4_000_000
"""Letters that all expansions of one file may make together."""
_LONGEST_LINE = 60
"""Letters of what people are shown of a statement."""


class Budget:
    """What is left of the limits; raises SpecError where a script goes beyond them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps, self.letters, self.depth = STEPS, LETTERS, 0

    def step(self, where: Where, letters: int = 0) -> None:
        """One more step, which made so many letters."""
        self.steps -= 1
        self.letters -= letters
        if self.steps < 0 or self.letters < 0:
            limit = f"{STEPS:,} steps" if self.steps < 0 else f"{LETTERS:,} letters"
            raise SpecError(f"{where}: the script takes more than {limit} to follow. Give the command line it ends in.")

    def enter(self, where: Where) -> None:
        """One level deeper."""
        self.depth += 1
        if self.depth > DEPTH:
            raise SpecError(f"{where}: nested deeper than {DEPTH} levels. Give the command line it ends in.")

    def leave(self) -> None:
        """One level back."""
        self.depth -= 1


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def parsed(text: str, path: Path, line: int = 1) -> tuple[Node, dict[int, str]]:
    """The tree of a script that starts on that line of a file, and what was hidden from the parser, by the byte at
    which it starts. Raises SpecError if the text is no bash.
    """
    at = Where(path, line)
    if "\0" in text:
        raise SpecError(f"{at}: is no command line: it holds a NUL character. Give a text file.")
    text, hidden = without_comments(text), dict[int, str]()
    root = _parser().parse(text.encode()).root_node
    braced = with_braces(text, root)
    if braced != text:
        text, root = braced, _parser().parse(braced.encode()).root_node
    if root.has_error:
        shown_text, hidden = hidden_parts(text)
        root = _parser().parse(shown_text.encode()).root_node
    if root.has_error:
        broken = next(_errors(root), root)
        where = Where(path, line + broken.start_point[0])
        lines = text.splitlines()
        row = lines[broken.start_point[0]] if broken.start_point[0] < len(lines) else ""
        raise SpecError(
            f"{where}: {shown(row.strip())} is no command line that can be read here: a quotation or a bracket is not "
            "closed, or stands where bash has none. Correct it, or give the command line that is meant."
        )
    return root, hidden


def _errors(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            yield node
        waiting += reversed([child for child in node.children if child.has_error or child.is_missing])


def text_of(node: Node) -> str:
    """What stands in the file."""
    return (node.text or b"").decode("utf-8", "replace")


def one_line(node: Node) -> str:
    """The start of it, on one line, for people."""
    text = " ".join(text_of(node).split())
    return text if len(text) <= _LONGEST_LINE else f"{text[: _LONGEST_LINE - 3]}..."
