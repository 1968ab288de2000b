"""The table of instructions: a declaration for each, by the first word of its name.

A declaration is a function from the whole name (`Opcode`) to an `Operation`: the types of what it writes and reads, and
what it computes. It names the modifiers that it knows. A modifier that it does not know, or a first word that nobody
declared, is an error that names the instruction (`UnknownInstruction`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moeparity.ptx.formats import TYPES
from moeparity.ptx.syntax import Group, PtxError, Statement


class UnknownInstruction(PtxError):  # noqa: N818 (it reads as what it is)
    """An instruction, or a modifier of one, that the interpreter does not know or refuses."""


class Sync(Enum):
    """Whom an instruction waits for."""

    NOBODY = 0
    WARP = 1
    BLOCK = 2


@dataclass(frozen=True, slots=True)
class Opcode:
    """A full name such as `fma.rn.ftz.f32`: its first word, its types in order, all other modifiers."""

    text: str
    root: str
    types: tuple[str, ...]
    modifiers: frozenset[str]
    statement: Statement
    approximations: Mapping[str, Callable[..., Any]]
    """Name of an approximate instruction, `.ftz` aside -> what it is taken to compute."""
    target: str
    """Architecture of the file, such as `sm_90a`."""

    def has(self, modifier: str) -> bool:
        """Whether a modifier stands in the name."""
        return modifier in self.modifiers

    def one_of(self, choices: Collection[str], default: str | None = None) -> str:
        """The one of several modifiers that stands in the name; `default` where none does."""
        listed_choices = [choice for choice in choices if choice in self.modifiers]
        if len(listed_choices) == 1:
            return listed_choices[0]
        if listed_choices or default is None:
            raise self.unknown(f"expected one of {', '.join(sorted(choices))}")
        return default

    def type_of(self, choices: Collection[str]) -> str:
        """Its one type, which must be among these."""
        if len(self.types) != 1 or self.types[0] not in choices:
            raise self.unknown(f"types known: {', '.join(choices)}")
        return self.types[0]

    def unknown(self, why: str) -> UnknownInstruction:
        """The error that names it, with its line."""
        return UnknownInstruction(f"Line {self.statement.line}: `{self.text}` is not known to this interpreter: {why}.")

    @property
    def vector(self) -> int:
        """Elements of its first vector operand, 1 where it has none."""
        groups = [part for part in self.statement.operands if isinstance(part, Group) and part.vector]
        return len(groups[0].parts) or 1 if groups else 1

    @property
    def has_group(self) -> bool:
        """Whether its first operand is a vector or a pair."""
        return isinstance(next(iter(self.statement.operands), None), Group)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """How one instruction is run: `compute` takes its operands and returns its result, or a tuple of results.

    Each operand is an array with one entry per thread, or with a single entry that all threads share. `lanes`: the
    first argument of `compute` says which threads take part (`Lanes`). `memory`: the instruction reads or writes memory
    that other threads see.
    """

    results: tuple[str, ...]
    sources: tuple[str, ...]
    compute: Callable[..., Any]
    lanes: bool = False
    sync: Sync = Sync.NOBODY
    memory: bool = False
    whole: bool = False
    """It waits for a whole warp, where others that wait for a warp have a mask for their last operand."""
    updated: int = 0
    """So many of the results, the first ones, are read too, ahead of the sources."""
    late: Callable[..., Any] | None = None
    """What gives the value written instead, from the threads, once a barrier has opened."""
    assumed: str | None = None
    """Name of an approximate instruction, whose results no document fixes."""


Maker = Callable[[Opcode], Operation]


@dataclass(frozen=True, slots=True)
class Declaration:
    """Modifiers that a first word may have, beside types (None: any), and what makes an operation of the whole."""

    modifiers: frozenset[str] | None
    make: Maker


DECLARATIONS: dict[str, Declaration] = {}
"""First word -> its declaration; filled by `moeparity.ptx.instructions`."""


def declare(*roots: str, modifiers: str = "") -> Callable[[Maker], Maker]:
    """Enters a maker under one or more first words; `modifiers` as words."""

    def enter(make: Maker) -> Maker:
        for root in roots:
            assert root not in DECLARATIONS, root
            DECLARATIONS[root] = Declaration(frozenset(modifiers.split()), make)
        return make

    return enter


def operation_of(statement: Statement, approximations: Mapping[str, Callable[..., Any]], target: str) -> Operation:
    """What a statement does. Raises UnknownInstruction."""
    root, *parts = statement.opcode.split(".")
    types = tuple(part for part in parts if part in TYPES)
    modifiers = frozenset(part for part in parts if part not in TYPES)
    opcode = Opcode(statement.opcode, root, types, modifiers, statement, approximations, target)
    declaration = DECLARATIONS.get(opcode.root)
    if declaration is None:
        raise opcode.unknown("no instruction begins so in docs/ptx.md")
    strange = opcode.modifiers - (opcode.modifiers if declaration.modifiers is None else declaration.modifiers)
    if strange:
        raise opcode.unknown(f"`.{min(strange)}` has no meaning there")
    return declaration.make(opcode)
