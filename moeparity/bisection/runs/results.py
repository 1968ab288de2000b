"""Reads the result of a finished run back as the object with which its command ended."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np

from moeparity.bisection.blame.measure import blame_of_report
from moeparity.bisection.flips.run import Flipped
from moeparity.bisection.mine.report import Mined
from moeparity.bisection.report import Report
from moeparity.bisection.resume.codec import Codec, CodecError, classes_of
from moeparity.bisection.resume.pieces import read_piece
from moeparity.bisection.runs.file import RunKind, finished_run, kept_bytes
from moeparity.bisection.sweep.report import Sweep
from moeparity.errors import RunError, Where

Result = Report | Sweep | Flipped | Mined


def _absent(default: object) -> Callable[[Any], object]:
    return lambda _: default


LATER: dict[str, Callable[[Any], object]] = {
    **{f"Report.{each.name}": _absent(each.default) for each in fields(Report) if each.default is not MISSING},
    "Report.blame": blame_of_report,
    "LayerGrowth.not_measured": _absent(()),
    "Attribution.places": _absent(()),
    "Metrics.outside_tokens": _absent(0),
    "Metrics.unshared_tokens": _absent(0),
    "Root.local": _absent(math.nan),
    "Root.places": _absent(()),
    "Run.formats": _absent(()),
    "Run.of_codes": _absent(()),
    "Run.pairs": _absent(False),
    "Run.adapter": _absent(None),
    "Variant.gpu": _absent(None),
    "Variant.plans": _absent(None),
    "Variant.unstated": _absent(()),
    "PerToken.reference_logprob": lambda tokens: np.full_like(tokens.delta, np.nan),
    "PerToken.candidate_logprob": lambda tokens: np.full_like(tokens.delta, np.nan),
    "PerToken.update_parts": _absent(None),
}
"""How to make fields that runs of earlier versions lack. A section that they did not have yet is absent."""
_CLASSES: dict[RunKind, type[Result]] = {"bisect": Report, "sweep": Sweep, "flips": Flipped, "mine": Mined}


def read_report(folder: str | Path) -> Result:
    """The result of a finished run: a Report of `bisect`, or a Sweep, Flipped or Mined.

    Raises RunError for a folder without a finished run, a damaged one, and one that another version of moeparity wrote
    in an unknown form.
    """
    folder = Path(folder)
    run = finished_run(folder)
    assert run.result is not None
    kept_bytes(folder, run, run.result)
    expected = _CLASSES[run.kind]
    try:
        result = read_piece(folder / run.result, Codec(classes_of(expected), later=LATER))
    except CodecError as error:
        written = run.environment.get("moeparity", "unknown")
        raise RunError(
            f"{Where(folder / run.result)}: this moeparity cannot read it back ({error}). moeparity {written} wrote "
            f"it, from source {run.environment.get('moeparity source', 'unknown')}; report.json holds the same."
        ) from None
    assert isinstance(result, expected)
    return result
