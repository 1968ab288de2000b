"""Seeds of one kind: its good files, one of them changed, and the commands that read it, held to the contract.

Many are tried in one process. What breaks the contract there is tried again in a process of its own, and so is one in
`AGAIN`, which has to end alike: what an input leaves behind in a process would be a finding.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from tests.hostile.batch import Job, nothing, run_all
from tests.hostile.contract import Ended, breach, run
from tests.hostile.mutations import mutate
from tests.hostile.second import false_passes
from tests.hostile.subjects import BISECT, SUBJECTS

AGAIN = 200
"""One in so many seeds is tried alone, too."""
COST = re.compile(r"[0-9.]+ (s|GB)\b")
"""What no two runs have in common."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A command and what was done to it: its exit code, what of the contract does not hold, what it said last, and the
    parts of its kind that it is counted in.
    """

    kind: str
    case: str
    command: tuple[str, ...]
    code: int | None
    breach: str | None
    says: str
    parts: tuple[str, ...] = ()


def lay_out(kind: str, seed: int, folder: Path) -> None:
    """The files of a kind, one of them changed by the seed."""
    subject = SUBJECTS[kind]
    folder.mkdir(exist_ok=True)
    subject.make(folder)
    changed = folder / subject.file
    changed.write_bytes(mutate(subject.file, changed.read_bytes(), Random(f"{kind} {seed}")))  # noqa: S311


def try_one(kind: str, seed: int, keep: Path | None = None) -> Iterator[Trial]:
    """The trials of a seed, one for each command, each in a process of its own; `keep` takes the folders of those that
    break the contract.
    """
    yield from _alone(kind, seed, keep, [None] * len(SUBJECTS[kind].commands))


def try_many(kind: str, seeds: Iterable[int], keep: Path | None = None) -> Iterator[Trial]:
    """As `try_one` of each seed, but that they share a process; passes are looked at once more in the end."""
    commands = SUBJECTS[kind].commands
    with tempfile.TemporaryDirectory() as name:
        folders = {seed: Path(name) / str(seed) for seed in seeds}
        jobs = [job for seed, folder in folders.items() for job in _jobs(kind, seed, folder)]
        answers = _by_seed(run_all(jobs), len(commands))
        passed: list[tuple[int, tuple[Ended, ...]]] = []
        for (seed, folder), together in zip(folders.items(), answers, strict=True):
            if any(map(breach, together)) or seed % AGAIN == 0:
                yield from _alone(kind, seed, keep, together)
            elif any(map(_claims_parity, commands, together)):
                passed.append((seed, together))
                continue
            else:
                yield from (_trial(kind, seed, *each, None) for each in zip(commands, together, strict=True))
            shutil.rmtree(folder)
        reasons = false_passes([folders[seed] for seed, _ in passed])
        for (seed, together), reason in zip(passed, reasons, strict=True):
            if reason is not None and keep is not None:
                shutil.copytree(folders[seed], keep / f"{kind} {seed}", dirs_exist_ok=True)
            for command, ended in zip(commands, together, strict=True):
                broken = reason if _claims_parity(command, ended) else None
                yield _trial(kind, seed, command, ended, broken)


def _by_seed(answers: Iterable[Ended], commands: int) -> Iterator[tuple[Ended, ...]]:
    """How all commands of a seed ended, seed by seed."""
    return zip(*[iter(answers)] * commands, strict=True)


def _jobs(kind: str, seed: int, folder: Path) -> Iterator[Job]:
    """The commands of a seed, of which the first finds its files."""
    subject = SUBJECTS[kind]
    for number, command in enumerate(subject.commands):
        yield Job(folder, command, nothing if number else partial(lay_out, kind, seed, folder), subject.act)


def _alone(kind: str, seed: int, keep: Path | None, together: Sequence[Ended | None]) -> Iterator[Trial]:
    """The trials of a seed in processes of their own; one that ended otherwise beside others is broken."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(kind, seed, folder)
        for command, before in zip(SUBJECTS[kind].commands, together, strict=True):
            ended = run(command, folder, SUBJECTS[kind].act)
            broken = breach(ended)
            if broken is None and _claims_parity(command, ended):
                (broken,) = false_passes([folder])
            if broken is None and before is not None:
                broken = _other_alone(before, ended)
            if broken is not None and keep is not None:
                shutil.copytree(folder, keep / f"{kind} {seed}", dirs_exist_ok=True)
            yield _trial(kind, seed, command, ended, broken)


def _other_alone(together: Ended, alone: Ended) -> str | None:
    """How a command ended otherwise beside others in one process; None where it did not."""
    if broken := breach(together):
        return f"only beside others: {broken}"
    texts = [COST.sub("", ended.output + ended.errors) for ended in (together, alone)]
    if together.code != alone.code or texts[0] != texts[1]:
        return f"beside others it ends with {together.code}: {(together.errors or together.output)[-300:]}"
    return None


def _claims_parity(command: tuple[str, ...], ended: Ended) -> bool:
    return command == BISECT and ended.code == 0


def _trial(kind: str, seed: int, command: tuple[str, ...], ended: Ended, broken: str | None) -> Trial:
    says = (ended.errors.strip() or ended.output.strip())[-300:]
    return Trial(kind, f"seed {seed}", command, ended.code, broken, says)
