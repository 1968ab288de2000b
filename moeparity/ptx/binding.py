"""Operands bound to registers, variables, special registers and numbers: reading and writing for a set of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeparity.ptx.addresses import Layout
from moeparity.ptx.formats import REGISTERS, TYPES, Array, dtype_of
from moeparity.ptx.special import SPECIAL
from moeparity.ptx.syntax import (
    Address,
    Group,
    Immediate,
    Name,
    Operand,
    PtxError,
    Statement,
    innermost,
)
from moeparity.ptx.threads import Active, Machine

Read = Callable[[Machine, Active], Array]
Write = Callable[[Machine, Active, Array], None]


def operands_of(statement: Statement) -> list[Operand]:
    """All operands, vectors and pairs taken apart."""
    flat: list[Operand] = []
    for operand in statement.operands:
        flat.extend(operand.parts if isinstance(operand, Group) else [operand])
    return flat


def reader(operand: Operand, type_: str, statement: Statement, layout: Layout) -> Read:
    """Reads an operand as a type; `address` is the sum of an address operand."""
    if isinstance(operand, Address):
        if type_ != "address":
            raise PtxError(f"Line {statement.line}: `{statement.opcode}` reads no memory, and has an address.")
        return _address(operand, statement, layout)
    if type_ == "address" and (isinstance(operand, Group) or not _is_register(operand, statement, layout)):
        raise PtxError(f"Line {statement.line}: `{statement.opcode}` without an address in brackets.")
    if isinstance(operand, Immediate):
        return _constant(_immediate(operand, type_, statement))
    assert isinstance(operand, Name)
    if operand.text in SPECIAL:
        return _special(operand.text, type_)
    slot = innermost(layout.slots, statement.scope, operand.text)
    if slot is not None:
        return _register(slot, layout.types[slot], type_, negated=operand.negated)
    address = _variable(operand.text, statement, layout)
    return _constant(np.array([address], np.uint64).astype(dtype_of(type_)))


def writer(operand: Operand, type_: str, statement: Statement, layout: Layout) -> Write:
    """Writes values of a type to a register, wider ones included; `_` takes what is not wanted."""
    if not isinstance(operand, Name):
        raise PtxError(f"Line {statement.line}: `{statement.opcode}` writes to something that is no register.")
    if operand.text == "_":
        return _drop
    slot = innermost(layout.slots, statement.scope, operand.text)
    if slot is None:
        raise PtxError(f"Line {statement.line}: there is no register `{operand.text}`.")
    register = layout.types[slot]
    _matching(register, type_, operand.text, statement)
    if register == "pred":
        return lambda machine, active, value: _put(machine.registers[slot], active, value)
    stored, wide = dtype_of(type_), REGISTERS[dtype_of(register).itemsize]
    if stored.itemsize == wide.itemsize:
        return lambda machine, active, value: _put(machine.registers[slot], active, value.view(wide))
    return lambda machine, active, value: _put(machine.registers[slot], active, value.astype(wide))


def _drop(machine: Machine, active: Active, value: Array) -> None:
    """Where a result goes that nobody wants."""


def _put(register: Array, active: Active, value: Array) -> None:
    register[active] = value


def _register(slot: int, register: str, type_: str, *, negated: bool) -> Read:
    if register == "pred":
        if negated:
            return lambda machine, active: ~machine.registers[slot][active]
        return lambda machine, active: machine.registers[slot][active]
    if negated:
        plain = _register(slot, register, type_, negated=False)
        return lambda machine, active: np.negative(plain(machine, active))
    wanted = dtype_of("b64" if type_ == "address" else type_)
    stored = REGISTERS[dtype_of(register).itemsize]
    if wanted.itemsize == stored.itemsize:
        return lambda machine, active: machine.registers[slot][active].view(wanted)
    if type_ == "address" or wanted.itemsize < stored.itemsize:
        narrow = REGISTERS[wanted.itemsize]
        return lambda machine, active: machine.registers[slot][active].astype(narrow).view(wanted)
    raise PtxError(f"A register of type {register} is too narrow for {type_}.")


def _address(operand: Address, statement: Statement, layout: Layout) -> Read:
    offset = np.array([operand.offset], np.int64).view(np.uint64)
    base = reader(operand.base, "address", statement, layout) if _is_register(operand.base, statement, layout) else None
    if base is not None:
        return lambda machine, active: base(machine, active) + offset
    if isinstance(operand.base, Immediate):
        return _constant(np.array([operand.base.value + operand.offset], np.uint64))
    return _constant(np.array([_variable(operand.base.text, statement, layout) + operand.offset], np.uint64))


def _is_register(base: Name | Immediate, statement: Statement, layout: Layout) -> bool:
    return isinstance(base, Name) and innermost(layout.slots, statement.scope, base.text) is not None


def _variable(name: str, statement: Statement, layout: Layout) -> int:
    address = innermost(layout.scoped, statement.scope, name)
    address = layout.addresses.get(name) if address is None else address
    if address is None:
        raise PtxError(f"Line {statement.line}: `{name}` is no register, variable or special register known here.")
    return address


def _constant(value: Array) -> Read:
    def read(machine: Machine, active: Active) -> Array:
        return value

    return read


def _special(name: str, type_: str) -> Read:
    dtype = dtype_of(type_)
    return lambda machine, active: machine.special(name, active).astype(dtype)


def _immediate(operand: Immediate, type_: str, statement: Statement) -> Array:
    if type_ == "pred":
        return np.array([operand.value != 0])
    dtype = dtype_of(type_)
    if operand.float_bytes is not None:
        bits = np.array([operand.value], REGISTERS[operand.float_bytes])
        if dtype.kind == "f" and dtype.itemsize != operand.float_bytes:
            return bits.view(f"f{operand.float_bytes}").astype(dtype)
        if dtype.itemsize == operand.float_bytes:
            return bits.view(dtype)
        raise PtxError(f"Line {statement.line}: a float of {operand.float_bytes} bytes stands for {type_}.")
    if dtype.kind == "f":
        raise PtxError(f"Line {statement.line}: a whole number stands where {type_} is read.")
    wrapped = operand.value & ((1 << 8 * dtype.itemsize) - 1)
    return np.array([wrapped], REGISTERS[dtype.itemsize]).view(dtype)


def _matching(register: str, type_: str, name: str, statement: Statement) -> None:
    if (register == "pred") != (type_ == "pred"):
        raise PtxError(f"Line {statement.line}: `{statement.opcode}` does not fit the register `{name}` ({register}).")
    if register != "pred" and np.dtype(TYPES[type_]).itemsize > np.dtype(TYPES[register]).itemsize:
        raise PtxError(f"Line {statement.line}: the register `{name}` ({register}) is too narrow for {type_}.")
