"""The folder of one run: checked once that it is the same run, then written file by file, then finished."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from moeparity import paths
from moeparity.bisection.resume.codec import Codec
from moeparity.bisection.resume.fingerprint import joined, parts
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.bisection.runs.file import LOCK, NAME, PLAN, RECIPE, REPORT, Outcome, RunFile, RunKind, read_run
from moeparity.bisection.runs.hold import locked, utc_time
from moeparity.bisection.runs.surroundings import environment, plan_record
from moeparity.bisection.study import Study
from moeparity.errors import RunError, Where, display_path, listed
from moeparity.output.writing import write_text, write_whole
from moeparity.progress import Callback, on_interruption

_log = logging.getLogger("moeparity")
_WORDS = {
    "recipe": "the recipe, or an option that stands for a part of it",
    "sides": "the choices of a side",
    "oracle": "the oracle",
    "toggles": "the toggles",
    "tokens": "the tokens",
    "weights": "the weights",
    "graph": "the graph",
    "machine": "the machine or its settings",
    "source": "moeparity itself",
    "request": "what the command asks for",
}
"""The parts of a run's identity, in words."""
Piece = TypeVar("Piece")
POINT = "report"
"""The name under which the report of a bisection, or of a sweep's point, is kept."""
_SHARED = ("tokens", "weights", "graph", "machine", "source")
"""Parts of the identity that all points of a sweep have in common."""


class Result(Protocol):
    """The result of a command: a dataclass that has an exit code and writes itself as JSON."""

    @property
    def exit_code(self) -> int:
        """The exit code, as in docs/trust.md."""
        ...

    def to_json(self) -> str:
        """The report as strict JSON."""
        ...


