"""A command killed at a random moment or at a step of writing: what it leaves, and that it runs again to the same end.

By SIGKILL, after which nothing can be tidied up, or by SIGTERM, after which nothing but finished passes may be left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random

from moeparity.bisection.runs.file import LOCK, NAME
from moeparity.bisection.runs.results import read_report
from moeparity.bisection.runs.show import runs_below
from tests.hostile import scene
from tests.hostile.campaign import Trial
from tests.hostile.contract import Ended, breach, console, start
from tests.hostile.moments import Moment, signal_after, signal_at
from tests.hostile.scene import WRITERS

OLD = b"an older result\n"
KEPT = "kept"
"""The folder that a long run is kept in."""
JOBS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "split": (("bisect", "split.yaml", "--device", "cpu", "--json=report.json"), ("report.json",)),
    "bisect": (WRITERS["bisect"].to("report.json"), ("report.json",)),
    "check": (WRITERS["check"].to("report.xml"), ("report.xml",)),
    "forward": (WRITERS["forward"].to("logits.safetensors"), ("logits.safetensors",)),
    "flips": ((*WRITERS["flips map"].to("map.safetensors"), "--json=flips.json"), ("map.safetensors", "flips.json")),
    "mine": ((*WRITERS["mine out"].to("prompts.jsonl"), "--json=mined.json"), ("prompts.jsonl", "mined.json")),
    "plot": (WRITERS["metrics plot"].to("series.svg"), ("series.svg",)),
    "init": (WRITERS["init"].to("new.yaml"), ("new.yaml", "new.tokens.jsonl")),
    "kept": (("bisect", "split.yaml", "--device", "cpu", "--run=kept", "--json=report.json"), ("report.json",)),
    "long": (("bisect", "long.yaml", "--device", "cpu", "--run=kept", "--json=report.json"), ("report.json",)),
}
"""Commands, and the files that they write; the first keeps its passes in the cache, the last two in a run's folder."""
_WHOLE = (
    *(("tempfile", "mkstemp"), ("fcntl", "flock"), ("pathlib", "Path.write_text"), ("safetensors.torch", "save_file")),
    *(("pathlib", "Path.chmod"), ("pathlib", "Path.replace"), ("pathlib", "Path.unlink")),
)
_PASSES = (
    *(("moeparity.bisection.resume.pieces", name) for name in ("prepared", "PieceStore.save", "PieceStore.load")),
    *(("moeparity.bisection.resume.pieces", name) for name in ("Codec.encode", "PieceStore._sign", "write_tensors")),
    *(("moeparity.bisection.resume.cache", "_evict"), ("secrets", "token_bytes"), ("os", "link")),
    *(("shutil", "rmtree"), ("os", "rmdir"), ("os", "unlink")),
)
_AFTER_ONE = (
    *(("moeparity.bisection.resume.pieces", name) for name in ("Codec.encode", "PieceStore._sign", "write_tensors")),
    *(("moeparity.bisection.resume.pieces", "PieceStore.save"), ("shutil", "rmtree"), ("pathlib", "Path.replace")),
)
"""Of a run that has kept a pass: its second calls."""
_FOLDER = (
    *(("moeparity.bisection.runs.folder", name) for name in ("write_text", "write_whole", "RunFolder._write_file")),
    *(("moeparity.bisection.runs.folder", name) for name in ("RunFolder._tidy", "plan_record", "open_run")),
    *(("moeparity.bisection.runs.hold", "_lock_descriptor"), ("moeparity.bisection.resume.pieces", "PieceStore.save")),
)
"""Steps of writing a run's folder."""
WRITTEN = {"Path.write_text", "save_file", "write_tensors", "PieceStore.save", "write_text", "write_whole"}
_COST = re.compile(rb'time="[0-9.]+"|"(\w*seconds|memory_\w+)": [0-9.e+-]+|[0-9.]+ (s|GB)\b')
"""What no two runs have in common: seconds, and the memory of a process."""


@dataclass(frozen=True, slots=True)
class Usual:
    """A command that nobody kills: how it ends, what it writes, and how many seconds it takes."""

    folder: Path
    home: Path
    code: int | None
    output: bytes
    files: dict[str, bytes]
    seconds: float
    untouched: scene.State
    kept_files: dict[str, bytes]


