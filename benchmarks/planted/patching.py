"""Functions of transformers compiled again from their source with a patch's changes. Free of moeparity."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.planted.patches import Patch


def patched(function: Callable[..., Any], source: str, patch: Patch) -> Callable[..., Any]:
    """A function compiled again from its source with a patch's changes. Raises ValueError where a line is not there."""
    for old, new in patch.changes:
        if old not in source:
            raise ValueError(f"{patch.name}: {old!r} is not in {function.__qualname__}")
        source = source.replace(old, new)
    namespace = dict(sys.modules[function.__module__].__dict__)
    exec(compile(source, f"<{patch.name}>", "exec"), namespace)  # noqa: S102 - text of this file
    compiled: Callable[..., Any] = namespace[function.__name__]
    return compiled


def source_of(owner: type | types.ModuleType, name: str) -> str:
    """The source of a function of a class or a module, without its decorators."""
    text = textwrap.dedent(inspect.getsource(owner))
    node = next(n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name)
    return textwrap.dedent("\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))


def patch_module(module: nn.Module, patch: Patch) -> None:
    """Change the forward of one module, and of no other of its class."""
    source = source_of(type(module), "forward")
    module.forward = types.MethodType(patched(type(module).forward, source, patch), module)
