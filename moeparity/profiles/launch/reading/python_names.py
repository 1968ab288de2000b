"""What the names and expressions of a Python file stand for, as far as its syntax tree tells; nothing is run."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from moeparity.errors import Where
from moeparity.profiles.launch.source import Unresolved

_LONGEST = 100_000
"""Letters of one value."""
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class Missing:
    """A value that only a run would tell."""


class Names:
    """One file: what its names stand for, where each is bound once."""

    def __init__(self, tree: ast.Module, path: Path) -> None:
        self.tree, self.path = tree, path
        self.imported = dict(_imports(tree))
        self.assigned = _straight(tree)
        self.bound = {name: values[0] for name, values in self.assigned.items() if len(values) == 1}

    def where(self, node: ast.AST) -> Where:
        """The line it stands on."""
        return Where(self.path, getattr(node, "lineno", None))

    def qualified(self, function: ast.expr) -> tuple[str, str]:
        """Package and name of what is called; without an import a name that only one package has."""
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return self.imported.get(function.value.id, function.value.id).partition(".")[0], function.attr
        if not isinstance(function, ast.Name):
            return "", ""
        full = self.imported.get(function.id)
        if full is not None:
            return full.partition(".")[0], full.rpartition(".")[2]
        return "", ""

    def dotted(self, node: ast.AST) -> str:
        """A name with its attributes as it was imported: `os.environ`, whatever it is called here; empty for others."""
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return f"{before}.{node.attr}" if before else ""
        return self.imported.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def expression(self, node: ast.expr, depth: int = 0) -> ast.expr:
        """What a name stands for, where it is bound once; else the expression itself."""
        bound = self.bound.get(node.id) if isinstance(node, ast.Name) else None
        return node if bound is None or depth > _DEEPEST else self.expression(bound, depth + 1)

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression of constants and names bound once."""
        if depth > _DEEPEST:
            return Missing()
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int | float | bool | None) else Missing()
        if isinstance(node, ast.Name):
            bound = self.bound.get(node.id)
            return self.value(bound, depth + 1) if bound is not None else Missing()
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self.value(node.operand, depth + 1)
            return -number if isinstance(number, int | float) else Missing()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item, depth + 1) for item in node.elts]
            return Missing() if any(isinstance(item, Missing) for item in items) else items
        if isinstance(node, ast.Dict):
            return self._dictionary(node, depth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
            pairs = {key.arg: self.value(key.value, depth + 1) for key in node.keywords}
            return Missing() if None in pairs else pairs
        return Missing()

    def _dictionary(self, node: ast.Dict, depth: int) -> Any:
        pairs: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            name = self.value(key, depth + 1) if key is not None else Missing()
            if not isinstance(name, str):
                return Missing()
            pairs[name] = self.value(item, depth + 1)
        return pairs

    def resolved(self, node: ast.expr) -> Any:
        """The value as an option's: what only a run would tell is unresolved."""
        value = self.value(node)
        return Unresolved(ast.unparse(node)[:200]) if is_missing(value) or len(repr(value)) > _LONGEST else value


def is_missing(value: Any) -> bool:
    """Whether a value, or one inside of it, is told by a run only."""
    if isinstance(value, dict):
        return any(map(is_missing, value.values()))
    return isinstance(value, Missing)


def as_option(value: Any) -> Any:
    """The value of a keyword as an option's: None is no bare flag there, but a value that is not given."""
    return "none" if value is None else value


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.asname or name.name.partition(".")[0], name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)


def _straight(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """What is assigned to each name, one after another. Only names count whose every assignment stands outside loops
    and branches, and whose value is never changed.
    """
    stores = Counter(name for node in ast.walk(tree) for name in _stored(node))
    values: dict[str, list[ast.expr]] = {}
    for name, value in _assigned(tree.body):
        values.setdefault(name, []).append(value)
    return {name: expressions for name, expressions in values.items() if stores[name] == len(expressions)}


def _stored(node: ast.AST) -> tuple[str, ...]:
    """The name that a node binds; twice where what is bound is not an expression of the file, or is changed."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        return (node.id,)
    if isinstance(node, ast.arg):
        return node.arg, node.arg
    changes = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
    changes = changes or (isinstance(node, ast.Attribute) and node.attr in ("update", "pop", "setdefault", "clear"))
    owner = node.value if changes and isinstance(node, ast.Subscript | ast.Attribute) else None
    return (owner.id, owner.id) if isinstance(owner, ast.Name) else ()


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield from _shared_out(node.targets[0], node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield from _shared_out(node.target, node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.With) or is_main(node):
            yield from _assigned(node.body)


def _shared_out(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names of a target, each with its part of the value."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        for place, part in enumerate(target.elts):
            yield from _shared_out(part, ast.Subscript(value=value, slice=ast.Constant(value=place), ctx=ast.Load()))


def is_main(node: ast.stmt) -> TypeGuard[ast.If]:
    """Whether it is `if __name__ == "__main__":`, which a file that is started meets."""
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)