def try_kill(number: int) -> Iterator[Trial]:
    """The kill of this number, and the run after it: two trials."""
    random = Random(f"kills {number}")  # noqa: S311
    job = "split" if number % 3 else random.choice(list(JOBS)[1:-2])
    usual = _usual(job)
    sent = random.choice((signal.SIGKILL, signal.SIGTERM))
    moment = _moment(random, job, usual.seconds)
    older = random.random() < 0.5
    for name in JOBS[job][1]:
        if older:
            (usual.folder / name).write_bytes(OLD)
    ended = _killed(job, usual, moment, sent)
    pieces = len(list(usual.home.rglob("passes/*/[!.]*.safetensors")))
    when = str(moment) if isinstance(moment, Moment) else f"after {moment:.3f} s"
    case = f"kill {number}: {job}, {sent.name} {when}, {pieces} passes kept"
    first = _trial(case, job, ended, _after_kill(job, usual, ended, sent))
    yield replace(first, parts=("after a pass was kept",)) if pieces else first
    again = _run(job, usual)
    yield _trial(case, job, again, _after_rerun(job, usual, again))
    for name in JOBS[job][1]:
        (usual.folder / name).unlink(missing_ok=True)


def try_run_kill(number: int, job: str = "long") -> Iterator[Trial]:
    """A run in a folder of its own, killed by SIGKILL at a random moment (every fourth at a step of writing), one
    in three once more when it goes on, and then left alone.
    """
    random = Random(f"runs {number}")  # noqa: S311
    usual = _usual(job)
    for turn in range(1 + (random.random() < 1 / 3)):
        moment = _folder_moment(random) if number % 4 == 3 else random.uniform(0, usual.seconds)
        ended = _killed(job, usual, moment, signal.SIGKILL)
        pieces = len(list(usual.folder.rglob("kept/passes/*/[!.]*.safetensors")))
        when = str(moment) if isinstance(moment, Moment) else f"after {moment:.3f} s"
        case = f"kill {number}.{turn}: {job}, SIGKILL {when}, {pieces} pieces kept"
        trial = _trial(case, job, ended, _after_kill(job, usual, ended, signal.SIGKILL), kind="runs")
        yield replace(trial, parts=tuple(_parts(moment, ended, pieces)))
    again = _run(job, usual)
    yield _trial(case, job, again, _after_rerun(job, usual, again), kind="runs")
    shutil.rmtree(usual.folder / KEPT, ignore_errors=True)
    (usual.folder / "report.json").unlink(missing_ok=True)


def _parts(moment: Moment | float, ended: Ended, pieces: int) -> Iterator[str]:
    """What a kill is counted in: where it was sent, whether that was before the command had ended, and whether some
    pass was kept by then.
    """
    where = "at a step of writing" if isinstance(moment, Moment) else "at a random moment"
    yield where
    if ended.code == -signal.SIGKILL:
        yield f"{where}, in time"
    if pieces:
        yield "after a pass was kept"


def _folder_moment(random: Random) -> Moment:
    module, name = random.choice(_FOLDER)
    whens = ("before", "after", "midway") if name in WRITTEN else ("before", "after")
    return Moment(module, name, random.choice(whens), random.randint(1, 2))


@cache
def _places() -> tempfile.TemporaryDirectory[str]:
    """Where the commands run: it goes when the process does."""
    return tempfile.TemporaryDirectory()


@cache
def _usual(job: str) -> Usual:
    place = Path(_places().name) / job
    folder, home = place / "work", place / "home"
    home.mkdir(parents=True)
    scene.make(folder)
    untouched = scene.state(folder)
    usual = Usual(folder, home, None, b"", {}, 0.0, untouched, {})
    if "--run=kept" in JOBS[job][0]:
        # The first run of all compiles and maps what others find; a random moment is to lie in a usual one.
        _run(job, usual)
        shutil.rmtree(folder / KEPT)
    begun = time.monotonic()
    ended = _run(job, usual)
    seconds = time.monotonic() - begun
    assert ended.code in {0, 3}, ended.errors
    files = {name: _contents(folder / name) for name in JOBS[job][1]}
    pieces = _kept_files(folder)
    for name in files:
        (folder / name).unlink()
    shutil.rmtree(folder / KEPT, ignore_errors=True)
    return Usual(folder, home, ended.code, _printed(ended), files, seconds, untouched, pieces)


def _kept_files(folder: Path) -> dict[str, bytes]:
    """What a run's folder holds, but for what the run cost, when and in which process it ran."""
    pieces: dict[str, bytes] = {}
    for path in sorted(path for path in (folder / KEPT).rglob("*") if path.is_file()):
        name = str(path.relative_to(folder / KEPT))
        if name == NAME:
            data = json.loads(path.read_bytes())
            stable = {key: value for key, value in data.items() if key not in ("begun", "finished", "files")}
            pieces[name] = json.dumps([stable, sorted(data["files"])]).encode()
        elif path.suffix == ".safetensors":
            pieces[name] = _COST.sub(b"", read_report(folder / KEPT).to_json().encode())
        elif name != LOCK:
            pieces[name] = _contents(path)
    return pieces


