"""What a PTX file says, as plain data: modules, kernels, statements, operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from moeparity.errors import MoeparityError

_Meaning = TypeVar("_Meaning")

Scope = tuple[int, ...]
"""The braces around a name, outermost first; `()` is a kernel's own body."""


class PtxError(MoeparityError):
    """A PTX file that cannot be read or run as it is, or a launch that does what no kernel may."""


@dataclass(frozen=True, slots=True)
class Name:
    """A register, variable, label or special register; `negated`: a predicate behind `!`, or a float negated."""

    text: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Immediate:
    """A number in the text: an integer, or with `float_bytes` the bits of a float of so many bytes."""

    value: int
    float_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`; the base is a register, a variable or a number."""

    base: Name | Immediate
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Several operands in one place: a vector `{a, b}`, or a pair of results `a|b`."""

    parts: tuple[Name | Immediate, ...]
    vector: bool


Operand = Name | Immediate | Address | Group


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or a kernel's parameter; `size` in bytes, 0 where a launch gives it; `initial` are its bytes."""

    name: str
    space: str
    type: str
    align: int
    size: int
    initial: tuple[int | str, ...] = ()
    """Values of the elements; a string is the address of another variable."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One instruction in its scope, with the line it stands on; `guard` is the predicate before it."""

    line: int
    scope: Scope
    guard: Name | None
    opcode: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An `.entry`, its statements in the order of the text, and what its names are."""

    name: str
    parameters: tuple[Variable, ...]
    statements: tuple[Statement, ...]
    labels: Mapping[tuple[Scope, str], int]
    """Index of the statement a label stands before."""
    registers: Mapping[tuple[Scope, str], str]
    """Type of every register."""
    variables: Mapping[tuple[Scope, str], Variable]
    tables: Mapping[tuple[Scope, str], tuple[str, ...]] = field(default_factory=dict)
    """Labels of each `.branchtargets`."""


def innermost(names: Mapping[tuple[Scope, str], _Meaning], scope: Scope, name: str) -> _Meaning | None:
    """What a name means in a scope: the meaning of the nearest brace around it, or None."""
    for depth in range(len(scope), -1, -1):
        meaning = names.get((scope[:depth], name))
        if meaning is not None:
            return meaning
    return None
