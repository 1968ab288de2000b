"""Single files of an engine imported by themselves: what they import besides is empty, and raises when it is used.

An engine's package imports its whole server, and with it CUDA libraries that are not here. A file of kernels needs
Triton, torch and a few files of its own engine. Those are named; every other module of the engine, and every package
that is not installed, is an empty one for the time of the import. Nothing that is measured is empty: once the imports
are over, calling what came of an empty module is an error.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.engines.live import FOLDER

ROOTS = {"vllm": FOLDER / "cuda" / "vllm" / "vllm-0.33.0", "sglang": FOLDER / "sglang",
         "transformer_engine": FOLDER / "transformer-engine", "tensorrt_llm": FOLDER / "tensorrt-llm"}  # fmt: skip
"""Where each engine's package lies."""

_open = [False]
_modules: set[str] = set()
"""Modules that are files of an engine, and the packages that they lie in."""


class _Nothing(type):
    """What an empty module has under any name: a class to derive from, a decorator that leaves a function as it is."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _open[0]:
            raise RuntimeError(f"{cls.__qualname__} is called, and was not imported: name its file in `engine`.")
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else cls

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __bool__(cls) -> bool:
        return False


def _nothing(name: str) -> Any:
    return _Nothing(name, (), {})


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return importlib.import_module(full) if full in _modules else _nothing(full)


class _Finder:
    """Files that were named, and empty modules for all else of an engine and for packages that are absent."""

    def __init__(self, files: Mapping[str, Path], absent: Sequence[str]) -> None:
        self.files, self.absent = files, absent

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        if name in self.files:
            return importlib.util.spec_from_file_location(name, self.files[name])
        if top in ROOTS or top in self.absent:
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []


@contextmanager
def engine(files: Sequence[str], *, values: Mapping[str, Mapping[str, Any]], absent: Sequence[str]) -> Iterator[None]:
    """For the imports inside: `files` are modules taken as they are, `values` what some modules hold, `absent`
    packages that are not installed.
    """
    paths = {name: ROOTS[name.partition(".")[0]].joinpath(*name.split(".")).with_suffix(".py") for name in files}
    missing = [str(path) for path in paths.values() if not path.exists()]
    if missing:
        raise FileNotFoundError(", ".join(missing))
    for name in (*files, *values):
        parts = name.split(".")
        _modules.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    for name, value in values.items():
        module = _Empty(name)
        module.__dict__.update(value, __path__=[])
        sys.modules[name] = module
    finder = _Finder(paths, absent)
    sys.meta_path.insert(0, finder)
    _open[0] = True
    try:
        yield
    finally:
        _open[0] = False
        sys.meta_path.remove(finder)
