"""What the outputs of commands are given in place of a new file, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from tests.errors.base import TOKENS
from tests.hostile.scene import WRITERS, Writer
from tests.hostile.situations import REFUSED, USUAL, Situation


def _targets() -> Iterator[Situation]:
    """Every output of every command, given what it may not write, and names that are strange and good."""

    def crowded(folder: Path) -> None:
        (folder / "folder").mkdir()
        os.mkfifo(folder / "pipe")
        (folder / "link").symlink_to("recipe.yaml")
        (folder / "dangling").symlink_to("nowhere")
        (folder / "circle").symlink_to("circle")
        (folder / "again").symlink_to(".")

    for name, writer in WRITERS.items():
        bad = ["folder", "pipe", "link", "dangling", "circle", "", ".", "..", "nowhere/new", "recipe.yaml/new"]
        bad += ["/dev/null", "/dev/full", "/dev/stderr", "/dev/fd/1", "/proc/self/mem", "n" * 300, "n" * 5000]
        bad += [spelling for file in writer.inputs for spelling in (file, f"./{file}", f"again/{file}")]
        bad += [] if writer.printable else ["-", "/dev/stdout"]
        for target in bad:
            shown = target if len(target) < 100 else f"a name of {len(target)}"
            yield Situation(name=f"{name} to {shown!r}", command=writer.to(target), codes=REFUSED, prepare=crowded)
        for stem in ("new", "a\nb", "\x1b]0;owned\x07", "\u202egnp", "a b'c\"d", "-", "schön"):
            yield _strange(name, writer, stem)
        if writer.printable:
            for target in ("-", "/dev/stdout"):
                yield Situation(name=f"{name} to {target}", command=writer.to(target), codes=USUAL)
    twice = ("flips", "recipe.yaml", "--device", "cpu", "--json=x", "--map=again/x")
    yield Situation(name="flips to one file twice", command=twice, codes=REFUSED, prepare=crowded)
    mined = ("flips", "recipe.yaml", "--mine", TOKENS, "--device", "cpu", "--json=-", "--out=/dev/stdout")
    yield Situation(name="mine to standard output twice", command=mined, codes=REFUSED)


def _strange(name: str, writer: Writer, stem: str) -> Situation:
    file = stem + writer.ending
    outputs = writer.outputs(stem)
    return Situation(name=f"{name} to {file!r}", command=writer.to(file), codes=USUAL, outputs=outputs)


TARGETS: tuple[Situation, ...] = tuple(_targets())
