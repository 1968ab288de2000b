"""A command in one of the situations there are: how it ended, what it wrote, whether it runs afterwards."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.command import inside
from tests.hostile import scene
from tests.hostile.campaign import Trial
from tests.hostile.contract import UNTOLD, Ended, Running, breach, console, start
from tests.hostile.scene import WRITERS
from tests.hostile.situations import SURROUNDINGS, USUAL, Act, Situation, nothing
from tests.hostile.targets import TARGETS

SITUATIONS: tuple[Situation, ...] = (*SURROUNDINGS, *TARGETS)


@cache
def warm_up() -> None:
    """Run every command once: who is not root any more may be unable to import what a command imports as it runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scene.make(folder)
        for writer in WRITERS.values():
            for file in (f"new{writer.ending}", "."):
                ended = inside(*writer.to(file), cwd=folder)
                assert ended.returncode in {0, 2, 3}, ended.stderr
        # The user's own module is another file in each folder.
        del sys.modules[Path(scene.MODULE).stem]
        sys.path.remove(str(folder))


def try_situation(number: int) -> Iterator[Trial]:
    """The trial of a situation, by its number; none beyond the last."""
    if number >= len(SITUATIONS):
        return
    warm_up()
    situation = SITUATIONS[number]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o711)
        folder, home = place / "work", place / "home"
        home.mkdir()
        scene.make(folder)
        situation.prepare(folder)
        outputs = [folder / output for output in situation.outputs]
        before = scene.state(folder)
        commands = [_start(situation, folder, home, situation.inside) for _ in range(situation.at_once)]
        answers = [command.end() for command in commands]
        changed = scene.difference(before, scene.state(folder), outputs) or scene.leavings(home)
        for ended in answers:
            yield _trial(situation, ended, _breach(situation, ended) or changed)
        if outputs:
            ended = _start(situation, folder, home, nothing).end()
            broken = breach(ended) or _of_code(ended, USUAL)
            broken = broken or scene.difference(before, scene.state(folder), outputs) or scene.leavings(home)
            yield _trial(situation, ended, broken and f"run again, {broken}")


def _start(situation: Situation, folder: Path, home: Path, inside: Act) -> Running:
    def change() -> None:
        os.environ["HOME"] = str(home)
        for name in ("MOEPARITY_CACHE", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        inside(folder)
        console()

    return start(situation.command, folder, change)


def _breach(situation: Situation, ended: Ended) -> str | None:
    broken = breach(ended) or _of_code(ended, situation.codes)
    return None if broken == UNTOLD and not situation.heard else broken


def _of_code(ended: Ended, codes: frozenset[int]) -> str | None:
    return None if ended.code in codes else f"exit code {ended.code} in place of {sorted(codes)}"


def _trial(situation: Situation, ended: Ended, broken: str | None) -> Trial:
    says = (ended.errors.strip() or ended.output.strip())[-300:]
    return Trial("environment", situation.name, situation.command, ended.code, broken, says)
