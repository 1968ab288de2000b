"""Which products and sums of a kernel the assembler may still fuse.

`mul.f32` and `add.f32` without a rounding modifier may be made one fma by ptxas (PTX ISA, `add`, `mul`); nvcc leaves
the modifier out unless -fmad=false. The interpreter runs them as two instructions.
"""

from __future__ import annotations

from moeparity.ptx.syntax import Kernel, Name, Scope, Statement

_ROUNDED = frozenset({"rn", "rz", "rm", "rp"})
_FLOATS = frozenset({"f32", "f64"})


def contractible(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Lines of products and of the sums that read them, where neither is rounded explicitly."""
    products: dict[tuple[Scope, str], set[int]] = {}
    for statement in kernel.statements:
        for product in statement.operands[:1] if _open(statement, ("mul",)) else ():
            if isinstance(product, Name):
                products.setdefault(_key(kernel, statement, product.text), set()).add(statement.line)
    pairs = set()
    for statement in kernel.statements:
        if _open(statement, ("add", "sub")):
            names = [operand.text for operand in statement.operands[1:] if isinstance(operand, Name)]
            lines = [products.get(_key(kernel, statement, name), set()) for name in names]
            pairs |= {(line, statement.line) for group in lines for line in group}
    return tuple(sorted(pairs))


def _open(statement: Statement, roots: tuple[str, ...]) -> bool:
    root, *parts = statement.opcode.split(".")
    return root in roots and bool(parts) and parts[-1] in _FLOATS and not _ROUNDED & set(parts)


def _key(kernel: Kernel, statement: Statement, name: str) -> tuple[Scope, str]:
    """A register by the scope it is declared in."""
    for depth in range(len(statement.scope), 0, -1):
        if (statement.scope[:depth], name) in kernel.registers:
            return statement.scope[:depth], name
    return (), name
