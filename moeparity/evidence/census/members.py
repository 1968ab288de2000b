"""What an object holds, read where Python keeps it: no property, `__getattr__` or `__iter__` of the object is run."""

from __future__ import annotations

import functools
import gc
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, Literal
from weakref import ReferenceType

import torch
from torch import nn

Sort = Literal[
    "atom", "tensor", "module", "mapping", "sequence", "function", "method", "partial", "referents", "object"
]

Member = tuple[str, Any]
"""A step of a path, such as `.scales` or `[3]`, and what lies there."""

_ATOMS = frozenset(
    {str, bytes, bytearray, int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented), type, range}
    | {ModuleType, CodeType, FrameType, ReferenceType, MemberDescriptorType, GetSetDescriptorType, property}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.Generator}
)
_REFERENTS = frozenset({type(functools.lru_cache(len)), deque, GeneratorType, MappingProxyType, CellType})
"""Types of C whose members only the garbage collector lists."""
_SORTS: tuple[tuple[type, Sort], ...] = (
    (torch.Tensor, "tensor"), (nn.Module, "module"), (dict, "mapping"), (list, "sequence"), (tuple, "sequence"),
    (set, "sequence"), (frozenset, "sequence"), (FunctionType, "function"), (MethodType, "method"),
    (BuiltinFunctionType, "method"), (functools.partial, "partial"),
)  # fmt: skip
_OUTSIDE = frozenset({"torch", "builtins", *sys.stdlib_module_names})
"""Modules whose classes hold no tensors of a program."""

_mro_of: Any = type.__dict__["__mro__"].__get__
_vars_of: Any = type.__dict__["__dict__"].__get__


@dataclass(frozen=True, slots=True)
class Layout:
    """Where objects of a class keep what they hold: the descriptor of their `__dict__`, and those of their slots."""

    sort: Sort
    bases: tuple[type, ...]
    dictionary: Any
    slots: tuple[tuple[str, Any], ...]


_layouts: dict[type, Layout] = {}


def layout_of(kind: type) -> Layout:
    """The layout of a class, of the classes that it descends from; isinstance would ask the class itself."""
    layout = _layouts.get(kind)
    if layout is None:
        layout = _layouts[kind] = _layout(kind)
    return layout


def _layout(kind: type) -> Layout:
    mro = _mro_of(kind)
    sort: Sort = "atom" if not _ATOMS.isdisjoint(mro) else "referents" if not _REFERENTS.isdisjoint(mro) else "object"
    if sort == "object":
        sort = next((sort for base, sort in _SORTS if base in mro), "object")
    dictionary: Any = None
    slots: dict[str, Any] = {}
    for base in mro:
        for name, entry in _vars_of(base).items():
            if name == "__dict__" and type(entry) in (GetSetDescriptorType, MemberDescriptorType):
                dictionary = dictionary or entry
            elif type(entry) is MemberDescriptorType and base.__flags__ & (1 << 9):  # a class of Python, not of C
                slots.setdefault(name, entry)
    return Layout(sort, mro, dictionary, tuple(slots.items()))


def attributes(thing: Any) -> dict[str, Any]:
    """The `__dict__` of an object, itself; an empty one where it has none."""
    dictionary = layout_of(type(thing)).dictionary
    entries: Any = None if dictionary is None else dictionary.__get__(thing)
    return entries if type(entries) is dict else {}


def table(module: nn.Module, name: str) -> dict[str, Any]:
    """One of a module's tables, `_parameters`, `_buffers` or `_modules`; an empty one where it is kept elsewhere, as
    TorchScript does.
    """
    entries = attributes(module).get(name)
    return entries if isinstance(entries, dict) else {}


def submodules(root: nn.Module) -> Iterator[nn.Module]:
    """A module and those registered below it, each once."""
    pending, met = [root], {id(root)}
    while pending:
        module = pending.pop()
        yield module
        for child in list(dict.values(table(module, "_modules"))):
            if layout_of(type(child)).sort == "module" and id(child) not in met:
                met.add(id(child))
                pending.append(child)


def members(thing: Any) -> Iterator[Member]:
    """What an object holds, each with the step that leads there from it; of a tensor its attributes only."""
    layout = layout_of(type(thing))
    if layout.sort == "mapping":
        if gc.is_tracked(thing):  # one of plain keys and values is not
            yield from ((f"[{key_in_words(key)}]", value) for key, value in list(dict.items(thing)))
    elif layout.sort == "sequence":
        yield from _elements(thing, layout.bases)
    elif layout.sort == "function":
        yield from _of_function(thing)
    elif layout.sort == "method":
        yield ".self", thing.__self__
        yield ".function", getattr(thing, "__func__", None)
    elif layout.sort == "partial":
        yield ".function", functools.partial.func.__get__(thing)
        yield from ((f".args[{at}]", value) for at, value in enumerate(functools.partial.args.__get__(thing)))
        keywords = functools.partial.keywords.__get__(thing)
        yield from ((f".keywords[{key_in_words(name)}]", value) for name, value in keywords.items())
    elif layout.sort == "referents":
        yield from ((f"<{at}>", value) for at, value in enumerate(gc.get_referents(thing)))
    yield from ((f".{name}", value) for name, value in list(attributes(thing).items()))
    for name, slot in layout.slots:
        try:
            yield f".{name}", slot.__get__(thing)
        except AttributeError:  # nothing was put there
            continue


def _elements(thing: Any, bases: tuple[type, ...]) -> Iterator[Member]:
    base: Any = next(kind for kind in (list, tuple, set, frozenset) if kind in bases)
    values = list(base.__iter__(thing))
    if not all(layout_of(kind).sort == "atom" for kind in set(map(type, values))):
        yield from ((f"[{at}]", value) for at, value in enumerate(values))


def _of_function(function: FunctionType) -> Iterator[Member]:
    """Its closure, its defaults, and those globals that its code names and that may be workspaces."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".closure[{name}]", cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for at, value in enumerate(function.__defaults__ or ()):
        yield f".defaults[{at}]", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f".defaults[{name}]", value
    names = function.__globals__
    for name in function.__code__.co_names:
        if name in names and is_workspace(names[name]):
            yield f".globals[{name}]", names[name]


def is_workspace(value: Any) -> bool:
    """Whether a global may hold tensors for those who name it: a tensor, a container, an object of the program."""
    layout = layout_of(type(value))
    if layout.sort == "object":
        return not of_libraries(type(value))
    return layout.sort in ("tensor", "mapping", "sequence", "partial")


def of_libraries(kind: type) -> bool:
    """Whether a class is torch's or of Python's own modules."""
    module = _vars_of(kind).get("__module__")
    return type(module) is str and module.partition(".")[0] in _OUTSIDE


def class_members(kind: type) -> Iterator[Member]:
    """What the classes of an object hold for all their objects: tensors, containers, and what their functions hold."""
    for base in layout_of(kind).bases:
        if of_libraries(base):
            continue
        for name, entry in list(_vars_of(base).items()):
            value = entry.__func__ if type(entry) in (staticmethod, classmethod) else entry
            sort = layout_of(type(value)).sort
            if sort in ("tensor", "mapping", "sequence", "partial", "referents", "function"):
                yield f"{base.__name__}.{name}", value


def key_in_words(key: Any) -> str:
    """The key of a dictionary in a path; of keys that are no plain values only their class."""
    if type(key) is str and key.isidentifier():
        return key
    return repr(key) if type(key) in (str, int, bool, float, type(None)) else f"<{type(key).__name__}>"
