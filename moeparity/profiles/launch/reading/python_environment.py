"""The environment variables that a Python launch file sets: of its own process, and of the workers that ray starts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from moeparity.profiles.launch.reading.python_names import Names, is_main
from moeparity.profiles.launch.source import Entry, Note, Unresolved

_ENVIRON = "os.environ"
_SINGLE = (f"{_ENVIRON}.setdefault", "os.putenv", "os.environ.__setitem__")
_OF_ENGINES = ("vllm.envs", "sglang.srt.environ")
"""Modules whose attributes are an engine's variables."""
_UNREAD_NAMES = """
dotenv.load_dotenv load_dotenv exec runpy.run_path runpy.run_module modal.Secret.from_name modal.Secret.from_dotenv
"""
_UNREAD = frozenset(_UNREAD_NAMES.split())
"""What sets variables by files, code or secrets that are not read."""
_STARTS_WORKERS = ("init", "remote", "options")
"""Ray's functions that take an environment for workers among their keywords."""
_OF_WORKERS = {"runtime_env": "env_vars", "env_vars": ""}
"""By keyword, the key below which the variables of ray's workers stand."""


def variables(names: Names) -> tuple[tuple[Entry, ...], tuple[Note, ...]]:
    """The variables, and what sets some that cannot be read. One that is set under a condition is unresolved."""
    conditions = dict(_conditions(names.tree))
    entries: dict[str, Entry] = {}
    notes: list[Note] = []
    for node in ast.walk(names.tree):
        for setting in _set_by(node, names):
            if isinstance(setting, Note):
                notes.append(setting)
            else:
                entries[setting.name] = _under(setting, conditions.get(id(node), ""))
    return tuple(entries.values()), tuple(notes)


def _under(entry: Entry, condition: str) -> Entry:
    """A variable that is set only under a condition is not resolved."""
    is_decided = not condition or isinstance(entry.value, Unresolved)
    return entry if is_decided else replace(entry, value=Unresolved(f"{entry.value} if {condition}"))


def _conditions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every node inside of a branch or a loop, with what it depends on."""
    for branch in ast.walk(tree):
        if isinstance(branch, ast.If) and not is_main(branch):
            test = ast.unparse(branch.test)[:80]
            yield from ((id(node), test) for part in branch.body for node in ast.walk(part))
            yield from ((id(node), f"not ({test})") for part in branch.orelse for node in ast.walk(part))
        elif isinstance(branch, ast.For | ast.While | ast.Try | ast.Match):
            where = f"line {branch.lineno} comes to it"
            yield from ((id(node), where) for node in ast.walk(branch) if node is not branch)


def _set_by(node: ast.AST, names: Names) -> Iterator[Entry | Note]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and names.dotted(target.value) == _ENVIRON:
                yield _single(target.slice, node.value, node, names)
            elif names.dotted(target) == _ENVIRON:
                yield from _pairs(node.value, names)
            elif isinstance(target, ast.Attribute) and names.dotted(target.value) in _OF_ENGINES:
                value = Unresolved(f"{ast.unparse(node.value)[:60]} in this process, not in those that it spawns")
                yield Entry(name=target.attr, value=value, where=names.where(node))
    elif isinstance(node, ast.AugAssign) and names.dotted(node.target) == _ENVIRON:
        yield from _pairs(node.value, names)
    elif isinstance(node, ast.Call):
        yield from _called(node, names)


def _called(call: ast.Call, names: Names) -> Iterator[Entry | Note]:
    function, arguments = names.dotted(call.func), call.args
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    of_environ = bool(arguments) and names.dotted(arguments[0]) == _ENVIRON
    if (function in _SINGLE or method == "setenv") and len(arguments) > 1:
        yield _single(arguments[0], arguments[1], call, names)
    elif method == "setitem" and of_environ and len(arguments) > 2:
        yield _single(arguments[1], arguments[2], call, names)
    elif function == f"{_ENVIRON}.update":
        yield from _mapping(call, arguments, names)
    elif function.endswith("patch.dict") and (of_environ or names.value(arguments[0]) == _ENVIRON):
        yield from _mapping(call, arguments[1:], names)
    elif function == "modal.Secret.from_dict" or (method == "env" and _holds_pairs(arguments, names)):
        yield from _mapping(call, arguments, names)
    elif function in _UNREAD or function.rpartition(".")[2] == "load_dotenv":
        yield _open(call, names)
    for keyword in call.keywords:
        if keyword.arg in _OF_WORKERS:
            yield from _below(keyword.value, _OF_WORKERS[keyword.arg], names)
        elif keyword.arg is None and (method or function) in _STARTS_WORKERS:
            yield from _of_keywords(keyword.value, names)


def _mapping(call: ast.Call, arguments: list[ast.expr], names: Names) -> Iterator[Entry | Note]:
    """The pairs of mappings, and of a call's keywords."""
    for argument in arguments:
        yield from _pairs(argument, names)
    yield from _keywords(call, names)