class RunFolder:
    """A run's folder, while this process holds it."""

    def __init__(self, folder: Path, kind: RunKind, recipe: Path, request: Mapping[str, Any]) -> None:
        """Raises RunError for a folder that has anything in it and was not written by a run of this kind."""
        self.folder, self.kind, self.recipe, self.request = folder, kind, recipe, dict(request)
        self.file: RunFile | None = None
        self._fingerprint = ""
        self._piece: Path | None = None
        if paths.present(folder / NAME):
            self.file = read_run(folder)
        elif strange := sorted(path.name for path in folder.iterdir() if not _ours(path.name)):
            raise RunError(
                f"--run {Where(folder)}: it holds {strange[0]!r} and no {NAME}, so no run is kept there. Name a new "
                "folder."
            )
        if self.file is not None and self.file.kind != kind:
            raise RunError(f"--run {Where(folder)}: it holds a run of `{self.file.kind}`. Name another folder.")

    @property
    def finished(self) -> bool:
        """Whether everything of the run is kept; nothing is written after that."""
        return self.file is not None and self.file.finished is not None

    def admit(self, study: Study, progress: Callback | None = None, *, extra: Mapping[str, str] | None = None) -> None:
        """Begin the run of a study, or continue it. `extra`: hashes of whatever else decides the result.

        Raises RunError if the folder holds another run.
        """
        self._admit(study, {**parts(study), **(extra or {})}, progress)

    def admit_point(self, study: Study, point: str, progress: Callback | None = None) -> None:
        """As `admit`, for one of several points, whose studies differ."""
        of_study = parts(study)
        point_parts = joined({name: value for name, value in of_study.items() if name not in (*_SHARED, "functions")})
        self._admit(
            study, {name: of_study[name] for name in _SHARED} | {f"point {point}": point_parts}, progress, of_study
        )

    def pieces(self, codec: Codec) -> PieceStore:
        """The store for pieces of the study that was admitted last."""
        return PieceStore(self._fingerprint, codec, run=self.folder)

    def together(self, codec: Codec) -> PieceStore:
        """The store for what is made of all admitted studies together."""
        assert self.file is not None
        return PieceStore(joined(self.file.parts), codec, run=self.folder)

    def stored(self, pieces: PieceStore, name: str) -> Any | None:
        """What is kept under that name; None if nothing is.

        Raises RunError if a finished run does not have it, since a finished run computes nothing.
        """
        stored_result = pieces.load(name)
        if stored_result is None and self.finished:
            raise RunError(
                f"--run {Where(self.folder)}: the run is finished, and its pieces cannot be read again by this user or "
                f"this moeparity. `moeparity runs show {display_path(self.folder)}` prints it; name another folder."
            )
        return stored_result

    def once(self, pieces: PieceStore, name: str, make: Callable[[], Piece]) -> Piece:
        """What `stored` gives; if nothing is kept, the result of `make`, which is kept then. Raises RunError."""
        self._piece = pieces.path(name)
        stored_result: Piece | None = self.stored(pieces, name)
        if stored_result is not None:
            return stored_result
        result = make()
        pieces.save(name, result)
        return result

    def finish(self, result: Result) -> None:
        """Keep the result, which is the last one that `once` gave, and remove what only a killed run would need.

        Raises RunError if that can't be written.
        """
        assert self.file is not None
        piece = self._piece
        if piece is None or not piece.is_file():
            raise RunError(f"--run {Where(self.folder)}: the result could not be kept there. Is the disk full?")
        if self.finished:
            words = "%s: finished at %s; it is read, nothing was run"
            _log.warning(words, display_path(self.folder), self.file.finished)
        else:
            self._write_result(result, piece)
        # A run that is killed here leaves the pieces behind.
        self._tidy(piece)

    def _write_result(self, result: Result, piece: Path) -> None:
        assert self.file is not None
        write_text(self.folder / REPORT, result.to_json())
        name = str(piece.relative_to(self.folder))
        result_files = (RECIPE, PLAN, REPORT, name)
        files = {path: hashlib.sha256((self.folder / path).read_bytes()).hexdigest() for path in result_files}
        outcome = _outcome(result)
        update = {"finished": utc_time(), "outcome": outcome, "result": name, "files": files}
        self._write_file(self.file.model_copy(update=update))

    def _admit(
        self,
        study: Study,
        identity: dict[str, str],
        progress: Callback | None,
        of_study: Mapping[str, str] | None = None,
    ) -> None:
        self._fingerprint = joined(of_study or identity)
        # What users' functions import is unknown, so their pieces belong to this process; the run itself does not.
        identity = {name: value for name, value in identity.items() if name != "functions"}
        self._agree(identity, study)
        if self.finished and study.functions:
            raise RunError(
                f"--run {Where(self.folder)}: it holds a finished run of users' functions, and what these import is "
                f"not known, so nobody can say that it is this one. `moeparity runs show {display_path(self.folder)}` "
                "prints it; name another folder to run."
            )
        self._begin(identity, study, progress)

    def _agree(self, identity: Mapping[str, str], study: Study) -> None:
        if self.file is None:
            return
        stored_parts = self.file.parts
        others = [name for name, value in identity.items() if stored_parts.get(name, value) != value]
        if self.finished and not others:
            others = [name for name in identity if name not in stored_parts]
        if others:
            words = listed([_WORDS.get(name, name) for name in others])
            raise RunError(
                f"--run {Where(self.folder)}: it holds another run ({self.file.recipe}, begun {self.file.begun}). "
                f"Not the same: {words}{self._changes(others, study)}. Nothing was changed; name another folder."
            )

    def _changes(self, others: list[str], study: Study) -> str:
        """Which parts of the environment differ, in words."""
        assert self.file is not None
        if not {"machine", "source"}.intersection(others):
            return ""
        there, own_fields = self.file.environment, environment(study.model.device)
        changed = [
            f"{key} {there[key]} there, {own_fields[key]} here"
            for key in own_fields
            if there.get(key, own_fields[key]) != own_fields[key]
        ]
        return f" ({'; '.join(changed[:3])})" if changed else ""

    def _begin(self, identity: Mapping[str, str], study: Study, progress: Callback | None) -> None:
        """Write what is missing of the run: `run.json` first, so that the folder can be recognised as a run's."""
        if self.finished:
            return
        file = self.file or RunFile(
            kind=self.kind,
            recipe=display_path(self.recipe),
            request=self.request,
            parts={},
            environment=environment(study.model.device),
            begun=utc_time(),
        )
        if not identity.items() <= file.parts.items():
            self._write_file(file.model_copy(update={"parts": {**file.parts, **identity}}))
        if not paths.present(self.folder / RECIPE):
            recipe = paths.contents(study.path, "YAML file")
            write_whole(self.folder / RECIPE, lambda path: path.write_bytes(recipe))
        if not paths.present(self.folder / PLAN):
            record = plan_record(study, progress, with_sides=self.kind != "sweep")
            write_text(self.folder / PLAN, json.dumps(record, indent=1, allow_nan=False))

    def _write_file(self, file: RunFile) -> None:
        write_text(self.folder / NAME, file.text())
        self.file = file

    def _tidy(self, piece: Path) -> None:
        """Remove the pieces that only a killed run would need; the points of a sweep belong to its result and stay."""
        for path in (self.folder / "passes").glob("*/*"):
            if path != piece and not (self.kind == "sweep" and path.stem == POINT):
                path.unlink(missing_ok=True)
        for path in (self.folder / "passes").glob("*"):
            with suppress(OSError):
                path.rmdir()


def _ours(name: str) -> bool:
    """Whether a run that was killed before it had begun may have left a file of that name."""
    return name == LOCK or name.startswith(".moeparity-")


def _outcome(result: Result) -> Outcome:
    verdict = getattr(result, "verdict", None)
    if verdict is None:
        return Outcome(exit_code=result.exit_code)
    value = float(verdict.value.estimate)
    return Outcome(
        exit_code=result.exit_code,
        verdict=verdict.status,
        metric=verdict.metric,
        value=value if abs(value) < float("inf") else str(value),
    )


@contextmanager
def open_run(
    folder: str | Path | None, kind: RunKind, recipe: str | Path, request: Mapping[str, Any]
) -> Iterator[RunFolder | None]:
    """A run's folder, held while the context lasts; None if `folder` is None. Raises RunError."""
    if folder is None:
        yield None
        return
    with locked(Path(folder)):
        run = RunFolder(Path(folder), kind, Path(recipe), request)

        def note() -> str | None:
            place = display_path(run.folder)
            return f"The run is finished: `moeparity runs show {place}` prints it." if run.finished else None

        with on_interruption(note):
            yield run
