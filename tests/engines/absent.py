"""Packages that another project imports and that take no part in what is measured: empty ones in their stead.

Inside `left_out` the named packages, where they are not installed, are modules in which every name is a `Nothing`: a
class to derive from, a decorator that leaves a function as it is, a constant. Afterwards a `Nothing` that is called
raises, so that nothing measured can be one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Names(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Nothing(metaclass=_Names):
    """What stands for every name of a package that was left out."""

    importing = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if not Nothing.importing:
            raise RuntimeError(f"{cls.__name__} of a package that was left out is called")
        function = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if function else super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __init_subclass__(cls, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return Nothing(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __class_getitem__(cls, item: Any) -> Any:
        return cls

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing


class _Finder(MetaPathFinder, Loader):
    """Asked last, so that a package that is installed is itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)
        self.modules: list[str] = []

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        is_absent = name in self.names or name.partition(".")[0] in self.names
        return ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.modules.append(spec.name)
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Imports inside take the packages `names`, or modules of others (`package.module`), as empty where they are not
    installed; imports afterwards do not.
    """
    finder = _Finder(names)
    sys.meta_path.append(finder)
    Nothing.importing = True
    try:
        yield
    finally:
        Nothing.importing = False
        sys.meta_path.remove(finder)
        # Whoever asks for them later finds that they are not there.
        for name in finder.modules:
            del sys.modules[name]
