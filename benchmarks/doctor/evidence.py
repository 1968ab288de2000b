"""What each kind of evidence adds: the same faults examined with less and with more of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.doctor.case import Drawn, add_routes, drawn, outcome, verdict
from benchmarks.doctor.drawn import CLASSES, CLEAN, UNLISTED, slot
from moeparity.doctor.case import DoctorRequest
from moeparity.doctor.examine import examine
from tests.doctor.faulty import routes_of
from tests.doctor.programs import log

_RUNS = 1000
"""The first run of each class is looked for among so many."""


def evidence(folder: Path, seed: int) -> Iterator[str]:
    """A table: of one run of each class what became of it, by the evidence that there was."""
    yield f"| planted | at the | {' | '.join(name for name, _ in _WITH)} |"
    yield f"|---|---|{'---|' * len(_WITH)}"
    for kind in (kind for kind in CLASSES if kind not in {CLEAN, UNLISTED}):
        case = drawn(folder, seed, next(number for number in range(_RUNS) if slot(number)[0] == kind))
        answers = [verdict(case.facts | outcome(examine(request_of(case)))) for _, request_of in _WITH]
        yield f"| {' and '.join(case.facts['truth'])} | {case.facts['party']} | {' | '.join(answers)} |"


def _of_sampler(case: Drawn) -> DoctorRequest:
    """The sampler's record; the trainer is what its profile computes."""
    path = log(case.log.with_name("one.jsonl"), case.ids, case.sides[0], None, prompt=case.prompt)
    return replace(case.request(), evidence=(path,), previous=None)


def _of_both(case: Drawn) -> DoctorRequest:
    path = log(case.log.with_name("both.jsonl"), case.ids, *case.sides, prompt=case.prompt)
    return replace(case.request(), evidence=(path,), previous=None)


def _with_previous(case: Drawn) -> DoctorRequest:
    return replace(_of_both(case), previous=case.previous)


def _with_routes(case: Drawn) -> DoctorRequest:
    request = _with_previous(case)
    add_routes(request.evidence[0], routes_of(case.current, case.ids))
    return request


_WITH = (
    ("the sampler's log", _of_sampler),
    ("both sides' log", _of_both),
    ("and the weights before", _with_previous),
    ("and routes", _with_routes),
)
