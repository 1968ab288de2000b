"""A program of another project in a process of its own, which answers lines of words with JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.command import ROOT


class Answering:
    """A script of `tests/engines`, with packages in some folders; it says first what it has."""

    def __init__(self, script: str, subject: str, folders: Iterable[Path]) -> None:
        programs = (str(ROOT / "tests" / name) for name in ("uncollected.py", f"engines/{script}"))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", *programs, subject],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"},
        )
        self.greeting: Any = self._answer()

    def ask(self, words: Sequence[str]) -> Mapping[str, Any]:
        """What it says of a line of words."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(words)) + "\n")
        self._process.stdin.flush()
        answer: Mapping[str, Any] = self._answer()
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=30)
