"""Examines the evidence of one run: what files tell by themselves, then every hypothesis, from coarse to fine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moeparity.doctor.answer import answered, at_once, causes, of_other_weights
from moeparity.doctor.case import Case, Request, Tried, gather, opened
from moeparity.doctor.clues import of_engines, of_files
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis, coarse, parts
from moeparity.doctor.report import Examination
from moeparity.doctor.routes import of_routes
from moeparity.doctor.traces import with_traces
from moeparity.logs.log_files import Opening, measure_files
from moeparity.logs.request import Request as LogRequest
from moeparity.progress import Callback

_ROUNDS = 3
"""Layers and kinds of nodes, then nodes, then experts."""
_REFINED = 3
"""So many hypotheses of a round are taken apart: those that explain most if they may be scaled, since a part of a layer
makes a part of what the whole layer makes.
"""
_ALL = 0.99
"""What surely explains more of the difference than this leaves nothing to look for."""


def examine(request: Request, progress: Callback | None = None) -> Examination:
    """The cause of the difference between what a sampler and a trainer recorded of the same tokens.

    If one of them recorded nothing, it is taken as its profile computes it. Raises MoeparityError for evidence that
    can't be used.
    """
    material = gather(request)
    early = tuple(of_files(material.evidence, progress))
    if causes(early, ()) and not request.every:
        return at_once(material, early)
    case = opened(request, material, progress)
    case = replace(case, clues=(*of_engines(case), *of_routes(case, progress), *early))
    tried = case.tried([AS_CONFIGURED])
    logged = _named_by_log(case)
    if of_other_weights(case):
        return with_traces(answered(case, tried, logged), case, progress)
    if (causes(case.clues, logged) or _is_clear(case)) and not request.every:
        return answered(case, tried, logged)
    graph, previous = case.bench.model.graph, case.evidence.previous
    hypotheses = [each for each in coarse(graph, previous) if each is not AS_CONFIGURED]
    for _ in range(_ROUNDS):
        case.bench.score(hypotheses, [case.request.profile(party) for party in case.recorded])
        new = case.tried(hypotheses)
        tried += new
        hypotheses = _parts_of_best(case, tried[-len(new) :])
        if not hypotheses:
            break
    return with_traces(answered(case, tried, logged), case, progress)


def _is_clear(case: Case) -> bool:
    """Whether there is no difference, or what the engines legally differ in leaves nothing of it."""
    return not bool(case.difference.d.any()) or case.difference.share(case.legal_difference).low > _ALL


def _parts_of_best(case: Case, tried: Sequence[Tried]) -> list[Hypothesis]:
    """The parts of the hypotheses that explain most if they may be scaled."""
    graph, previous = case.bench.model.graph, case.evidence.previous
    along = {index: case.difference.along(each.simulated) for index, each in enumerate(tried)}
    best = sorted((index for index in along if along[index]), key=lambda index: -along[index])[:_REFINED]
    all_parts = (part for index in best for part in parts(tried[index].hypothesis, graph, previous))
    return list({part.name: part for part in all_parts}.values())


def _named_by_log(case: Case) -> tuple[str, ...]:
    """The mistakes in meaning that the log alone names; () if it has one side only."""
    if case.recorded.keys() != {"sampler", "trainer"}:
        return ()
    opening = Opening(trainer=case.evidence.trainer_logs, partial=bool(case.evidence.trainer_logs))
    diagnosis = measure_files(case.evidence.logs, LogRequest(), opening).diagnosis
    return () if diagnosis is None else diagnosis.names("named", "semantics")
