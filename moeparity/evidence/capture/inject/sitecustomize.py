"""Put in front of a program's path by `moeparity capture`: once torch is imported, its recording begins.

Python imports a module of this name when it starts. One that was there before is run in its place afterwards. Nothing
is imported here that a program might not want, least of all torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_HERE = str(Path(__file__).parent)


class _AfterTorch:
    """Lets torch be found as ever, by whoever asks and however often, and begins the capture once it was executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks of whatever may find a module."""
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                return self._followed(spec)
        return None

    def _followed(self, spec: ModuleSpec) -> ModuleSpec:
        """The same, whose loader tells when it has executed torch."""
        if spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_begin(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _begin()

        setattr(spec.loader, "exec_module", execute_and_begin)  # noqa: B010  only this spec's loader
        return spec


def _begin() -> None:
    """Begin the capture; where that can't be, say so, and let the program be."""
    try:
        _begun()
    except Exception as error:  # noqa: BLE001  the program goes on
        sys.stderr.write(f"moeparity capture: nothing is recorded here: {type(error).__name__}: {error}\n")


def _begun() -> None:
    try:
        from moeparity.evidence.capture.child import begin
    except ImportError:
        # The program runs in another environment than moeparity is installed in, and keeps its own path.
        before = list(sys.path)
        sys.path.append(os.environ["MOEPARITY_CAPTURE_SOURCE"])
        try:
            from moeparity.evidence.capture.child import begin
        finally:
            sys.path[:] = before
    begin(os.environ["MOEPARITY_CAPTURE"])


if "MOEPARITY_CAPTURE" in os.environ:
    if "torch" in sys.modules:  # by a .pth file
        _begin()
    else:
        sys.meta_path.insert(0, _AfterTorch())

sys.path[:] = [entry for entry in sys.path if entry != _HERE]
_module = sys.modules.pop("sitecustomize", None)
if importlib.util.find_spec("sitecustomize") is not None:
    importlib.import_module("sitecustomize")
elif _module is not None:
    sys.modules["sitecustomize"] = _module
