"""`[ ... ]`, `[[ ... ]]`, `test` and `(( ... ))`: true, false, or not to be decided from the file alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tree_sitter import Node

from moeparity.profiles.launch.reading.shell.expand import EXPANSIONS, Expander
from moeparity.profiles.launch.reading.shell.syntax import text_of
from moeparity.profiles.launch.reading.shell_words import is_known

OPERANDS = (
    *("string", "raw_string", "ansi_c_string", "word", "number", "concatenation", "extglob_pattern", "regex"),
    *("variable_name", *EXPANSIONS),
)
"""Nodes that are a word."""
_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda first, second: first == second,
    "-ne": lambda first, second: first != second,
    "-lt": lambda first, second: first < second,
    "-le": lambda first, second: first <= second,
    "-gt": lambda first, second: first > second,
    "-ge": lambda first, second: first >= second,
}
_TEXTS = ("=", "==", "!=")
_LONGEST = 2_000
"""Tokens of one test."""


@dataclass(frozen=True, slots=True)
class Token:
    """An operator as it is written, or an operand with its text; `quoted` operands are no patterns."""

    text: str
    operand: bool = False
    quoted: bool = False


def tested(node: Node, expander: Expander) -> bool | None:
    """What a test comes to; None where it cannot be decided."""
    tokens = list(_tokens(node, expander))
    opening = tokens[0].text if tokens else ""
    inner = tokens[1:-1] if opening in ("[", "[[") else tokens
    return outcome(inner, patterns=opening == "[[")


def _tokens(node: Node, expander: Expander) -> Iterator[Token]:
    if node.type in OPERANDS:
        pattern = node.type in ("extglob_pattern", "regex")
        text = text_of(node) if pattern and "$" not in text_of(node) else expander.text(node)
        yield Token(text, operand=True, quoted=node.type in ("string", "raw_string"))
    elif not node.children:
        yield Token(text_of(node))
    else:
        for child in node.children:
            yield from _tokens(child, expander)


def outcome(tokens: Sequence[Token], *, patterns: bool = False) -> bool | None:
    """What the tokens between the brackets come to."""
    if len(tokens) > _LONGEST:
        return None
    return _Reader(tokens, patterns=patterns).whole()


class _Reader:
    """Reads a test from the left: `||` binds least, then `&&`, then `!`."""

    def __init__(self, tokens: Sequence[Token], *, patterns: bool) -> None:
        self.tokens, self.patterns, self.at = tokens, patterns, 0

    def whole(self) -> bool | None:
        result = self._either(0)
        return result if self.at == len(self.tokens) else None

    def _next(self, offset: int = 0) -> str:
        place = self.at + offset
        return self.tokens[place].text if place < len(self.tokens) else ""

    def _either(self, depth: int) -> bool | None:
        result = self._conjunction(depth)
        while self._next() in ("||", "-o"):
            self.at += 1
            second = self._conjunction(depth)
            result = True if result is True or second is True else (None if result is None or second is None else False)
        return result

    def _conjunction(self, depth: int) -> bool | None:
        result = self._single(depth)
        while self._next() in ("&&", "-a"):
            self.at += 1
            second = self._single(depth)
            result = (
                False if result is False or second is False else (None if result is None or second is None else True)
            )
        return result

    def _single(self, depth: int) -> bool | None:
        if depth > 20 or self.at >= len(self.tokens):
            self.at = len(self.tokens) + 1
            return None
        if self._next() == "!" and self._next(1) not in _TEXTS:
            self.at += 1
            result = self._single(depth + 1)
            return None if result is None else not result
        if self._next() in ("(", "\\("):
            self.at += 1
            result = self._either(depth + 1)
            self.at += 1
            return result
        if self._next(1) in (*_TEXTS, *_NUMBERS, "=~", "<", ">", "-nt", "-ot", "-ef"):
            first, operator, second = self.tokens[self.at], self._next(1), self.tokens[self.at + 2 : self.at + 3]
            self.at += 3
            return self._compared(first, operator, second[0]) if second else None
        if self._next().startswith("-") and self._next(1) not in ("", "&&", "||", "-a", "-o", ")"):
            self.at += 2
            return _single(self.tokens[self.at - 2].text, self.tokens[self.at - 1].text)
        if self._next() in ("-z", "-n") and self._next(1) == "" and self.at + 1 < len(self.tokens):
            self.at += 2
            return self.tokens[self.at - 2].text == "-z"
        self.at += 1
        text = self.tokens[self.at - 1].text
        return bool(text) if is_known(text) else None

    def _compared(self, first: Token, operator: str, second: Token) -> bool | None:
        if not is_known(first.text) or not is_known(second.text):
            return None
        if operator in _NUMBERS:
            numbers = [text.strip() for text in (first.text, second.text)]
            whole = all(number.lstrip("-").isdecimal() and len(number) < 19 for number in numbers)
            return _NUMBERS[operator](int(numbers[0]), int(numbers[1])) if whole else None
        if operator not in _TEXTS:
            return None
        if self.patterns and not second.quoted:
            equal = fnmatch.fnmatchcase(first.text, second.text)
        else:
            equal = first.text == second.text
        return equal == (operator != "!=")


def _single(operator: str, text: str) -> bool | None:
    """`-z` and `-n`; whether a file is there is another machine's business."""
    if operator not in ("-z", "-n") or not is_known(text):
        return None
    return (text == "") == (operator == "-z")
