"""`run.json`, a run folder's description of itself: what ran, where, how far it is, and digests of its files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from moeparity import paths
from moeparity.errors import RunError, Where, display_path

SCHEMA = "moeparity.run"
VERSION = 1
"""The number grows if a field changes its meaning or goes; new fields may appear without that."""
NAME, LOCK = "run.json", ".moeparity.lock"
RECIPE, PLAN, REPORT = "recipe.yaml", "plan.json", "report.json"

RunKind = Literal["bisect", "sweep", "flips", "mine"]


class Outcome(BaseModel):
    """How a finished run ended: its exit code and, if it has a verdict, that and the gate's metric."""

    exit_code: int
    verdict: str | None = None
    metric: str | None = None
    value: float | str | None = None


class RunFile(BaseModel):
    """The contents of `run.json`. Times are ISO 8601 in UTC; `finished` is None until everything is kept.

    parts: hashes of everything that decides the result on this machine. environment: machine and versions in words.
    result: the file from which the result is read back. files: SHA-256 of the kept files by their path in the folder.
    """

    model_config = ConfigDict(extra="ignore")

    kind: RunKind
    recipe: str
    request: dict[str, Any]
    parts: dict[str, str]
    environment: dict[str, str]
    begun: str
    finished: str | None = None
    outcome: Outcome | None = None
    result: str | None = None
    files: dict[str, str] = {}

    def text(self) -> str:
        """The file's contents."""
        return json.dumps({"schema": f"{SCHEMA}/{VERSION}", **self.model_dump()}, indent=1, allow_nan=False)


def read_run(folder: Path) -> RunFile:
    """The description of the run in a folder.

    Raises RunError if the folder does not exist, is not a run's, is damaged, or was written by a newer moeparity.
    """
    path = folder / NAME
    if not paths.is_folder(folder):
        raise RunError(f"{Where(folder)}: there is no such folder; expected one that --run has written.")
    if not paths.present(path):
        raise RunError(f"{Where(folder)}: no run is kept there: it has no {NAME}. Name a folder that --run wrote.")
    try:
        data = json.loads(paths.contents(path, "run.json"))
        schema, _, version = str(data["schema"]).rpartition("/")
        number = int(version)
    except OSError as error:
        raise RunError(f"{Where(path)}: cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path, "it is no JSON object with a schema") from None
    if schema != SCHEMA:
        raise RunError(f"{Where(path)}: it is no run's: its schema is {data['schema']!r}, not {SCHEMA}/{VERSION}.")
    if number > VERSION:
        raise RunError(
            f"{Where(path)}: a newer moeparity wrote it (schema {data['schema']}; this one reads up to "
            f"{SCHEMA}/{VERSION}). Use that one."
        )
    try:
        return RunFile.model_validate(data, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def kept_bytes(folder: Path, run: RunFile, name: str) -> bytes:
    """The bytes of a kept file. Raises RunError if it is missing or has changed."""
    path = folder / name
    try:
        data = paths.contents(path, "file of a run")
    except OSError as error:
        raise RunError(
            f"{Where(path)}: cannot be read: {error.strerror}. The run kept it; restore it, or run it again in a new "
            "folder."
        ) from None
    if hashlib.sha256(data).hexdigest() != run.files.get(name):
        raise _damaged(path, f"it is not what the run wrote, going by {NAME}")
    return data


def _damaged(path: Path, reason: str) -> RunError:
    return RunError(
        f"{Where(path)}: damaged: {reason}. Nothing was changed; restore the file, or run it again in a new folder."
    )


def finished_run(folder: Path) -> RunFile:
    """The description of a finished run, as `read_run` gives it. Raises RunError also for one that is not finished."""
    run = read_run(folder)
    if run.finished is None or run.result is None:
        raise RunError(
            f"{Where(folder)}: the run of {run.recipe} is not finished. The command that began it goes on with it: "
            f"moeparity {run.kind} {run.recipe} --run {display_path(folder)}"
        )
    return run
