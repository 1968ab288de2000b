"""Measures log files, for the command line and for `kind: log` files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from moeparity import logs
from moeparity.errors import MoeparityError, SpecError, Where, counted, did_you_mean, display_path, listed
from moeparity.logs import Join
from moeparity.logs.diagnosis import CAUSES
from moeparity.logs.measure import Measurement
from moeparity.logs.noise_gate import FLIPPED
from moeparity.logs.report import LogFile, LogReport
from moeparity.logs.request import MetricsRequest
from moeparity.logs.series.data import Summary
from moeparity.logs.series.pictures import refuse_unplottable, save_series
from moeparity.logs.served_steps import WAYS, ServedSteps
from moeparity.metrics.accumulate import Accumulator
from moeparity.metrics.verdict import Gate
from moeparity.paths import present
from moeparity.plan.spec.log_schema import LogCheck
from moeparity.progress import Callback, Progress


class NotDrawnError(MoeparityError):
    """The figure could not be drawn; `report` has the result, which may have taken minutes."""

    def __init__(self, message: str, report: LogReport) -> None:
        super().__init__(message)
        self.report = report


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How files are opened; fields as in `moeparity.logs.open`. schedule: a file of the server's steps."""

    trainer: Sequence[Path] = ()
    format: str | None = None
    trainer_format: str | None = None
    join: Join = "id"
    partial: bool = False
    tokenizer: Path | None = None
    schedule: Path | None = None


def measure_files(
    paths: Sequence[Path],
    request: MetricsRequest,
    opening: Opening | None = None,
    progress: Callback | None = None,
    plot: Path | None = None,
) -> LogReport:
    """The report of log files, joined if each has one side; `plot`: a PNG or SVG of its series over steps.

    Raises LogError, MoeparityError; NotDrawnError, which has the report, if there is nothing to draw.
    """
    options = opening or Opening()
    if plot is not None:
        refuse_unplottable(plot)
    steps = _served_steps(options.schedule, request)
    measurement = Measurement(request, {} if steps is None else steps.names)
    log = logs.open(
        paths,
        trainer=options.trainer,
        format=options.format,
        trainer_format=options.trainer_format,
        join=options.join,
        partial=options.partial,
        tokenizer=options.tokenizer,
    )
    sequences = iter(log) if steps is None else steps.labelled(iter(log))
    for chunk in measurement.chunker.chunks(measurement.noted(sequences)):
        measurement.add(chunk)
        if progress is not None:
            progress(_so_far(measurement.totals))
    left_out = [f"{counted(log.left_out, 'sequence')} that only one side has"] if log.left_out else []
    report = measurement.report(tuple(_file(path, format) for path, format in log.files), left_out)
    if plot is not None:
        _plot(measurement.series(), plot, report)
    return report


def _served_steps(path: Path | None, request: MetricsRequest) -> ServedSteps | None:
    """The server's steps. Raises MoeparityError where tokens are asked for by what only these tell."""
    of_steps = [way for way in request.ways() if way in WAYS]
    if path is None and of_steps:
        raise MoeparityError(f"--by {of_steps[0]}: no log tells it. Give the server's steps too: --schedule FILE.")
    return None if path is None else ServedSteps(path)


def _plot(series: tuple[Summary, ...], path: Path, report: LogReport) -> None:
    finite = [summary for summary in series if any(map(math.isfinite, summary.series.values))]
    if not finite:
        reason = "no step has a finite value" if series else "the log does not tell of two steps or more"
        raise NotDrawnError(f"--plot {display_path(path)}: there is nothing to draw: {reason}.", report)
    save_series(finite, path)


def _so_far(totals: Accumulator) -> Progress:
    # The total becomes known only at the end.
    return Progress(
        step="reading", at=f"{len(totals.ids)} sequences", done=0, total=1, work=totals.tokens, unit="tokens"
    )


def _file(path: Path, format: logs.Format) -> LogFile:
    by_hand = f"reader tested on a file {format.fixture}" if "by hand" in format.fixture else ""
    return LogFile(path=display_path(path), format=format.name, note=by_hand)


def measure_check(
    check: LogCheck, where: Where, noise: Mapping[str, float], progress: Callback | None = None
) -> LogReport:
    """The report for a `kind: log` file; noise: the bounds of what legal arithmetic makes, by statistic. Raises
    SpecError for mistakes in that file, and LogError.
    """
    for cause in check.expect.causes if isinstance(check.expect.causes, list) else ():
        if cause not in CAUSES:
            raise SpecError(
                f"{where}: expect.causes: {cause!r} is no cause that the diagnosis names; expected none, or some of "
                f"{listed(CAUSES)}.{did_you_mean(cause, CAUSES)}"
            )
    bounded = tuple(dict.fromkeys((*(check.expect.metrics or {}), *(name for name in noise if name != FLIPPED))))
    by = [FLIPPED] if FLIPPED in noise else []
    try:
        request = MetricsRequest(metrics=bounded, by=by, gate=Gate(metric=check.gate.metric, below=check.gate.below))
        request.selection()
    except MoeparityError as error:
        raise SpecError(f"{where}: {error}") from None
    opening = Opening(
        trainer=_matching(check.trainer, where, "trainer"),
        format=check.format,
        trainer_format=check.trainer_format,
        join=check.join,
        partial=check.partial,
        tokenizer=None if check.tokenizer is None else where.path.parent / check.tokenizer,
    )
    return measure_files(_matching(check.files, where, "files"), request, opening, progress)


def _matching(patterns: Sequence[str], where: Where, key: str) -> list[Path]:
    """Files beside the check that match the patterns, by name. Raises SpecError for a pattern without a match."""
    paths: list[Path] = []
    for pattern in patterns:
        matches = [where.path.parent / pattern]
        if "*" in pattern:
            matches = sorted(map(Path, glob(str(matches[0]))))  # noqa: PTH207  an absolute pattern
        if not matches or not all(present(match) for match in matches):
            raise SpecError(
                f"{where}: {key}: there is no file {pattern!r}. A relative path starts at this file's folder."
            )
        paths += matches
    return paths
