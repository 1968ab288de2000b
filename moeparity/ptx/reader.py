"""Tokens to `syntax`: the statements of a kernel, and variables.

The grammar is that of the PTX ISA 9.x as compilers print it and people write it: scopes, guards, vectors, pairs of
results, address expressions with one offset, initialisers. Whether an instruction is known is not decided here.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

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
_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}
_SPACES = frozenset({"global", "const", "shared", "local", "param"})


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    line: int


class Reader:
    """Tokens of one piece of text, and where in them one stands."""

    def __init__(self, text: str, line: int) -> None:
        self._tokens = list(_tokens(text, line))
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
            elif self._tokens[self._at + 1].text == ":":
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
            line = self._tokens[self._at - 1].line
            while not self._ended() and self._tokens[self._at].line == line:
                self._take()
        else:
            self._until(";")  # `.pragma "nounroll"`

    def _register_names(self) -> Iterator[str]:
        while True:
            name = self._take()
            if self._peek() == "<":
                self._take()
                yield from (f"{name}{number}" for number in range(int(self._take())))
                self._take()
            else:
                yield name
            if self._take() == ";":
                return

    def _variable(self, words: list[str], *, ends: tuple[str, ...] = (";",)) -> Variable:
        """A variable from behind its words (`.shared .align 4 .b8`) to its end."""
        space = next(word[1:] for word in words if word[1:] in _SPACES)
        # Behind `.ptr` stands what the pointer points to: `.param .u64 .ptr .global .align 1`, as Triton writes it.
        words = words[: words.index(".ptr")] if ".ptr" in words else words
        type_ = next((word[1:] for word in reversed(words) if word[1:] not in _SPACES), "b8")
        align = next((int(words[at + 1]) for at, word in enumerate(words) if word == ".align"), 0)
        item = _BYTES["".join(filter(str.isdigit, type_))]
        name, count, initial = self._take(), 1, []
        while self._peek() not in ends:
            word = self._take()
            if word == "[":
                count *= 0 if self._peek() == "]" else _integer(self._take())
                self._expect("]")
            elif word == "=":
                initial = self._initial(ends)
        if ends == (";",):
            self._take()
        return Variable(name, space, type_, align or item, item * count, tuple(initial))

    def _initial(self, ends: tuple[str, ...]) -> list[int | str]:
        values: list[int | str] = []
        negative = False
        while self._peek() not in ends:
            word = self._take()
            if word == "-":
                negative = True
            elif word[0].isdigit():
                values.append(-_number(word).value if negative else _number(word).value)
                negative = False
            elif word not in {"{", "}", ",", "+"}:
                values.append(word)
        return values

    def _statement(self) -> None:
        line, guard = self._tokens[self._at].line, None
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
            self._take()
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
            return Immediate(-_number(self._take()).value)
        return _number(self._take()) if word[0].isdigit() else self._name()

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
                offset, sign = offset + sign * _integer(word), 1
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

    def _fail(self, what: str) -> None:
        raise PtxError(f"Line {self._tokens[min(self._at, len(self._tokens) - 1)].line}: {what}.")

    def _ended(self) -> bool:
        return self._at >= len(self._tokens)

    def _peek(self) -> str:
        if self._ended():
            self._fail("the text ends inside of a kernel or a declaration")
        return self._tokens[self._at].text

    def _take(self) -> str:
        word = self._peek()
        self._at += 1
        return word


def _tokens(text: str, line: int) -> Iterator[_Token]:
    for number, row in enumerate(text.split("\n"), line):
        end = 0
        for match in _TOKEN.finditer(row):
            _blank(row[end : match.start()], number)
            yield _Token(match.group(), number)
            end = match.end()
        _blank(row[end:], number)


def _blank(between: str, line: int) -> None:
    if between.strip():
        raise PtxError(f"Line {line}: `{between.strip()}` is not understood.")


def _integer(word: str) -> int:
    digits = word.rstrip("U")
    return int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)


def _number(word: str) -> Immediate:
    """An integer, `0f` with the bits of an fp32, `0d` of an fp64, or a decimal, which is an fp64."""
    if word[:2] in {"0f", "0F"}:
        return Immediate(int(f"0x{word[2:]}", 0), 4)
    if word[:2] in {"0d", "0D"}:
        return Immediate(int(f"0x{word[2:]}", 0), 8)
    if re.fullmatch(r"\d+\.\d*(?:[eE]\d+)?", word):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(word)))[0], 8)
    return Immediate(_integer(word))
