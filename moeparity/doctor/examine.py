"""Examines the evidence of one run: what files tell by themselves, then every hypothesis, from coarse to fine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from moeparity.doctor.answer import answered, at_once, causes, explains_all, of_other_weights, without_log
from moeparity.doctor.case import Case, Request, Tried, gather, opened
from moeparity.doctor.clues import of_engines, of_files
from moeparity.doctor.engines import DEFAULTS
from moeparity.doctor.evidence import NoLogError
from moeparity.doctor.hypotheses import AS_CONFIGURED, Hypothesis, coarse, parts
from moeparity.doctor.judge import Difference
from moeparity.doctor.misread import in_one_phase, misread, replays
from moeparity.doctor.numbers import Family, families
from moeparity.doctor.report import Clue, Examination
from moeparity.doctor.routes import of_routes
from moeparity.doctor.screening import Screening
from moeparity.doctor.solve import with_numbers
from moeparity.doctor.standing import standing
from moeparity.doctor.traces import of_traces, with_traces
from moeparity.logs.log_files import Opening, measure_files
from moeparity.logs.request import Request as LogRequest
from moeparity.progress import Callback

_ROUNDS = 3
"""Layers and kinds of nodes, then nodes, then experts."""
_REFINED = 3
"""So many hypotheses of a round are taken apart: those that explain most if they may be scaled, since a part of a layer
makes a part of what the whole layer makes.
"""
_CLEAR = 0.99
"""What surely explains more of the difference than this leaves nothing to look for."""

_SYMPTOM = "unrelated"
"""What a log names, and simulations tell the cause of: other ids give it, and weights or code do that are far off."""


def examine(request: Request, progress: Callback | None = None) -> Examination:
    """The cause of the difference between what a sampler and a trainer recorded of the same tokens.

    If one of them recorded nothing, it is taken as its profile computes it. Without a log other files are asked what
    they tell by themselves. Raises MoeparityError for evidence that can't be used.
    """
    try:
        material = gather(request)
    except NoLogError as error:
        files = error.files
        if not (files.traces or files.fingerprints or files.journals):
            raise
        early = tuple(of_files(files, progress))
        traced = () if causes(early, ()) else tuple(of_traces(files, DEFAULTS["trainer"], progress))
        return without_log(files, (*early, *traced))
    early = tuple(of_files(material.evidence, progress))
    if causes(early, ()) and not request.every:
        return at_once(material, early)
    case = opened(request, material, progress)
    case = replace(case, clues=(*of_engines(case), *of_routes(case.bench.flips), *early))
    tried = case.tried([AS_CONFIGURED])
    logged, symptoms = _told_by_log(case)
    case = replace(case, clues=(*case.clues, *symptoms))
    if of_other_weights(case):
        return with_traces(answered(case, tried, logged), case, progress)
    if (causes(case.clues, logged) or _is_clear(case)) and not request.every:
        return answered(case, tried, logged)
    graph, previous = case.bench.model.graph, case.evidence.previous
    screening = Screening.of(case)
    tried += _refined(screening, [each for each in coarse(graph, previous) if each is not AS_CONFIGURED], {})
    if request.every or not explains_all(case, tried):
        tried += _further(screening, tried)
    return with_traces(answered(case, tried, logged, screening.summary), case, progress)


def _is_clear(case: Case) -> bool:
    """Whether there is no difference, or what the engines legally differ in leaves nothing of it."""
    return not bool(case.difference.d.any()) or case.difference.share(case.legal_difference).low > _CLEAR


def _further(screening: Screening, tried: Sequence[Tried]) -> list[Tried]:
    """Faults with an open number and what a side may have made of the tokens; then what may be wrong beside the best of
    all.
    """
    case = screening.case
    graph, previous = case.bench.model.graph, case.evidence.previous
    whole = [*_families(case)]
    with_open_number = {of.name: of for family in whole for of in (family, *family.parts(graph))}
    members = [member for family in whole for member in family.members()]
    replaying = () if case.bench.flips is None else replays(case.bench.prompts, case.bench.flips.recorded.shape[2])
    read = [*misread(graph, previous, case.bench.prompts), *replaying]
    new = _refined(screening, [*members, *read], with_open_number)
    new += with_numbers(case, [*tried, *new], with_open_number)
    return [*new, *_beside_best(screening, [*tried, *new], with_open_number)]


def _refined(screening: Screening, hypotheses: list[Hypothesis], of_name: Mapping[str, Family]) -> list[Tried]:
    """The hypotheses, and the parts of those that lead, and the parts of these. of_name: families with a number."""
    tried: list[Tried] = []
    case = screening.case
    for _ in range(_ROUNDS):
        new = screening.run(hypotheses)
        tried += new
        hypotheses = _parts_of_best(case, case.difference, new, of_name)
        if not hypotheses:
            break
    return tried


def _beside_best(screening: Screening, tried: Sequence[Tried], of_name: Mapping[str, Family]) -> list[Tried]:
    """Hypotheses that explain most of what the best one leaves, and parts of these: what may be wrong beside it."""
    case = screening.case
    first = standing(case, tried).first
    ruled_out = screening.run_beside(first)
    tried = [*tried, *ruled_out]
    remainder = replace(case.difference, d=case.difference.d - (first.simulated - case.legal_difference))
    new: list[Tried] = []
    for _ in range(_ROUNDS - 1):
        names = {each.hypothesis.name for each in (*tried, *new)}
        best = _parts_of_best(case, remainder, new or tried, of_name)
        hypotheses = [each for each in best if each.name not in names]
        if not hypotheses:
            break
        new += screening.run(hypotheses)
    return [*ruled_out, *new]


def _families(case: Case) -> Iterator[Family]:
    tokens = case.of_log.tokens
    return families(case.bench.model.graph, tokens.input_ids.shape[1], padded=tokens.pads > 0)


def _parts_of_best(
    case: Case, difference: Difference, tried: Sequence[Tried], of_name: Mapping[str, Family]
) -> list[Hypothesis]:
    """The parts of the hypotheses that explain most of a difference if they may be scaled; those of one with a number
    have this number, and may be solved for others.
    """
    graph, previous = case.bench.model.graph, case.evidence.previous
    best = [tried[index].hypothesis for index in difference.leading([each.simulated for each in tried])[:_REFINED]]
    all_parts: dict[str, Hypothesis] = {}
    for each in best:
        if each.number is not None and each.family in of_name:
            new = [part.at(each.number.value) for part in of_name[each.family].parts(graph)]
        else:
            new = [*parts(each, graph, previous), *in_one_phase(each, case.bench.prompts)]
        all_parts |= {part.name: part for part in new}
    return list(all_parts.values())


def _told_by_log(case: Case) -> tuple[tuple[str, ...], tuple[Clue, ...]]:
    """The mistakes in meaning that the log alone names, and what it only shows; nothing if it has one side only."""
    if case.recorded.keys() != {"sampler", "trainer"}:
        return (), ()
    opening = Opening(trainer=case.evidence.trainer_logs, partial=bool(case.evidence.trainer_logs))
    diagnosis = measure_files(case.evidence.logs, LogRequest(), opening).diagnosis
    names = () if diagnosis is None else diagnosis.names("named", "semantics")
    clues = (Clue(says=diagnosis.find(_SYMPTOM).reason),) if diagnosis is not None and _SYMPTOM in names else ()
    return tuple(name for name in names if name != _SYMPTOM), clues
