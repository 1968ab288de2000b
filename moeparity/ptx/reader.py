"""Tokens to `syntax`: the statements of a kernel, and variables.

The grammar is that of the PTX ISA 9.x as compilers print it and people write it: scopes, guards, vectors, pairs of
results, address expressions with one offset, initialisers. Whether an instruction is known is decided elsewhere.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import numpy as np

from moeparity.ptx.formats import TYPES
from moeparity.ptx.syntax import (
    Address,
    Group,
    Immediate,
    Kernel,
    Name,
    Operand,
    PtxError,
    Scope,
    Statement,
    Variable,
)

_TOKEN = re.compile(r'"[^"]*"|(?:[\w.$%]|::)+|[{}()\[\],;:|!=+\-<>@]')
_INTEGER = re.compile(r"(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)U?")
_DECIMAL = re.compile(r"[0-9]+\.[0-9]*(?:[eE][0-9]+)?")
_FLOAT_BITS = re.compile(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}")
_BYTES = {name: np.dtype(kind).itemsize for name, kind in TYPES.items() if name != "pred"}
_MOST_REGISTERS = 100_000
"""Of one name: compilers make some thousands."""
_SPACES = frozenset({"global", "const", "shared", "local", "param"})


class Reader:
    """Tokens of one piece of text, and where in them one stands."""

    def __init__(self, text: str, line: int) -> None:
        self._tokens, self._lines = _tokens(text, line)
        self._at = 0
        self._scope: Scope = ()
        self._scopes = 0
        self._statements: list[Statement] = []
        self._labels: dict[tuple[Scope, str], int] = {}
        self._registers: dict[tuple[Scope, str], str] = {}
        self._variables: dict[tuple[Scope, str], Variable] = {}
        self._tables: dict[tuple[Scope, str], tuple[str, ...]] = {}

    def module_variables(self) -> dict[str, Variable]:
        """Variables that stand outside functions."""
        variables = {}
        while not self._ended():
            words = self._words()
            if _SPACES & {word[1:] for word in words}:
                variable = self._variable(words)
                variables[variable.name] = variable
            elif not self._ended():
                # `.version 9.5` and what else has no semicolon; `.file 1 "a.cu"`.
                self._take()
        return variables

    def kernel(self) -> Kernel:
        """A whole `.entry`."""
        while self._take() != ".entry":
            pass
        name, parameters = self._take(), []
        if self._peek() == "(":
            self._take()
            while self._peek() != ")":
                parameters.append(self._variable(self._words(), ends=(",", ")")))
                if self._peek() == ",":
                    self._take()
        while self._take() != "{":
            pass  # `.maxntid 128, 1, 1` binds the compiler, not the numbers
        self._body()
        return Kernel(
            name=name,
            parameters=tuple(parameters),
            statements=tuple(self._statements),
            labels=self._labels,
            registers=self._registers,
            variables=self._variables,
            tables=self._tables,
        )

    def _body(self) -> None:
        while True:
            word = self._peek()
            if word == "}":
                self._take()
                if not self._scope:
                    return
                self._scope = self._scope[:-1]
            elif word == "{":
                self._take()
                self._scopes += 1
                self._scope = (*self._scope, self._scopes)
            elif word == ";":
                self._take()
            elif word.startswith("."):
                self._declaration(self._words())
            elif self._tokens[self._at + 1 : self._at + 2] == [":"]:
                self._label()
            else:
                self._statement()

    def _label(self) -> None:
        name = self._take()
        self._take()
        if self._peek() == ".branchtargets":
            self._take()
            self._tables[self._scope, name] = tuple(word for word in self._until(";") if word != ",")
            return
        self._labels[self._scope, name] = len(self._statements)

    def _declaration(self, words: list[str]) -> None:
        if words[0] == ".reg":
            for name in self._register_names():
                self._registers[self._scope, name] = words[-1][1:]
        elif _SPACES & {word[1:] for word in words}:
            variable = self._variable(words)
            self._variables[self._scope, variable.name] = variable
        elif words[0] in {".loc", ".file"}:
            line = self._lines[self._at - 1]
            while not self._ended() and self._lines[self._at] == line:
                self._take()
        else:
            self._until(";")  # `.pragma "nounroll"`

    def _register_names(self) -> Iterator[str]:
        while True:
            name = self._take()
            if self._peek() == "<":
                self._take()
                count = self._integer(self._take())
                if count > _MOST_REGISTERS:
                    self._fail(f"{count} registers; a kernel has at most {_MOST_REGISTERS} of a name")
                yield from (f"{name}{number}" for number in range(count))
                self._expect(">")
            else:
                yield name
            if self._take() == ";":
                return

    def _variable(self, words: list[str], *, ends: tuple[str, ...] = (";",)) -> Variable:
        """A variable from behind its words (`.shared .align 4 .b8`) to its end."""
        # Behind `.ptr` stands what the pointer points to: `.param .u64 .ptr .global .align 1`, as Triton writes it.
        words = words[: words.index(".ptr")] if ".ptr" in words else words
        space = next((word[1:] for word in words if word[1:] in _SPACES), None)
        type_ = next((word[1:] for word in reversed(words) if word[1:] not in _SPACES), "b8")
        if space is None or type_ not in _BYTES:
            self._fail(f"`{' '.join(words)}` is no declaration of a variable")
        item = _BYTES[type_]
        align = next((self._integer(words[at + 1]) for at, word in enumerate(words) if word == ".align"), item)
        if align.bit_count() != 1:
            self._fail(f"an alignment of {align}, which is no power of two")
        name, count, initial = self._take(), 1, []
        while self._peek() not in ends:
            word = self._take()
            if word == "[":
                count *= 0 if self._peek() == "]" else self._integer(self._take())
                self._expect("]")
            elif word == "=":
                initial = self._initial(ends)
        if ends == (";",):
            self._take()
        return Variable(name, space, type_, align, item * count, tuple(initial))

    def _initial(self, ends: tuple[str, ...]) -> list[int | str]:
        values: list[int | str] = []
        negative = False
        while self._peek() not in ends:
            word = self._take()
            if word == "-":
                negative = True
            elif word[0].isdigit():
                values.append(-self._number(word).value if negative else self._number(word).value)
                negative = False
            elif word not in {"{", "}", ",", "+"}:
                values.append(word)
        return values

    def _statement(self) -> None:
        line, guard = self._lines[self._at], None
        if self._peek() == "@":
            self._take()
            guard = self._name()
        opcode, operands = self._take(), []
        while self._peek() != ";":
            if self._peek() == ",":
                self._take()
                continue
            operands.append(self._operand())
        self._take()
        self._statements.append(Statement(line, self._scope, guard, opcode, tuple(operands)))

    def _operand(self) -> Operand:
        word = self._peek()
        if word == "[":
            return self._address()
        if word in {"{", "("}:
            self._take()
            parts = []
            while self._peek() not in {"}", ")"}:
                if self._peek() == ",":
                    self._take()
                else:
                    parts.append(self._scalar())
            if self._take() == "}" and not parts:
                self._fail("a vector of nothing")
            return Group(tuple(parts), vector=True)
        first = self._scalar()
        if self._peek() != "|":
            return first
        self._take()
        return Group((first, self._scalar()), vector=False)

    def _scalar(self) -> Name | Immediate:
        word = self._peek()
        if word == "-":
            self._take()
            number = self._number(self._take())
            if number.float_bytes is None:
                return Immediate(-number.value)
            return replace(number, value=number.value ^ 1 << 8 * number.float_bytes - 1)
        return self._number(self._take()) if word[0].isdigit() else self._name()

    def _name(self) -> Name:
        negated = self._peek() == "!"
        if negated:
            self._take()
        return Name(self._take(), negated)

    def _address(self) -> Address:
        self._take()
        base, offset, sign = self._scalar(), 0, 1
        while (word := self._take()) != "]":
            if word in {"+", "-"}:
                sign = 1 if word == "+" else -1
            elif word[0].isdigit():
                offset, sign = offset + sign * self._integer(word), 1
            else:
                self._fail(f"`{word}` in an address")
        return Address(base, offset)

    def _words(self) -> list[str]:
        """Words that begin with a dot, with the number behind `.align`."""
        words = []
        while not self._ended() and self._peek().startswith("."):
            words.append(self._take())
            if words[-1] == ".align":
                words.append(self._take())
        return words

    def _until(self, end: str) -> list[str]:
        return list(iter(self._take, end))

    def _expect(self, word: str) -> None:
        if self._take() != word:
            self._at -= 1
            self._fail(f"`{self._peek()}`, and `{word}` expected")

    def _integer(self, word: str) -> int:
        if not _INTEGER.fullmatch(word):
            self._fail(f"`{word}` is no whole number")
        digits = word.removesuffix("U")
        # No more digits than Python reads at once.
        value = int(digits[:100], 8 if re.fullmatch("0[0-7]+", digits) else 0)
        if value >= 1 << 64:
            self._fail(f"`{word}` has more than 64 bits")
        return value

    def _number(self, word: str) -> Immediate:
        """An integer, `0f` with the bits of an fp32, `0d` of an fp64, or a decimal, which is an fp64."""
        if _FLOAT_BITS.fullmatch(word):
            return Immediate(int.from_bytes(bytes.fromhex(word[2:])), 4 if word[1] in "fF" else 8)
        if _DECIMAL.fullmatch(word):
            return Immediate(int.from_bytes(struct.pack("<d", float(word)), "little"), 8)
        return Immediate(self._integer(word))

    def _fail(self, problem: str) -> NoReturn:
        raise PtxError(f"Line {self._lines[min(self._at, len(self._lines) - 1)]}: {problem}.")

    def _ended(self) -> bool:
        return self._at >= len(self._tokens)

    def _peek(self) -> str:
        if self._ended():
            self._fail("the text ends inside of a kernel or a declaration")
        return self._tokens[self._at]

    def _take(self) -> str:
        word = self._peek()
        self._at += 1
        return word


def _tokens(text: str, line: int) -> tuple[list[str], list[int]]:
    """The tokens of a text that begins at a line, and the line of each. Raises PtxError for what is no token."""
    tokens: list[str] = []
    lines: list[int] = []
    for number, row in enumerate(text.split("\n"), line):
        words = _TOKEN.findall(row)
        if "".join(words) != "".join(row.split()):
            _refuse_strange(row, number)
        tokens += words
        lines += [number] * len(words)
    return tokens, lines


def _refuse_strange(row: str, line: int) -> None:
    """Refuses a row with anything but blanks between its tokens; a string may have some inside."""
    for between in _TOKEN.split(row):
        if between.strip():
            raise PtxError(f"Line {line}: `{between.strip()}` is not understood.")
