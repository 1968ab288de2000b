"""One seed of one kind: its good files, one of them changed, and the commands that read it, held to the contract."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.hostile.contract import breach, run
from tests.hostile.mutations import mutate
from tests.hostile.second import false_pass
from tests.hostile.subjects import BISECT, SUBJECTS


@dataclass(frozen=True, slots=True)
class Trial:
    """A command and what was done to it: its exit code, what of the contract does not hold, and what it said last."""

    kind: str
    case: str
    command: tuple[str, ...]
    code: int | None
    breach: str | None
    says: str


def try_one(kind: str, seed: int, keep: Path | None = None) -> Iterator[Trial]:
    """The trials of a seed, one for each command; `keep` takes the folders of those that break the contract."""
    subject = SUBJECTS[kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subject.make(folder)
        random = Random(f"{kind} {seed}")  # noqa: S311
        changed = folder / subject.file
        changed.write_bytes(mutate(subject.file, changed.read_bytes(), random))
        for command in subject.commands:
            ended = run(command, folder)
            broken = breach(ended)
            if broken is None and ended.code == 0 and command == BISECT and kind not in {"recipe", "profile"}:
                reason = false_pass(folder)
                broken = None if reason is None else f"a false pass: {reason}"
            says = (ended.errors.strip() or ended.output.strip())[-300:]
            if broken is not None and keep is not None:
                shutil.copytree(folder, keep / f"{kind} {seed}", dirs_exist_ok=True)
            yield Trial(kind, f"seed {seed}", command, ended.code, broken, says)
