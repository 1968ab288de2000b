"""Programs captured for tests: modules, with whole tensors."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import moeparity


def recorded(folder: Path, **settings: Any) -> AbstractContextManager[Any]:
    """A capture of all modules, with their tensors whole and without stacks."""
    return moeparity.capture(folder, **{"level": "module", "save": "*", "stacks": False, "stats": False, **settings})
