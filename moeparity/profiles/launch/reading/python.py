"""Engines made in Python: calls such as `LLM(...)` and `sgl.Engine(...)`, read from the syntax tree and never run."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from moeparity.errors import SpecError, Where
from moeparity.profiles.launch.source import Entry, Note, Source, Unresolved

CALLS = {
    "vllm": ("LLM", "EngineArgs", "AsyncEngineArgs"),
    "sglang": ("Engine", "ServerArgs", "Runtime"),
    "trl": ("GRPOConfig", "RLOOConfig", "OnlineDPOConfig"),
}
"""By package, what takes an engine's options as keywords."""
_LONGEST = 100_000
"""Letters of one value."""
_DEEPEST = 40


@dataclass(frozen=True, slots=True)
class _Missing:
    """A value that only a run would tell."""


class _Reader:
    """One file: what its names stand for, where each is bound once."""

    def __init__(self, tree: ast.Module, path: Path) -> None:
        self.tree, self.path = tree, path
        self.notes: list[Note] = []
        self.imported = dict(_imports(tree))
        self.bound = _bound(tree)

    def where(self, node: ast.AST) -> Where:
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

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value of an expression of constants and names bound once."""
        if depth > _DEEPEST:
            return _Missing()
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str | int | float | bool | None) else _Missing()
        if isinstance(node, ast.Name):
            bound = self.bound.get(node.id)
            return self.value(bound, depth + 1) if bound is not None else _Missing()
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self.value(node.operand, depth + 1)
            return -number if isinstance(number, int | float) else _Missing()
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        if isinstance(node, ast.List | ast.Tuple):
            items = [self.value(item, depth + 1) for item in node.elts]
            return _Missing() if any(isinstance(item, _Missing) for item in items) else items
        if isinstance(node, ast.Dict):
            return self._dictionary(node, depth)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
            pairs = {key.arg: self.value(key.value, depth + 1) for key in node.keywords}
            return _Missing() if None in pairs else pairs
        return _Missing()

    def _dictionary(self, node: ast.Dict, depth: int) -> Any:
        pairs: dict[str, Any] = {}
        for key, item in zip(node.keys, node.values, strict=True):
            name = self.value(key, depth + 1) if key is not None else _Missing()
            if not isinstance(name, str):
                return _Missing()
            pairs[name] = self.value(item, depth + 1)
        return pairs

    def resolved(self, node: ast.expr) -> Any:
        """The value as an option's: what only a run would tell is unresolved."""
        value = self.value(node)
        return Unresolved(ast.unparse(node)[:200]) if _missing(value) or len(repr(value)) > _LONGEST else value


def _missing(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_missing, value.values()))
    return isinstance(value, _Missing)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.asname or name.name.partition(".")[0], name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)


def _bound(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that are assigned exactly once in the file, outside of loops and branches, and never changed."""
    stores = Counter(name for node in ast.walk(tree) for name in _stored(node))
    return {name: value for name, value in _assigned(tree.body) if stores[name] == 1}


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
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.With) or _is_main(node):
            yield from _assigned(node.body)


def _is_main(node: ast.stmt) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def of_python(text: str, path: Path) -> list[Source]:
    """A source for every engine that a file makes. Raises SpecError where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text)
        reader = _Reader(tree, path)
        environment = tuple(_environment(reader))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        sources = [source for call in calls if (source := _source(reader, call, environment)) is not None]
    except SyntaxError as error:
        where = Where(path, error.lineno)
        raise SpecError(f"{where}: is no Python: {error.msg}. Correct it, or give the command line.") from None
    except (ValueError, RecursionError, MemoryError):
        raise SpecError(f"{Where(path)}: is no Python that can be read: nested too deeply, or a NUL in it.") from None
    return sources


def _environment(reader: _Reader) -> Iterator[Entry]:
    """`os.environ["NAME"] = "value"`, and `setdefault`."""
    for node in ast.walk(reader.tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target, value = node.targets[0], node.value
            name = reader.value(target.slice)
            if ast.unparse(target.value) == "os.environ" and isinstance(name, str):
                yield Entry(name=name, value=reader.resolved(value), where=reader.where(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "os.environ.setdefault" and len(node.args) == 2:
            name = reader.value(node.args[0])
            if isinstance(name, str):
                yield Entry(name=name, value=reader.resolved(node.args[1]), where=reader.where(node))


def _source(reader: _Reader, call: ast.Call, environment: tuple[Entry, ...]) -> Source | None:
    package, name = reader.qualified(call.func)
    if name not in CALLS.get(package, ()):
        return None
    notes: list[Note] = []
    entries: list[Entry] = []
    if call.args and name in ("LLM", "Engine"):
        entries.append(Entry(name="model", value=reader.resolved(call.args[0]), where=reader.where(call)))
    for keyword in call.keywords:
        where = reader.where(keyword)
        if keyword.arg is not None:
            entries.append(Entry(name=keyword.arg, value=_option(reader.resolved(keyword.value)), where=where))
            continue
        pairs = reader.value(keyword.value)
        if isinstance(pairs, Mapping) and not _missing(pairs):
            entries += [Entry(name=str(key), value=_option(value), where=where) for key, value in pairs.items()]
        else:
            says = f"`**{ast.unparse(keyword.value)[:60]}` is not resolved: what it sets is not known"
            notes.append(Note(says=says, where=where))
    return Source(
        path=reader.path,
        options=tuple(entries),
        environment=environment,
        command=(f"{package}.{name}",),
        notes=tuple(notes),
    )


def _option(value: Any) -> Any:
    """None is no bare flag here, but a value left out."""
    return "none" if value is None else value
