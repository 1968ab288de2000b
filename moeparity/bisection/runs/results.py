"""The result of a finished run, as the object that its command ended with: any writer of reports takes it."""

from __future__ import annotations

from pathlib import Path

from moeparity.bisection.flips.run import Flipped
from moeparity.bisection.mine.report import Mined
from moeparity.bisection.report import Report
from moeparity.bisection.resume.codec import Codec, CodecError, classes_of
from moeparity.bisection.resume.pieces import read_piece
from moeparity.bisection.runs.file import Kind, finished_run, kept_bytes
from moeparity.bisection.sweep.report import Sweep
from moeparity.errors import RunError, Where

Result = Report | Sweep | Flipped | Mined
_CLASSES: dict[Kind, type[Result]] = {"bisect": Report, "sweep": Sweep, "flips": Flipped, "mine": Mined}


def read_report(folder: str | Path) -> Result:
    """What a finished run ended with: of `bisect` a Report, else a Sweep, Flipped or Mined.

    Raises RunError for a folder without a finished run, a damaged one, and one that another version of moeparity wrote
    in a form that this one does not know.
    """
    folder = Path(folder)
    run = finished_run(folder)
    assert run.result is not None
    kept_bytes(folder, run, run.result)
    expected = _CLASSES[run.kind]
    try:
        result = read_piece(folder / run.result, Codec(classes_of(expected)))
    except CodecError as error:
        written = run.environment.get("moeparity", "unknown")
        raise RunError(
            f"{Where(folder / run.result)}: this moeparity cannot read it back ({error}). moeparity {written} wrote "
            f"it, from source {run.environment.get('moeparity source', 'unknown')}; report.json holds the same."
        ) from None
    assert isinstance(result, expected)
    return result
