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
    """Lets torch be found as ever, and begins the capture when its import has ended."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks of whatever may find a module."""
        del path, target
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_begin(module: ModuleType) -> None:
            execute(module)
            _begin()

        setattr(spec.loader, "exec_module", execute_and_begin)  # noqa: B010  only this import's loader
        return spec


def _begin() -> None:
    try:
        from moeparity.evidence.capture.child import begin
    except ImportError:
        # The program runs in another environment than moeparity is installed in.
        sys.path.append(os.environ["MOEPARITY_CAPTURE_SOURCE"])
        from moeparity.evidence.capture.child import begin

    begin(os.environ["MOEPARITY_CAPTURE"])


if "MOEPARITY_CAPTURE" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())

sys.path[:] = [entry for entry in sys.path if entry != _HERE]
_module = sys.modules.pop("sitecustomize", None)
if importlib.util.find_spec("sitecustomize") is not None:
    importlib.import_module("sitecustomize")
elif _module is not None:
    sys.modules["sitecustomize"] = _module
