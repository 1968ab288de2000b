"""What the guides and the gallery print: the blocks of a page run behind each other in one folder that was made for it.

A block is named for what it shows of its command's output: `session` all of it, `top` what stands above the first blank
line, `part` the sections that `--section` asked for, and others by SECTIONS. `cat FILE` shows a file; `machine` is the
line that says where and when the page was made.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch

from moeparity.inputs.machine import cpu_name
from scripts.pages.page import BLOCK, ROOT, Writer

WIDTH = 96
ALWAYS = re.compile(r"Run\n|Schedule\n|On request|(PASS|FAIL|DONE|INCONCLUSIVE) |warning:")
"""What every report prints beside the sections that it was asked for, which `part` leaves out."""
SECTIONS = {
    "diagnosis": re.compile(r"Diagnosis of "),
    "groups": re.compile(r"By "),
    "metrics": re.compile(r"Metrics\n"),
    "schedule": re.compile(r"Schedule\n"),
    "toggles": re.compile(r"\d+ toggles\n"),
}
"""Of other blocks, how the part begins that they show."""
CUT = "[...]"

Make = Callable[[Path], None]


def path(make: Make | None = None) -> Writer:
    """A writer of a page's blocks, in a folder with the repository's recipes and checkpoints and what `make` adds."""

    def written(text: str) -> str:
        with tempfile.TemporaryDirectory() as place:
            folder = prepared(Path(place), make)
            return BLOCK.sub(lambda block: f"{block[1]}{shown(block[2], block[3], folder)}\n{block[4]}", text)

    return written


def prepared(folder: Path, make: Make | None) -> Path:
    """The folder with what the repository's root has of use in a command."""
    (folder / "recipes").symlink_to(ROOT / "recipes")
    shutil.copytree(ROOT / "checkpoints", folder / "checkpoints")
    if make is not None:
        make(folder)
    return folder


def command(block: str) -> str:
    """The command of a block: what stands after its prompt."""
    return block.partition("$ ")[2].partition("\n")[0]


def shown(name: str, block: str, folder: Path) -> str:
    """A block anew: its command, and what is to be seen of what it prints; or the machine and the day."""
    if name == "machine":
        return f"{cpu_name()}, torch {torch.__version__}, 1 thread, {datetime.now(UTC):%Y-%m-%d}."
    words = command(block)
    lines = excerpt(name, printed(shlex.split(words), folder))
    return "\n".join(["```", f"$ {words}", *lines, "```"])


def excerpt(name: str, text: str) -> list[str]:
    """The lines that a block of this name shows of an output."""
    if name == "session":
        return text.splitlines()
    head, *sections = text.rstrip().split("\n\n")
    if name == "top":
        return [*head.splitlines(), CUT]
    wanted = SECTIONS.get(name)
    paragraphs = [
        section
        for section in sections
        if (wanted is None and not ALWAYS.match(section)) or (wanted and wanted.match(section))
    ]
    if not paragraphs:
        sys.exit(f"nothing of the block `{name}` is in\n{text}")
    above = head.splitlines()[:2] if name in {"diagnosis", "metrics"} else []
    return [*above, CUT, *"\n\n".join(paragraphs).splitlines(), CUT]


def printed(words: list[str], folder: Path) -> str:
    """What a command prints; exits where it was refused."""
    if words[0] == "cat":
        return "\n".join((folder / name).read_text("utf-8").rstrip() for name in words[1:])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": str(WIDTH)}
    environment["MOEPARITY_CACHE"] = str(folder / ".cache")
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "moeparity.cli", *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode in {2, 70} or not done.stdout:
        sys.exit(f"{shlex.join(words)}\n{done.stderr}{done.stdout}")
    # Files of the repository are named from its root.
    return "\n".join(line.rstrip() for line in done.stdout.replace(f"{ROOT}/", "").splitlines())
