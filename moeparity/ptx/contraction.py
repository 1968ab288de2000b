"""Finds the products and sums of a kernel that the assembler joins to one fma each, and gives the kernel as it is then.

ptxas may make one fma of `mul.f32` and `add.f32` if they have no rounding modifier (PTX ISA, `add`, `mul`). nvcc writes
no modifier unless -fmad=false is given. No document says which pairs ptxas takes. The rule here is what ptxas 13.5.37
made of small programs and of engines' kernels for sm_90, read in its machine code
(tests/engines/cuda/test_contraction.py). A product is fused if everything that reads it is such a sum, in the same run
of statements without a jump, with the same `.ftz`. If two products are added, the first one is fused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from moeparity.ptx.syntax import Group, Immediate, Kernel, Name, Operand, Scope, Statement

_ROUNDED = frozenset({"rn", "rz", "rm", "rp"})
_FLOATS = frozenset({"f32", "f64"})
_JUMPS = frozenset({"bra", "brx", "ret", "exit", "trap", "call"})
_SIGN = {4: 1 << 31, 8: 1 << 63}

_Register = tuple[Scope, str]


@dataclass(frozen=True, slots=True)
class Contraction:
    """A kernel in which products and sums are one; `pairs` are their lines in the text."""

    kernel: Kernel
    pairs: tuple[tuple[int, int], ...]


def contractible(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Lines of products and of the sums that read them, where neither is rounded explicitly: what may be fused."""
    kernel = _with_signed_products(kernel)
    products: dict[_Register, set[int]] = {}
    for statement in kernel.statements:
        for product in statement.operands[:1] if _open(statement, ("mul",)) else ():
            if isinstance(product, Name):
                products.setdefault(_key(kernel, statement, product.text), set()).add(statement.line)
    pairs = set()
    for statement in kernel.statements:
        if _open(statement, ("add", "sub")):
            lines = [products.get(key, set()) for key in _names(kernel, statement, statement.operands[1:])]
            pairs |= {(line, statement.line) for group in lines for line in group}
    return tuple(sorted(pairs))


def contracted(kernel: Kernel) -> Contraction:
    """The kernel with an fma in the place of each sum that the rule fuses; a product nobody reads any more stays."""
    kernel = _with_signed_products(kernel)
    block = _blocks(kernel)
    uses: dict[_Register, list[int]] = {}
    for at, statement in enumerate(kernel.statements):
        for key in _names(kernel, statement, statement.operands):
            uses.setdefault(key, []).append(at)
    fusable: dict[int, dict[_Register, int]] = {}
    for at, statement in enumerate(kernel.statements):
        if _open(statement, ("mul",)) and statement.guard is None and isinstance(statement.operands[0], Name):
            key = _key(kernel, statement, statement.operands[0].text)
            readers = list(uses[key])
            readers.remove(at)
            if readers and all(_fuses(kernel, at, reader, key, block) for reader in readers):
                for reader in readers:
                    fusable.setdefault(reader, {})[key] = at
    statements, pairs = list(kernel.statements), []
    for at, products in fusable.items():
        fused = _contracted(kernel, statements[at], products)
        statements[at] = fused[0]
        pairs.append((kernel.statements[fused[1]].line, statements[at].line))
    return Contraction(replace(kernel, statements=tuple(statements)), tuple(sorted(pairs)))


def _with_signed_products(kernel: Kernel) -> Kernel:
    """The kernel with a product of its own, by the factor of the other sign, for each product that is negated."""
    block, product_at = _blocks(kernel), {}
    statements = list(kernel.statements)
    for at, statement in enumerate(statements):
        root, *parts = statement.opcode.split(".")
        if _open(statement, ("mul",)) and statement.guard is None and isinstance(statement.operands[0], Name):
            product_at[_key(kernel, statement, statement.operands[0].text)] = at
        elif root == "neg" and parts and parts[-1] in _FLOATS and len(statement.operands) == 2:
            if not isinstance(statement.operands[1], Name):
                continue
            product = product_at.get(_key(kernel, statement, statement.operands[1].text))
            if product is not None and block[product] == block[at] and not _changed(kernel, product, at):
                _, a, b = kernel.statements[product].operands
                same = kernel.statements[product].opcode
                if same.split(".")[1:] == parts:
                    statements[at] = replace(statement, opcode=same, operands=(statement.operands[0], _negated(a), b))
    return replace(kernel, statements=tuple(statements))


