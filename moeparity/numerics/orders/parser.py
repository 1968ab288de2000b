"""Parses orders such as `threads(1024, vector=8) | fold_hi(32) | fold_hi`; an Order prints itself in the same form."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from moeparity.errors import did_you_mean, listed
from moeparity.numerics.dtypes import FLOAT_NAMES
from moeparity.numerics.orders.types import (
    DTYPES,
    FOLDS,
    FORMS,
    NATIVE,
    AnyTree,
    Level,
    Number,
    Order,
    OrderError,
    Sum,
    children_of,
    leaves_of,
)

_TOKEN = re.compile(r"\s*(?:([A-Za-z_]\w*)|(-?\d+)|(\S)|$)")
_EXCLUSIVE = ("fma", "kahan", "neumaier")
_DEEPEST, _LARGEST = 200, 1 << 20


@lru_cache(maxsize=1024)
def parse(text: str) -> Order:
    """The order that `text` writes. Raises OrderError, which names the character and what was expected there."""
    return _Parser(text).order()


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    at: int
    kind: str


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens: list[_Token] = []
        at = 0
        while True:
            match = _TOKEN.match(text, at)
            assert match is not None
            kind = ("word", "number", "sign", "end")[(match.lastindex or 4) - 1]
            self.tokens.append(_Token(match[match.lastindex] if match.lastindex else "", match.end(), kind))
            at = match.end()
            if kind == "end":
                break
        self.next = 0

    def take(self) -> _Token:
        token = self.tokens[self.next]
        self.next = min(self.next + 1, len(self.tokens) - 1)
        return token

    def accept(self, sign: str) -> bool:
        if self.tokens[self.next].text != sign or self.tokens[self.next].kind == "end":
            return False
        self.next += 1
        return True

    def fail(self, token: _Token, expectation: str, names: Iterable[str] = ()) -> OrderError:
        text = repr(token.text) if token.text else "nothing more"
        start = token.at - len(token.text) + 1
        return OrderError(f"character {start}: {text}; expected {expectation}.{did_you_mean(token.text, names)}")

    def order(self) -> Order:
        levels = [self.level(first=True)]
        while self.accept("|"):
            if not levels[-1].partial:
                hint = "; a fold of parts has a width, `fold_hi(32)`" if levels[-1].name in FOLDS else ""
                raise OrderError(
                    f"{levels[-1].name} leaves one value, so that nothing is left to add for what follows it{hint}."
                )
            levels.append(self.level(first=False))
        token = self.take()
        if token.kind != "end":
            raise self.fail(token, "`|` or the end")
        if levels[-1].partial:
            raise OrderError(
                f"{levels[-1]} can leave several values; say how they are added, as in `{levels[-1]} | sequential`."
            )
        return Order(tuple(levels))

    def level(self, *, first: bool) -> Level:
        token = self.take()
        if token.text == NATIVE:
            raise OrderError("native is no order that can be written out or combined: it is torch's own sum.")
        if token.kind != "word" or token.text not in FORMS:
            raise self.fail(token, f"one of {listed(FORMS)}", FORMS)
        level = self.arguments(token) if self.accept("(") else self.build(token, {}, {}, (), None)
        if not first and "fma" in level.words:
            raise OrderError(f"fma in {level.name}: only the first level adds leaves, which are the products.")
        return level

    def arguments(self, name: _Token) -> Level:
        form = FORMS[name.text]
        numbers: dict[str, int] = {}
        dtypes: dict[str, str] = {}
        words: list[str] = []
        explicit = self.explicit() if name.text == "tree" else None
        more = not self.accept(")") if explicit is None else not self.closed()
        while more:
            token = self.take()
            if token.kind == "number":
                unset = [number for number in form.numbers if number.name not in numbers]
                if not unset:
                    raise self.fail(token, f"no further number: {name.text} takes {len(form.numbers)}")
                numbers[unset[0].name] = self.number(token, unset[0])
            elif token.text in form.words and token.text not in words:
                words.append(token.text)
            else:
                self.keyword(token, form.numbers, form.words, numbers, dtypes)
            more = not self.closed()
        return self.build(name, numbers, dtypes, tuple(sorted(words)), explicit)

    def closed(self) -> bool:
        token = self.take()
        if token.text not in {",", ")"}:
            raise self.fail(token, "`,` or `)`")
        return token.text == ")"

    def keyword(
        self,
        token: _Token,
        numbers_of_form: tuple[Number, ...],
        words: tuple[str, ...],
        numbers: dict[str, int],
        dtypes: dict[str, str],
    ) -> None:
        names = {number.name: number for number in numbers_of_form if number.name not in numbers}
        free = [*names, *(name for name in DTYPES if name not in dtypes)]
        if token.text not in free:
            raise self.fail(token, f"one of {listed([*words, *(f'{name}=' for name in free)])}", [*words, *free])
        if not self.accept("="):
            raise self.fail(self.take(), f"`=` after {token.text}")
        value = self.take()
        if token.text in names:
            numbers[token.text] = self.number(value, names[token.text])
        elif value.text not in FLOAT_NAMES:
            raise self.fail(value, f"one of {listed(FLOAT_NAMES)}", FLOAT_NAMES)
        else:
            dtypes[token.text] = value.text

    def number(self, token: _Token, number: Number) -> int:
        value = int(token.text) if token.kind == "number" and len(token.text) < 20 else None
        if value is None or abs(value) > _LARGEST or (number.least is not None and value < number.least):
            least = "" if number.least is None else f" from {number.least}"
            raise self.fail(token, f"a whole number{least} to {_LARGEST} for {number.name}")
        if number.choices and value not in number.choices:
            raise self.fail(token, f"{' or '.join(map(str, number.choices))} for {number.name}")
        return value

    def build(
        self,
        name: _Token,
        numbers: dict[str, int],
        dtypes: dict[str, str],
        words: tuple[str, ...],
        explicit: AnyTree,
    ) -> Level:
        if name.text == "tree" and explicit is None:
            raise OrderError("tree: expected the sum written out, as in `tree((0+1)+(2+3))`.")
        exclusive = [word for word in words if word in _EXCLUSIVE]
        if len(exclusive) > 1:
            raise OrderError(f"{name.text}: {exclusive[0]} and {exclusive[1]} exclude each other.")
        if "fma" in words and explicit is not None and _has_fused(explicit):
            raise OrderError("tree: fma contracts additions one by one; [a+b+c] is one addition of all.")
        values = []
        for number in FORMS[name.text].numbers:
            value = numbers.get(number.name, number.default)
            if value is None:
                raise OrderError(f"{name.text} needs {number.name}: write `{_example(name.text)}`.")
            values.append(value)
        return Level(
            name=name.text,
            numbers=tuple(values),
            words=words,
            accumulate=dtypes.get("accumulate"),
            round=dtypes.get("round"),
            explicit=explicit,
        )

    def explicit(self) -> AnyTree:
        """`(0+1)+(2+3)`, up to the `,` or `)` after it."""
        start = self.tokens[self.next]
        stack: list[tuple[str, list[AnyTree]]] = [("", [])]
        while True:
            token = self.take()
            if token.text in {"(", "["}:
                stack.append((token.text, []))
                if len(stack) > _DEEPEST:
                    raise self.fail(token, f"at most {_DEEPEST} sums in each other")
                continue
            if token.kind != "number" or token.text.startswith("-"):
                raise self.fail(token, "the number of a leaf, from 0, `(` or `[`")
            stack[-1][1].append(int(token.text[:9]))
            while len(stack) > 1 and self.tokens[self.next].text == {"(": ")", "[": "]"}[stack[-1][0]]:
                self.take()
                sign, children = stack.pop()
                stack[-1][1].append(_explicit_sum(sign, children))
            if not self.accept("+"):
                break
        if len(stack) > 1:
            raise self.fail(self.take(), f"`+` or `{'])'[stack[-1][0] == '(']}`")
        return self.check_leaves(start, stack[0][1])

    def check_leaves(self, start: _Token, children: list[AnyTree]) -> AnyTree:
        total = _explicit_sum("", children)
        leaves = sorted(leaves_of(total))
        if len(leaves) < 2 or leaves != list(range(len(leaves))):
            raise self.fail(start, f"each of the leaves 0 to {max(len(leaves) - 1, 1)} once")
        return total


def _explicit_sum(sign: str, children: list[AnyTree]) -> AnyTree:
    """The sum in brackets; `(0+1)+2` becomes `0+1+2`, and brackets around one value disappear."""
    if len(children) == 1:
        return children[0]
    if sign == "[":
        return Sum(children=tuple(children), how="fused", width=len(children))
    first = children[0]
    return (*first, *children[1:]) if isinstance(first, tuple) else tuple(children)


def _has_fused(tree: AnyTree) -> bool:
    return isinstance(tree, Sum) or any(map(_has_fused, children_of(tree)))


def _example(name: str) -> str:
    required = [number for number in FORMS[name].numbers if number.default is None]
    return f"{name}({', '.join(str(max(number.least or 1, 1)) for number in required)})"
