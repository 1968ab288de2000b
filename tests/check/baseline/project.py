"""A project with one recipe and its lock: what tests of the lock start from."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.command import Done, inside
from tests.errors.base import BASE, TOKENS

RECIPE = """kind: recipe
checkpoint: model
tokens: {file: tokens.safetensors, sampled_from: candidate}
reference: {profile: hf-eager}
candidate: {profile: ./server.yaml}
gate: {metric: k3, below: 1e-4}
expect: {verdict: inconclusive}
"""
PROFILE = """kind: profile
name: server
extends: hf-default
rules:
  - {op: combine, set: {accumulate: fp32}, evidence: {level: read, source: "server 1.0, combine.py"}}
"""


@dataclass(frozen=True)
class Project:
    """A folder as a user has it."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Project:
        """With the tiny checkpoint, a profile of its own and one recipe; no lock yet."""
        (folder / "model").mkdir(parents=True)
        for path in BASE.iterdir():
            if path.name not in {TOKENS, "recipe.yaml"}:
                shutil.copy(path, folder / "model")
        shutil.copy(BASE / TOKENS, folder)
        project = cls(folder)
        project.write("server.yaml", PROFILE)
        project.write("a.parity.yaml", RECIPE)
        return project

    @property
    def lock(self) -> Path:
        """The lock."""
        return self.folder / "parity.lock.json"

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        (self.folder / name).write_text(text, "utf-8")

    def change(self, name: str, *pairs: tuple[str, str]) -> None:
        """Replace text that is there."""
        text = (self.folder / name).read_text("utf-8")
        for old, new in pairs:
            assert old in text
            text = text.replace(old, new)
        self.write(name, text)

    def read_lock(self) -> dict[str, Any]:
        """What the lock holds."""
        lock: dict[str, Any] = json.loads(self.lock.read_text("utf-8"))
        return lock

    def keep(self, lock: dict[str, Any]) -> None:
        """Write the lock by hand."""
        self.lock.write_text(json.dumps(lock, indent=1), "utf-8")

    def check(self, *words: str, recipes: tuple[str, ...] = ("a.parity.yaml",)) -> Done:
        """`moeparity check RECIPES --baseline parity.lock.json WORDS`, there."""
        options = ("--baseline", self.lock.name, "--device", "cpu", *words)
        return inside("check", *recipes, *options, cwd=self.folder)


def findings(done: Done) -> list[str]:
    """Every finding on a line of its own, blanks made one; those that are met are left out."""
    rows: list[str] = []
    for line in done.stdout.splitlines()[1:-1]:
        if line.startswith(" ") and rows:
            rows[-1] += f" {line.strip()}"
        else:
            rows.append(" ".join(line.split()))
    return [row for row in rows if row.startswith(("FAIL", "not judged", "updated", "inconclusive"))]
