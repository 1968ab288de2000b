"""Names that say nothing of what a variable, a field or a function is: pronouns, adjectives, participles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

WORDS = frozenset(
    {"own", "one", "other", "both", "what", "here", "now", "left"}
    | {"found", "given", "told", "named", "made", "said", "asked", "taken", "held", "kept", "seen", "known"}
)
"""A variable, an argument or a field is called by a noun: `own_orders`, `first`, `report`, `digest_of_node`; a function
by what it gives or does.
"""

ALLOWED = frozenset({("tests/engines/triton_kernels/interpreter.py", "other"), ("moeparity/ranks/holding.py", "kept")})
"""Files with a name that another project's interface prescribes, or that is a word of the glossary."""
KEYS = frozenset(
    {"moeparity/output/findings.py", "moeparity/profiles/fidelity.py", "moeparity/search/blame.py"}
    | {"benchmarks/planted/hidden.py", "benchmarks/planted/truth.py"}
)
"""Files whose fields are keys of JSON that is kept, as those of every `report.py` and `data.py` are."""

SCOPES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NAMING = frozenset({ast.ExceptHandler, ast.MatchAs, ast.MatchStar})
"""Nodes that bind their `name`, where they have one."""

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Module


def misnamed(file: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each variable, argument, field, function and attribute of a file that is called by such a word.

    `other` is the second operand of an operator's method, and `left` stands beside a `right`.
    """
    for scope, bound in _scopes(tree):
        names = {name for _, name in bound}
        are_keys = isinstance(scope, ast.ClassDef) and (file in KEYS or file.endswith(("/report.py", "/data.py")))
        for line, name in bound if not are_keys else ():
            word = name.lstrip("_")
            is_operand = name == "other" and getattr(scope, "name", "").endswith("__")
            is_side = word == "left" and "right" in names
            if word in WORDS and not is_operand and not is_side and (file, name) not in ALLOWED:
                yield line, name


def _scopes(scope: Scope) -> Iterator[tuple[Scope, list[tuple[int, str]]]]:
    """A module, function or class and those within it, each with the names that it binds."""
    inner: list[Scope] = []
    bound = sorted(set(_bound(scope, inner)))
    bound += [(node.lineno, node.name) for node in inner if isinstance(node, FUNCTIONS)]
    yield scope, bound
    for within in inner:
        yield from _scopes(within)


def _bound(scope: Scope, inner: list[Scope]) -> Iterator[tuple[int, str]]:
    """Lines and names that a scope binds, attributes of `self` too; scopes within it are put aside."""
    nodes = _children(scope)
    while nodes:
        node = nodes.pop()
        kind = node.__class__
        if kind in SCOPES:
            inner.append(node)
            continue
        if kind is ast.Name:
            if isinstance(node.ctx, ast.Store):
                yield node.lineno, node.id
            continue
        if kind is ast.Attribute and isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") == "self":
            yield node.lineno, node.attr
        elif kind is ast.arg:
            yield node.lineno, node.arg
        elif kind in NAMING and node.name:
            yield node.lineno, node.name
        elif kind is ast.alias and node.asname:
            yield node.lineno, node.asname
        nodes += _children(node)


def _children(node: ast.AST) -> list[Any]:
    """The nodes right below one, in half of the time of `ast.iter_child_nodes`."""
    children = []
    for field in node._fields:
        value = getattr(node, field, None)
        if value.__class__ is list:
            children += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            children.append(value)
    return children
