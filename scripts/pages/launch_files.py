"""What the launch files of the tests come to: read, resolved, noted, refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.report import Launch
from scripts.pages.page import ROOT

FILES = ROOT / "tests" / "profiles" / "launch" / "files"
HEAD = """# Launch files, and what is read of them

Written by `python -m scripts.pages launch-files` from `tests/profiles/launch/files/`: files of our own, with the
constructs of the frameworks' public examples. `tests/profiles/launch/expected.py` has the result of each, worked out by
hand, and a test compares. What a script hands to a program is held to bash itself
(`tests/profiles/launch/test_shell_words.py`), chains of `defaults:` to OmegaConf and hydra.

`docs/launch-files.md` says how they are read.

- **set**: options that the file sets and a profile or a placement depends on, with how many were read.
- **unresolved**: options whose value the file alone does not tell, with what stands there. They imply nothing.
- **noted**: what was not followed, or was taken for given.
- A file is **refused** where nothing can be said of it without guessing.

| file | engine | sides | set | unresolved | noted |
|---|---|---|---|---|---|
"""


def page(_: str = "") -> str:
    """The whole page."""
    files = sorted(path for path in FILES.rglob("*") if path.is_file())
    with chdir(FILES):
        rows = [_row(path.relative_to(FILES)) for path in files]
    return HEAD + "\n".join(rows) + "\n"


def _row(path: Path) -> str:
    try:
        launch = read(path)
    except SpecError as refusal:
        text = str(refusal).replace(f"{os.fspath(path)}: ", "").splitlines()
        says = text[0] if len(text) == 1 else text[-1]
        return f"| `{path}` | refused | {_cell(says.split(' Expected one of')[0])} | | | |"
    return f"| `{path}` | {launch.engine} | {' | '.join(_cell('; '.join(part)) for part in _parts(launch))} |"


def _parts(launch: Launch) -> Iterator[list[str]]:
    yield [f"{side.role}: {', '.join([f'`{side.variant}`', *side.further])}" for side in launch.sides]
    settings = [setting for setting in launch.settings if setting.given]
    yield [str(sum(not setting.value.startswith("unresolved: ") for setting in settings))]
    yield [
        f"`{s.name}`: {s.value.removeprefix('unresolved: ')}" for s in settings if s.value.startswith("unresolved: ")
    ]
    yield [f"{note.says} ({note.where})" for note in launch.notes]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
