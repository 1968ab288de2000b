"""Whole numbers as bash reckons them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_NAME = re.compile(r"[A-Za-z_]\w*")
_LARGEST = 2**63


def _quotient(first: int, second: int) -> int:
    """Towards zero, as C divides."""
    sign = 1 if (first < 0) == (second < 0) else -1
    return sign * (abs(first) // abs(second))


def _remainder(first: int, second: int) -> int:
    return first - second * _quotient(first, second)


_TWO: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: _quotient,
    ast.Mod: _remainder,
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def whole_number(text: str, value: Callable[[str], str | None]) -> int | None:
    """The value of an expression of whole numbers and variables; None where it is not resolved."""
    expression = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", text).strip()
    if len(expression) > 500 or re.search(r"\b0\d", expression):
        return None
    try:
        tree = ast.parse(expression.replace("/", "//"), mode="eval")
        number = _of(tree.body, value, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return number if number is not None and abs(number) < _LARGEST else None


def _of(node: ast.expr, value: Callable[[str], str | None], depth: int) -> int | None:
    if depth > 40:
        return None
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return _variable(node.id, value, depth)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _of(node.operand, value, depth + 1)
        return number if number is None or isinstance(node.op, ast.UAdd) else -number
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        reckon: Callable[[int, int], int] | None = _COMPARED.get(type(node.ops[0]))
        pair = node.left, node.comparators[0]
    elif isinstance(node, ast.BinOp):
        reckon, pair = _TWO.get(type(node.op)), (node.left, node.right)
    else:
        return None
    first, second = (_of(side, value, depth + 1) for side in pair)
    if reckon is None or first is None or second is None or max(abs(first), abs(second)) >= _LARGEST:
        return None
    if second == 0 and reckon in (_quotient, _remainder):
        return None
    return int(reckon(first, second))


def _variable(name: str, value: Callable[[str], str | None], depth: int) -> int | None:
    text = value(name)
    if text is None:
        return None
    if _NAME.fullmatch(text.strip()):
        return _variable(text.strip(), value, depth + 1) if depth <= 40 else None
    return int(text) if re.fullmatch(r"\s*[-+]?(0|[1-9]\d{0,18})\s*", text) else (0 if not text.strip() else None)
