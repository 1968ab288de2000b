"""What files tell by themselves: journals, fingerprints of weights, and what engines are started with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from moeparity.bisection.init.launched import other_functions
from moeparity.doctor.case import Case
from moeparity.doctor.engines import BY_DEFAULT, HERE
from moeparity.doctor.evidence import Files
from moeparity.doctor.judge import legal_sizes
from moeparity.doctor.report import BEYOND, PARTIES, Clue
from moeparity.errors import MoeparityError, counted, display_path
from moeparity.evidence.weights.compare import compare
from moeparity.evidence.weights.fingerprint_files import open_weights
from moeparity.evidence.weights.report import UNDECIDED, WeightsReport
from moeparity.output.words import few
from moeparity.progress import Callback
from moeparity.ranks.report import job_report

_NAMED = 4
_MOST = 0.5
_AT_START = "at-start"
_MOMENT = re.compile(rf"(?:{_AT_START}|call-(\d+))")
"""The folders into which a guard writes what a job held, at first and after each update."""


def of_files(evidence: Files, progress: Callback | None = None) -> Iterator[Clue]:
    """What files tell without any simulation, the cheapest first. Of a damaged file the clue is that it is damaged; all
    others are read nevertheless.
    """
    for folder in evidence.journals:
        yield _of_journals(folder)
    for path in _latest(evidence.fingerprints):
        yield _of_fingerprint(path, evidence.checkpoint, evidence.previous_checkpoint, progress)


def of_engines(case: Case) -> Iterator[Clue]:
    """Clues about the engines: what became of a server's steps, options of launch files that no profile covers, and
    settings in which the sides differ.
    """
    yield from (Clue(says=note) for note in case.notes)
    for party in PARTIES:
        for warning in case.engines[party].warnings:
            yield Clue(says=f"not simulated, since no profile of the {party} covers it: {warning}")
    yield from _of_settings(case)


def _of_settings(case: Case) -> Iterator[Clue]:
    """Settings by which both engines, as their files start them, compute other functions. They are the cause if they
    make more than legal rounding does, and surely most of what was recorded.
    """
    if all(engine.by == BY_DEFAULT for engine in case.engines.values()):
        return
    sides = case.engines["trainer"], case.engines["sampler"]
    variants, profiles = [side.variant for side in sides], [side.profile for side in sides]
    model, exact = case.bench.model, case.exact_difference
    legal, _ = legal_sizes(case.legal)
    is_large = float(exact.abs().mean()) > BEYOND * legal and case.difference.share(exact).low > _MOST
    for sentence in other_functions(model.graph, model.dtype, variants, profiles, HERE):
        setting, _, change = sentence.partition(": ")
        yield Clue(
            says=f"their configurations make the two sides compute different functions: {setting}",
            cause=setting.partition(" is ")[0] if is_large else "",
            change=change,
            command="moeparity init CHECKPOINT --server FILE --trainer FILE",
        )


def _latest(fingerprints: Sequence[Path]) -> list[Path]:
    """The fingerprints; if one guard took them at several moments, only those of the last, since an update changes
    weights.
    """
    last: dict[Path, Path] = {}
    for path in fingerprints:
        number = _MOMENT.fullmatch(path.name)
        moment = path.parent if number else path
        before = _MOMENT.fullmatch(last[moment].name) if moment in last else None
        if number is None or before is None or int(number[1] or -1) > int(before[1] or -1):
            last[moment] = path
    return list(last.values())


def _of_journals(folder: Path) -> Clue:
    name = display_path(folder)
    try:
        report = job_report(folder)
    except MoeparityError as error:
        return Clue(says=f"{name}: journals that can't be used: {error}")
    ranks = counted(len(report.ranks), "rank")
    if report.difference:
        return Clue(
            says=f"{name}: the job's ranks fell out of step: {report.difference.rstrip('.')}",
            cause="ranks out of step",
            change="first mend what drives the ranks apart: what they compute after that point is of no use",
            command=f"moeparity ranks {name}",
        )
    missing = f"; {counted(len(report.missing), 'rank')} left no journal" if report.missing else ""
    return Clue(says=f"{name}: journals of {ranks}, in step as far as they go{missing}")


def _of_fingerprint(path: Path, checkpoint: Path | None, previous: Path | None, progress: Callback | None) -> Clue:
    """Which tensors of a program are not the checkpoint's, and whether they are as they were before the update."""
    name = display_path(path)
    if checkpoint is None:
        return Clue(says=f"{name}: a fingerprint of weights; give the weights to compare it with as --checkpoint")
    try:
        fingerprint = open_weights(path)
        cast = fingerprint.by_rank[0].cast or None
        apart = _apart(compare(open_weights(checkpoint, cast, progress), fingerprint))
        stale: set[str] = set()
        if apart and previous is not None:
            stale = apart.keys() - _apart(compare(open_weights(previous, cast, progress), fingerprint)).keys()
    except MoeparityError as error:
        return Clue(says=f"{name}: a fingerprint of weights that can't be used: {error}")
    if not apart:
        return Clue(
            says=f"{name}: a program held the bits of {display_path(checkpoint)}, as far as the fingerprint goes"
        )
    command = f"moeparity weights {display_path(checkpoint)} {name}"
    tensors = few([f"{tensor} ({says})" for tensor, says in apart.items()], _NAMED)
    if path.name == _AT_START:
        return Clue(says=f"{name}: when the job began, other bits in {tensors}", command=command)
    if stale == apart.keys():
        tensors = few(list(apart), _NAMED)
        cause, says = "stale weights", f"as they were before the update: {tensors}"
    else:
        cause, says = "other weights", f"not the checkpoint's: {tensors}"
    return Clue(
        says=f"{name}: of the weights that a program held, {counted(len(apart), 'tensor')} are {says}",
        cause=f"{cause} of {few(list(apart), 1)}",
        change="send these weights again, and compare the fingerprints anew",
        command=command,
    )


def _apart(report: WeightsReport) -> dict[str, str]:
    """By tensor, what is wrong with it; tensors that could not be compared are left out."""
    wrong = (finding for finding in report.findings if finding.sort not in UNDECIDED)
    return {finding.tensor: finding.says for finding in wrong}
