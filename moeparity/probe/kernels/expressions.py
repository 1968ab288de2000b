"""Evaluates the numbers of a kernel file: expressions of sizes, such as `ceil_div(tokens * hidden, 256)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from moeparity.errors import MoeparityError, SpecError, Where, did_you_mean, listed

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "ceil_div": lambda a, b: -(-a // b),
}
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.Div: lambda a, b: a / b,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
}
_MOST = 2**63


def value(text: str | float, names: Mapping[str, float], where: Where) -> float:
    """A number, or the value of an expression with these names: + - * / // %, comparisons, `a if b else c`,
    `FUNCTIONS`. Raises SpecError.
    """
    if not isinstance(text, str):
        return text
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        reason = "is no expression; + - * / // %, comparisons, `a if b else c`, min, max and ceil_div are read."
    except ZeroDivisionError:
        reason = "divides by zero."
    except MoeparityError as error:
        reason = str(error)
    raise SpecError(f"{where}: {text!r} {reason}")


def whole(text: str | float, names: Mapping[str, float], where: Where, *, least: int = 0) -> int:
    """As `value`, but an integer of at least `least`. Raises SpecError."""
    number = value(text, names, where)
    if int(number) != number or number < least:
        raise SpecError(
            f"{where}: {text!r} is {number:g} here; a whole number from {least} was expected. `//` cuts off."
        )
    return int(number)


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    result: Any
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        result = node.value
    elif isinstance(node, ast.Name):
        if node.id not in names:
            raise MoeparityError(f"names {node.id}; known here are {listed(names)}.{did_you_mean(node.id, names)}")
        result = names[node.id]
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        result = _OPERATIONS[type(node.op)](_value(node.left, names), _value(node.right, names))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        result = -_value(node.operand, names)
    elif isinstance(node, ast.IfExp):
        result = _value(node.body if _value(node.test, names) else node.orelse, names)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        result = _COMPARISONS[type(node.ops[0])](_value(node.left, names), _value(node.comparators[0], names))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
        if node.keywords or len(node.args) != 2:
            raise MoeparityError(f"gives {node.func.id} {len(node.args)} numbers; it takes 2.")
        result = FUNCTIONS[node.func.id](*(_value(argument, names) for argument in node.args))
    else:
        raise ValueError(node)
    if abs(result) >= _MOST:
        raise MoeparityError("comes to more than 64 bits hold.")
    return float(result) if isinstance(result, float) else int(result)