def _contents(path: Path) -> bytes:
    """The bytes of a file, but for what a run cost."""
    return _COST.sub(b"", path.read_bytes())


def _printed(ended: Ended) -> bytes:
    return _COST.sub(b"", ended.output.encode())


def _below(usual: Usual) -> set[Path]:
    """The run's folder and all in it."""
    folder = usual.folder / KEPT
    return {folder, *folder.rglob("*")}


def _moment(random: Random, job: str, seconds: float) -> Moment | float:
    """A moment of 0 to `seconds`, or a step of writing; for a run that keeps passes mostly one after the first pass."""
    kind = random.random()
    if job == "split" and kind < 0.6:
        module, name = random.choice(_AFTER_ONE)
        first = name == "rmtree" or (name == "PieceStore.save" and random.random() < 0.5)
        when = random.choice(("before", "after", "midway")) if name in WRITTEN and not first else "before"
        delay = random.choice((0.0, random.uniform(0, seconds / 4)))
        return Moment(module, name, "after" if name == "PieceStore.save" else when, 1 if first else 2, delay)
    if kind < 0.8:
        return random.uniform(0, seconds)
    module, name = random.choice((*_WHOLE, *_PASSES) if job == "split" else _WHOLE)
    whens = ("before", "after", "midway") if name in WRITTEN else ("before", "after")
    return Moment(module, name, random.choice(whens), random.randint(1, 2))


def _run(job: str, usual: Usual, inside: Callable[[], object] = lambda: None) -> Ended:
    def change() -> None:
        os.environ["HOME"] = str(usual.home)
        for name in ("MOEPARITY_CACHE", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        inside()
        console()

    return start(JOBS[job][0], usual.folder, change).end()


def _killed(job: str, usual: Usual, moment: Moment | float, sent: signal.Signals) -> Ended:
    if isinstance(moment, Moment):
        return _run(job, usual, lambda: signal_at(moment, sent))
    return _run(job, usual, lambda: signal_after(moment, sent))


def _trial(case: str, job: str, ended: Ended, broken: str | None, *, kind: str = "kills") -> Trial:
    return Trial(kind, case, JOBS[job][0], ended.code, broken, (ended.errors.strip() or ended.output.strip())[-300:])


def _after_kill(job: str, usual: Usual, ended: Ended, sent: signal.Signals) -> str | None:
    """What a kill may not leave: an output that is neither the older nor whole; after SIGTERM anything but passes."""
    if ended.code not in {usual.code, -sent if sent == signal.SIGKILL else 128 + sent}:
        return f"exit code {ended.code}"
    if ended.code != -signal.SIGKILL and (broken := breach(ended)):
        return broken
    for name, whole in usual.files.items():
        path = usual.folder / name
        if path.exists() and _contents(path) not in {OLD, whole}:
            return f"{name} is half-written"
    if usual.kept_files and (broken := _listed(usual.folder)):
        return broken
    if sent == signal.SIGTERM:
        half = [path for place in (usual.folder, usual.home) for path in place.rglob(".moeparity-*")]
        return f"{half[0]} is left" if half else None
    return None


def _listed(folder: Path) -> str | None:
    """Why the list of runs would not be that of a run in whatever state; None where it is."""
    for row in runs_below(folder):
        if row.state not in ("finished", "unfinished"):
            return f"listed as {row.state}"
    return None


def _after_rerun(job: str, usual: Usual, ended: Ended) -> str | None:
    """What has to be as if nobody had killed it: the exit code, what is printed, the bytes of files, nothing else."""
    if ended.code != usual.code:
        return f"run again, exit code {ended.code}"
    for name, whole in usual.files.items():
        if _contents(usual.folder / name) != whole:
            return f"run again, other bytes in {name}"
    if _kept_files(usual.folder) != usual.kept_files:
        return "run again, the run's folder holds something else"
    outputs = [usual.folder / name for name in usual.files]
    beside = {name: data for name, data in scene.state(usual.folder).items() if Path(name) not in _below(usual)}
    broken = breach(ended) or scene.difference(usual.untouched, beside, outputs)
    broken = broken or scene.leavings(usual.home)
    if broken is None and _printed(ended) != usual.output:
        return "run again, it prints something else"
    return broken and f"run again, {broken}"
