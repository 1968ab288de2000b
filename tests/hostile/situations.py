"""What a command may find around it, by name: streams, homes, folders, locales, limits, other runs at the same time."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from tests.hostile.contract import limit_memory
from tests.hostile.scene import WRITERS

NOBODY = 65534
Act = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A command in a folder that `prepare` has changed, run where `inside` has changed the process.

    `codes` are the exit codes that are right. `outputs` are the files that it may write, in the folder.
    """

    name: str
    command: tuple[str, ...]
    codes: frozenset[int]
    outputs: tuple[str, ...] = ()
    prepare: Act = nothing
    inside: Act = nothing
    at_once: int = 1
    heard: bool = True
    """Whether anybody reads its standard error."""


BISECT, METRICS = WRITERS["bisect"].to("report.json"), WRITERS["metrics"].to("report.json")
BROKEN = ("bisect", "broken.yaml", "--device", "cpu")
SPLIT = ("bisect", "split.yaml", "--device", "cpu", "--json=report.json")
USUAL = frozenset({0, 3})
"""Of commands that run: parity cannot be shown on so few sequences."""
REFUSED = frozenset({2})


def leave_root() -> None:
    """Go on as an unprivileged user, where the process is not that already."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)


def _owned_folder(folder: Path) -> Path:
    """A folder that who has left root may write to."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def _lock(folder: Path, mode: int = 0o555) -> Path:
    """A folder that who has left root may not write to, or with mode 0 not even look into."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)
    return folder


def _streams() -> Iterator[Situation]:
    """Each of the three streams as it is, closed, full or without a reader."""
    kinds = ("kept", "closed", "full", "unread")
    for read, out, errors in product(("kept", "closed"), kinds, kinds):
        streams = (read, out, errors)
        if streams == ("kept", "kept", "kept"):
            continue
        name = f"stdin {read}, stdout {out}, stderr {errors}"
        # What cannot be printed is no answer; the file is there all the same.
        codes = REFUSED if out == "full" else USUAL
        commands = {"metrics": (METRICS, codes), "broken recipe": (BROKEN, REFUSED)}
        if read == "kept":
            commands["bisect"] = (BISECT, codes)
        for command_name, (command, right) in commands.items():
            outputs = ("report.json",) if command[-1].startswith("--json") else ()
            yield Situation(
                name=f"{command_name}: {name}",
                command=command,
                codes=right,
                outputs=outputs,
                inside=_with_streams(streams),
                heard=errors == "kept",
            )


def _with_streams(streams: tuple[str, str, str]) -> Act:
    def change(_: Path) -> None:
        for number, kind in enumerate(streams):
            if kind == "closed":
                os.close(number)
            elif kind == "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), number)
            elif kind == "unread":
                reader, writer = os.pipe()
                os.close(reader)
                os.dup2(writer, number)
        # As Python begins: no stream where there is no descriptor.
        for number, (kind, name) in enumerate(zip(streams, ("stdin", "stdout", "stderr"), strict=True)):
            if number and kind != "kept":
                stream = None if kind == "closed" else open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
                setattr(sys, name, stream)

    return change


def _environment(name: str, prepare: Act = nothing, **variables: str | None) -> Iterator[Situation]:
    """As an unprivileged user with some variables; `{folder}` in them is the folder."""

    def inside(folder: Path) -> None:
        leave_root()
        for key, value in variables.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value.format(folder=folder)

    def everything(folder: Path) -> None:
        _owned_folder(folder / "mine")
        prepare(folder)

    for variable, words in {"split": SPLIT[:-1], "plot": WRITERS["metrics plot"].words[:-1]}.items():
        option = "--json=mine/report.json" if variable == "split" else "--plot=mine/report.svg"
        yield Situation(
            name=f"{name}: {variable}",
            command=(*words, option),
            codes=USUAL,
            outputs=(option.partition("=")[2],),
            prepare=everything,
            inside=inside,
        )


def _homes() -> Iterator[Situation]:
    def full(folder: Path) -> None:
        (folder / "cache").write_text("a file", "utf-8")
        (folder / "circle").symlink_to("circle")
        _lock(folder / "locked", 0)
        _lock(folder / "read-only")
        _owned_folder(folder / "open").chmod(0o777)

    for name, value in {
        "no HOME": None,
        "an empty HOME": "",
        "a relative HOME": "here",
        "another user's HOME": "{folder}/locked",
        "a HOME that is read-only": "{folder}/read-only",
        "a HOME that is not there": "/nowhere",
        "a HOME that is a file": "{folder}/cache",
        "a HOME that links to itself": "{folder}/circle",
    }.items():
        yield from _environment(name, full, HOME=value)
    for name, value in {
        "a file": "{folder}/cache",
        "a link to itself": "{folder}/circle",
        "another user's": "{folder}/locked/cache",
        "open to all": "{folder}/open",
        "a name too long": "{folder}/" + "n" * 5000,
        "a device": "/dev/null",
    }.items():
        yield from _environment(f"the cache is {name}", full, MOEPARITY_CACHE=value)
    for name, value in {
        "no TMPDIR": None,
        "a TMPDIR that is not there": "/nowhere",
        "an unwritable TMPDIR": "{folder}/locked",
        "a TMPDIR that is a file": "{folder}/cache",
    }.items():
        yield from _environment(name, full, TMPDIR=value, TEMP=None, TMP=None)


def _folders() -> Iterator[Situation]:
    """Commands of an unprivileged user in folders of others."""

    def theirs(folder: Path) -> None:
        _owned_folder(folder / "mine")
        _lock(folder / "read-only")
        _lock(folder / "locked", 0)
        (folder / "unread.yaml").write_text((folder / "recipe.yaml").read_text("utf-8"), "utf-8")
        (folder / "unread.yaml").chmod(0)
        _lock(folder)

    def unprivileged(_: Path) -> None:
        leave_root()

    def gone(folder: Path) -> None:
        (folder / "gone").mkdir()
        os.chdir(folder / "gone")
        (folder / "gone").rmdir()

    for name, writer in WRITERS.items():
        for place, right in (("mine", USUAL), ("read-only", REFUSED), ("locked", REFUSED), (".", REFUSED)):
            file = f"{place}/new{writer.ending}"
            outputs = writer.outputs("mine/new") if place == "mine" else ()
            yield Situation(
                name=f"{name} into {place} of a read-only folder",
                command=writer.to(file),
                codes=right,
                outputs=outputs,
                prepare=theirs,
                inside=unprivileged,
            )
    for command in (("bisect", "unread.yaml"), ("bisect", "locked/recipe.yaml"), ("metrics", "locked/log.jsonl")):
        yield Situation(
            name=f"{' '.join(command)} without rights",
            command=command,
            codes=REFUSED,
            prepare=theirs,
            inside=unprivileged,
        )
    for words in (("bisect", "recipe.yaml"), METRICS, ("show", "engines", "x.yaml")):
        yield Situation(name=f"{words[0]} in a folder that is gone", command=words, codes=REFUSED, inside=gone)

    def anew(folder: Path) -> None:
        gone(folder)
        _fresh(
            (
                "show",
                "ops",
            ),
            {},
        )(folder)

    yield Situation(
        name="a process begins in a folder that is gone",
        command=(
            "show",
            "ops",
        ),
        codes=REFUSED,
        inside=anew,
    )


def _limits() -> Iterator[Situation]:
    either = USUAL | REFUSED
    for command in (BISECT, SPLIT, METRICS, WRITERS["metrics plot"].to("report.svg")):
        output = command[-1].partition("=")[2]
        for size in (0, 100, 4096, 20_000):
            yield Situation(
                name=f"files of {size} bytes at most: {' '.join(command)}",
                command=command,
                codes=either,
                outputs=(output,),
                inside=_limit(resource.RLIMIT_FSIZE, size),
                # The streams of a trial are files too.
                heard=size > 0,
            )
        for more in (0, 1, 4, 16, 64, 256):
            yield Situation(
                name=f"{more} MiB of memory: {' '.join(command)}",
                command=command,
                codes=either,
                outputs=(output,),
                inside=lambda _, more=more: limit_memory(more * 2**20),  # type: ignore[misc]
            )
        for number in (3, 6, 12):
            yield Situation(
                name=f"{number} open files: {' '.join(command)}",
                command=command,
                codes=either,
                outputs=(output,),
                inside=_limit(resource.RLIMIT_NOFILE, number),
            )

    for mebibytes in (30, 60, 200, 300, 600, 800):
        yield Situation(
            name=f"a process of {mebibytes} MiB",
            command=BISECT,
            codes=either,
            outputs=("report.json",),
            inside=_small(mebibytes),
        )


def _small(mebibytes: int) -> Act:
    """As after `ulimit -v`. Between 400 and 500 MiB the C library ends a process that loads torch, with 127."""

    def change(folder: Path) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (mebibytes * 2**20,) * 2)
        _fresh(BISECT, {})(folder)

    return change


def _limit(resource_kind: int, most: int) -> Act:
    return lambda _: resource.setrlimit(resource_kind, (most, most))


def _locales() -> Iterator[Situation]:
    """In a process of its own: what Python takes for the encoding of names and streams is settled as it starts."""
    name = "schön → 模型"

    def write_files(folder: Path) -> None:
        for file in ("recipe.yaml", "broken.yaml", "log.jsonl"):
            (folder / f"{name}.{file}").write_bytes((folder / file).read_bytes())

    settings = {
        "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        "C as Python takes it": {"LC_ALL": "C"},
        "latin-1": {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"},
        "UTF-8": {"LC_ALL": "C.UTF-8"},
    }
    commands: tuple[tuple[tuple[str, ...], frozenset[int], tuple[str, ...]], ...] = (
        (("show", "plan", f"{name}.recipe.yaml"), USUAL, ()),
        (("bisect", f"{name}.broken.yaml"), REFUSED, ()),
        (("metrics", f"{name}.log.jsonl", f"--json={name}.json"), USUAL, (f"{name}.json",)),
    )
    for locale, variables in settings.items():
        for words, right, outputs in commands:
            yield Situation(
                name=f"{locale}: {words[0]}",
                command=words,
                codes=right,
                outputs=outputs,
                prepare=write_files,
                inside=_fresh(words, variables),
            )


def _fresh(words: tuple[str, ...], variables: dict[str, str]) -> Act:
    def run(_: Path) -> None:
        source = str(Path(__file__).parents[2])
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG"))}
        environment |= {"PYTHONPATH": source, **variables}
        os.execve(sys.executable, [sys.executable, "-m", "moeparity.cli", *words], environment)  # noqa: S606

    return run


def _at_once() -> Iterator[Situation]:
    for name, command in {"split": SPLIT, "metrics": METRICS, "bisect": BISECT}.items():
        for times in (2, 4):
            yield Situation(
                name=f"{times} at once: {name}", command=command, codes=USUAL, outputs=("report.json",), at_once=times
            )


SURROUNDINGS: tuple[Situation, ...] = (*_streams(), *_homes(), *_folders(), *_limits(), *_locales(), *_at_once())
