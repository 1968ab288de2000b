"""Modules that vLLM imports and its scheduler does not use, stood in for."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

NAMES: Final = ("xgrammar", "tvm_ffi", "outlines", "llguidance", "lmformatenforcer", "cv2", "mistral_common", "numba")


def stand_in() -> None:
    """From now on these modules can be imported."""
    sys.meta_path.insert(0, _StandIns())


class _StandIn(ModuleType):
    """A module that has every name, as an empty class."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (), {}))
        return vars(self)[name]


class _StandIns(MetaPathFinder, Loader):
    """Finds the modules that are stood in for."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _StandIn(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""