def _changed(kernel: Kernel, product: int, until: int) -> bool:
    """Whether a factor, or the product itself, is written again before a statement."""
    statement = kernel.statements[product]
    read = set(_names(kernel, statement, statement.operands))
    between = kernel.statements[product + 1 : until]
    return any(read & set(_names(kernel, step, step.operands[:1])) for step in between)


def _contracted(kernel: Kernel, total: Statement, products: dict[_Register, int]) -> tuple[Statement, int]:
    """The sum as an fma, and which statement its product was."""
    root, *parts = total.opcode.split(".")
    result, left, right = total.operands
    first = isinstance(left, Name) and _key(kernel, total, left.text) in products
    product, addend = (left, right) if first else (right, left)
    assert isinstance(product, Name)
    at = products[_key(kernel, total, product.text)]
    _, a, b = kernel.statements[at].operands
    if root == "sub":
        a, addend = (a, _negated(addend)) if first else (_negated(a), addend)
    return replace(total, opcode=".".join(("fma", "rn", *parts)), operands=(result, a, b, addend)), at


def _fuses(kernel: Kernel, product: int, total: int, key: _Register, block: list[int]) -> bool:
    """Whether a statement is a sum that may take the product in, whose factors are still there."""
    maker, reader = kernel.statements[product], kernel.statements[total]
    if total <= product or block[total] != block[product] or not _open(reader, ("add", "sub")):
        return False
    if maker.opcode.split(".")[1:] != [part for part in reader.opcode.split(".")[1:] if part != "sat"]:
        return False
    if _names(kernel, reader, reader.operands[1:]).count(key) != 1 or maker.scope != reader.scope[: len(maker.scope)]:
        return False
    return not _changed(kernel, product, total)


def _blocks(kernel: Kernel) -> list[int]:
    """Of each statement the number of the run without a label or a jump that it stands in."""
    numbers, number, labelled = [], 0, set(kernel.labels.values())
    for at, statement in enumerate(kernel.statements):
        number += at in labelled
        numbers.append(number)
        number += statement.opcode.split(".")[0] in _JUMPS
    return numbers


def _open(statement: Statement, roots: tuple[str, ...]) -> bool:
    """Whether a product or sum leaves its rounding open; none that is malformed, which is told when it is looked up."""
    root, *parts = statement.opcode.split(".")
    if root not in roots or not parts or parts[-1] not in _FLOATS or _ROUNDED & set(parts):
        return False
    return len(statement.operands) == 3 and isinstance(statement.operands[0], Name) and _are_floats(statement)


def _are_floats(statement: Statement) -> bool:
    """Whether every operand is a register or a number of the statement's size."""
    size = 4 if statement.opcode.endswith("f32") else 8
    return all(isinstance(o, Name) or (isinstance(o, Immediate) and o.float_bytes == size) for o in statement.operands)


def _names(kernel: Kernel, statement: Statement, operands: tuple[Operand, ...]) -> list[_Register]:
    return [_key(kernel, statement, name.text) for operand in operands for name in _inside(operand)]


def _inside(operand: Operand) -> Iterator[Name]:
    if isinstance(operand, Name):
        yield operand
    elif isinstance(operand, Group):
        yield from (part for part in operand.parts if isinstance(part, Name))


def _negated(operand: Operand) -> Operand:
    if isinstance(operand, Name):
        return replace(operand, negated=not operand.negated)
    assert isinstance(operand, Immediate)
    assert operand.float_bytes is not None
    return replace(operand, value=operand.value ^ _SIGN[operand.float_bytes])


def _key(kernel: Kernel, statement: Statement, name: str) -> _Register:
    """A register by the scope it is declared in."""
    for depth in range(len(statement.scope), 0, -1):
        if (statement.scope[:depth], name) in kernel.registers:
            return statement.scope[:depth], name
    return (), name