def _holds_pairs(arguments: list[ast.expr], names: Names) -> bool:
    """Whether the first argument may be a mapping of variables: it is no constant."""
    return bool(arguments) and not isinstance(names.expression(arguments[0]), ast.Constant)


def _of_keywords(node: ast.expr, names: Names) -> Iterator[Entry | Note]:
    """The variables of workers in what is handed on as `**mapping`."""
    node = names.expression(node)
    if not isinstance(node, ast.Dict):
        # A call of `dict` is met as a call of its own.
        if not (isinstance(node, ast.Call) and names.dotted(node.func) == "dict"):
            yield _open(node, names)
        return
    for key, value in zip(node.keys, node.values, strict=True):
        name = None if key is None else names.value(key)
        if key is None:
            yield from _of_keywords(value, names)
        elif isinstance(name, str) and name in _OF_WORKERS:
            yield from _below(value, _OF_WORKERS[name], names)


def _below(node: ast.expr, key: str, names: Names) -> Iterator[Entry | Note]:
    """The variables under `key` of a mapping that ray is given: a literal, `dict(...)` or `RuntimeEnv(...)`."""
    node = names.expression(node)
    if not key:
        yield from _pairs(node, names)
    elif isinstance(node, ast.Constant) and node.value is None:
        return
    elif isinstance(node, ast.Dict):
        for name, value in zip(node.keys, node.values, strict=True):
            if name is None:
                yield from _below(value, key, names)
            elif names.value(name) == key:
                yield from _pairs(value, names)
    elif isinstance(node, ast.Call) and names.dotted(node.func).rpartition(".")[2] in ("dict", "RuntimeEnv"):
        # Keywords of its own name are read where that call is met.
        for keyword in node.keywords:
            if keyword.arg is None:
                yield from _below(keyword.value, key, names)
    else:
        yield _open(node, names)


def _pairs(node: ast.expr, names: Names) -> Iterator[Entry | Note]:
    """The pairs of a mapping; what is not written out opens the environment."""
    node = names.expression(node)
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                yield from _pairs(value, names)
            else:
                yield _single(key, value, node, names)
    elif isinstance(node, ast.Call) and names.dotted(node.func) == "dict":
        for argument in node.args:
            yield from _pairs(argument, names)
        yield from _keywords(node, names)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _pairs(node.left, names)
        yield from _pairs(node.right, names)
    elif names.dotted(node) != _ENVIRON and not (
        isinstance(node, ast.Call) and names.dotted(node.func) == f"{_ENVIRON}.copy"
    ):
        yield _open(node, names)


def _keywords(call: ast.Call, names: Names) -> Iterator[Entry | Note]:
    for keyword in call.keywords:
        if keyword.arg is None:
            yield from _pairs(keyword.value, names)
        else:
            yield Entry(name=keyword.arg, value=names.resolved(keyword.value), where=names.where(keyword.value))


def _single(key: ast.expr, value: ast.expr, node: ast.AST, names: Names) -> Entry | Note:
    name = names.value(key)
    return (
        Entry(name=name, value=names.resolved(value), where=names.where(key))
        if isinstance(name, str)
        else _open(node, names)
    )


def _open(node: ast.AST, names: Names) -> Note:
    text = ast.unparse(node)
    says = f"`{text if len(text) <= 60 else text[:57] + '...'}` sets environment variables that are not known"
    return Note(says=says, where=names.where(node), opens="environment")
