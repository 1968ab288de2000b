"""A page that a program writes, or of which it writes the marked blocks."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- /generated -->)", re.DOTALL)
DAY = re.compile(r"\d{4}-\d\d-\d\d")
NUMBER = re.compile(r"[-+]?\d[\d.,e+%-]*")

Writer = Callable[[str], str]
"""From the text that stands there to the text that shall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A file below the repository's root and what writes it.

    `measured` pages hold figures of one machine and take long: they are written when they are named, and a check holds
    them to their words only. The others follow from the code, letter by letter.
    """

    path: str
    takes: str
    write: Writer
    measured: bool = False

    @property
    def file(self) -> Path:
        """Where it lies on this machine."""
        return ROOT / self.path

    def comparable(self, text: str) -> str:
        """What a check compares: of measured pages no number, and no line that names a day and so a machine."""
        if not self.measured:
            return text
        lines = [line for line in text.splitlines() if not DAY.search(line)]
        return "\n".join(re.sub(r" +|-{3,}", " ", NUMBER.sub("#", line)) for line in lines)


def blocks(writers: Mapping[str, Writer]) -> Writer:
    """A writer of the marked blocks of a page, by their names; what stands outside of them stays as it is."""

    def rewritten(text: str) -> str:
        names = {block[2] for block in BLOCK.finditer(text)}
        if names != set(writers):
            raise ValueError(f"the page has blocks {sorted(names)}, written are {sorted(writers)}")
        return BLOCK.sub(lambda block: f"{block[1]}{writers[block[2]](block[3]).rstrip()}\n{block[4]}", text)

    return rewritten


def printed(module: str, *arguments: str) -> Writer:
    """A writer of what a module prints."""

    def text(_: str) -> str:
        return _run([sys.executable, "-m", module, *arguments])

    return text


def put_out(module: str, *arguments: str, option: str = "--out") -> Writer:
    """A writer of what a module puts into the file that it is told, which holds what stands there."""

    def text(standing: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            out.write_text(standing, "utf-8")
            _run([sys.executable, "-m", module, *arguments, option, str(out)])
            return out.read_text("utf-8")

    return text


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(command)} failed; nothing was written.")
    return done.stdout
