"""Examines the evidence of one run: what files tell by themselves, then every hypothesis, from coarse to fine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from moeparity.doctor.answer import LEAST, answered, explains_all, of_other_weights
from moeparity.doctor.case import Case, DoctorRequest, Tried, gather, opened
from moeparity.doctor.clues import of_engines, of_files
from moeparity.doctor.engines import DEFAULTS
from moeparity.doctor.evidence import NoLogError
from moeparity.doctor.experts import Suspect, exchanges, mistakes, scaled, suspects
from moeparity.doctor.further import held_to_further
from moeparity.doctor.hypotheses import (
    AS_CONFIGURED,
    Hypothesis,
    coarse,
    nodes_of,
    parts,
    scales_of_one_layer,
    stale_parts,
)
from moeparity.doctor.judge import Difference, legal_sizes
from moeparity.doctor.misplaced import misplaced
from moeparity.doctor.misread import in_one_phase, misread, replays
from moeparity.doctor.numbers import Family, families
from moeparity.doctor.readings import Cut
from moeparity.doctor.report import BEYOND, Clue, Examination
from moeparity.doctor.routes import of_routes
from moeparity.doctor.screening import Screening
from moeparity.doctor.solve import Lead, solved_for, with_numbers
from moeparity.doctor.standing import standing
from moeparity.doctor.traces import of_traces, with_traces
from moeparity.doctor.uniform import of_uniform
from moeparity.doctor.unsimulated import at_once, causes, without_log
from moeparity.logs.log_files import Opening, measure_files
from moeparity.logs.request import MetricsRequest
from moeparity.logs.retokenised import NAME as RETOKENISED
from moeparity.plan.graph import Graph
from moeparity.progress import Callback, Stop, StoppedError

_ROUNDS = 3
"""The rounds: layers and kinds of nodes, then nodes, then experts."""
_REFINED = 3
"""Parts are tried of this many hypotheses of a round: those that explain most if they may be scaled, since a part of a
layer makes a part of what the whole layer makes. Their simulations point in different directions. Parts are also tried
of this many further hypotheses that point in one of these directions and have no number.
"""
_CLEAR = 0.99
"""If legal differences of the engines surely explain more than this fraction, there is nothing to look for."""

_SYMPTOMS = ("unrelated", "E[rho]")
"""Findings of a log whose cause simulations tell: other ids give them, and so do weights or code that are far off."""
_TEMPERATURE = ("temperature", "raw log-probs (temperature)")
"""Findings of a log that code may cause as well: a final norm that is left out scales logits."""
_TRUNCATION = ("truncation", "raw log-probs (truncation)")
"""The same: without its final norm a model says of few tokens that they are possible."""
_OF_HEAD, _NEAR = "temperature-in-the-head", 0.7
"""The family of a temperature, and where its search starts."""


def examine(request: DoctorRequest, progress: Callback | None = None, stop: Stop | None = None) -> Examination:
    """The cause of the difference between what a sampler and a trainer recorded of the same tokens.

    If one of them recorded nothing, its profile is simulated instead. Without a log, the answer is what other files
    tell by themselves. Where it is to stop, nobody is named, and the best hypotheses of those that ran are told. Raises
    MoeparityError for evidence that can't be used.
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
    case = replace(case, clues=(*of_engines(case), *of_routes(case.bench.flips), *of_uniform(case), *early))
    case.bench.stop = stop or Stop()
    try:
        return _examined(case, request, progress)
    except StoppedError:
        return answered(case, case.tried([AS_CONFIGURED, *case.bench.ran.values()]), (), is_stopped=True)


def _examined(case: Case, request: DoctorRequest, progress: Callback | None) -> Examination:
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
    if not _is_over(case, tried, {}):
        tried += _further(screening, tried)
    return with_traces(answered(held_to_further(case, tried), tried, logged, screening.summary), case, progress)


def _is_clear(case: Case) -> bool:
    """Whether there is no difference, or the legal differences of the engines explain all of it."""
    return not bool(case.difference.d.any()) or case.difference.share(case.legal_difference).low > _CLEAR


def _further(screening: Screening, tried: Sequence[Tried]) -> list[Tried]:
    """Try ways in which a side may have misread the tokens; then weights in another place, single experts and faults
    with an open number; then what may be wrong beside the best hypothesis. Ends with one that explains all.
    """
    case = screening.case
    graph, previous = case.bench.model.graph, case.evidence.previous
    replaying = () if case.bench.flips is None else replays(case.bench.prompts, graph, case.bench.flips.recorded)
    new = screening.run([*misread(graph, previous, case.bench.prompts), *replaying])
    if _is_over(case, [*tried, *new], {}):
        return new
    of_experts = _suspects(case)
    whole = [*_families(case), *scaled(of_experts)]
    with_open_number = {of.name: of for family in whole for of in (family, *family.parts(graph))}
    members = [member for family in whole for member in family.members()]
    of_weights = [*misplaced(graph), *mistakes(graph, of_experts, case.evidence.previous_checkpoint)]
    names = {each.hypothesis.name for each in tried}
    of_layers = [*scales_of_one_layer(graph), *(() if previous is None else stale_parts(graph, previous))]
    of_weights += [each for each in of_layers if each.name not in names]
    new += _refined(screening, [*members, *of_weights], with_open_number, beside=new)
    if not _is_over(case, [*tried, *new], with_open_number):
        new += with_numbers(case, [*tried, *new], with_open_number)
    new += _in_layer_of_best(screening, [*tried, *new], with_open_number)
    if _is_over(case, [*tried, *new], with_open_number):
        return new
    return [*new, *_beside_best(screening, [*tried, *new], with_open_number)]


def _is_over(case: Case, tried: Sequence[Tried], of_name: Mapping[str, Family]) -> bool:
    """Whether one hypothesis explains all, so that there is nothing to look for. With an open number it does not end
    the search: other faults may come to the same with numbers of their own.
    """
    is_open = standing(case, tried).first.hypothesis.family in of_name
    return not (case.request.every or is_open) and explains_all(case, tried)


def _in_layer_of_best(screening: Screening, tried: Sequence[Tried], of_name: Mapping[str, Family]) -> list[Tried]:
    """Try everything else that may be wrong in the layer of the best hypothesis, if that surely explains anything. A
    mistake in one layer may not look like the same mistake in all layers, so it may have been passed over; and
    hypotheses that make the same difference have to be reported.
    """
    case = screening.case
    graph, previous = case.bench.model.graph, case.evidence.previous
    first, names = standing(case, tried).first, {each.hypothesis.name for each in tried}
    layers = _layers_of(first.hypothesis, graph)
    if len(layers) != 1 or None in layers or not case.difference.explains(first.simulated, 0.0):
        return []
    whole = [part for each in coarse(graph, previous) for part in parts(each, graph, previous)]
    every = [*whole, *(member for family in of_name.values() for member in family.members())]
    inside = {each.name: each for each in every if layers == _layers_of(each, graph) and each.name not in names}
    new = screening.run(list(inside.values()))
    if _is_over(case, [*tried, *new], of_name):
        return new
    return [*new, *with_numbers(case, [*tried, *new], of_name)]


def _layers_of(of: Hypothesis, graph: Graph) -> set[int | None]:
    return {node.layer for node in nodes_of(graph, [plant.node for plant in of.plants])}


def _refined(
    screening: Screening, hypotheses: list[Hypothesis], of_name: Mapping[str, Family], beside: Sequence[Tried] = ()
) -> list[Tried]:
    """Try hypotheses, such as a whole layer; then parts of the best ones, such as a node of it; then parts of these.

    of_name: by name, the families of hypotheses that differ in a number. beside: hypotheses that ran before; parts of
    the best of them are tried too.
    """
    tried: list[Tried] = []
    case = screening.case
    for number in range(_ROUNDS):
        new = screening.run(hypotheses)
        tried += new
        hypotheses = _parts_of_best(case, case.difference, [*new, *(() if number else beside)], of_name)
        if not hypotheses:
            break
    return tried


def _beside_best(screening: Screening, tried: Sequence[Tried], of_name: Mapping[str, Family]) -> list[Tried]:
    """Try what may be wrong beside the best hypothesis: hypotheses that explain most of what it leaves, and parts of
    these.
    """
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


def _suspects(case: Case) -> list[Suspect]:
    """The experts that the difference points at."""
    sequence, position = (axis[case.mask] for axis in case.bench.tokens.loss_mask.cpu().nonzero(as_tuple=True))
    d = case.difference.counted(case.difference.d - case.legal_difference)
    return suspects(case.bench.model.graph, case.bench.chosen, d, (sequence, position))


def _families(case: Case) -> Iterator[Family]:
    tokens, model = case.of_log.tokens, case.bench.model
    length, padded = tokens.input_ids.shape[1], tokens.pads > 0
    return families(model.graph, length, padded=padded, unquantised=model.unquantised)


def _parts_of_best(
    case: Case, difference: Difference, tried: Sequence[Tried], of_name: Mapping[str, Family]
) -> list[Hypothesis]:
    """The parts of the hypotheses that explain most of a difference if they may be scaled; those of one with a number
    have this number, and may be solved for others.
    """
    graph, previous = case.bench.model.graph, case.evidence.previous
    ways = difference.directions([each.simulated for each in tried], _REFINED)
    best = [tried[way[0]].hypothesis for way in ways]
    # Hypotheses with a number are solved for later; each one without a number has parts of its own.
    alike = [tried[index].hypothesis for way in ways for index in way[1:]]
    best += [each for each in alike if each.number is None][:_REFINED]
    all_parts: dict[str, Hypothesis] = {}
    for each in best:
        if each.number is not None and each.family in of_name:
            new = [part.at(each.number.value) for part in of_name[each.family].parts(graph)]
        else:
            new = [*parts(each, graph, previous), *in_one_phase(each, case.bench.prompts)]
            if len(each.plants) == 1:
                new += exchanges(each, nodes_of(graph, [each.plants[0].node])[0])
        all_parts |= {part.name: part for part in new}
    return list(all_parts.values())


def _told_by_log(case: Case) -> tuple[tuple[str, ...], tuple[Clue, ...]]:
    """The mistakes in meaning that the log by itself names, and clues about the symptoms that it only shows; nothing if
    the log has one side only.
    """
    if case.recorded.keys() != {"sampler", "trainer"}:
        return (), ()
    trainer_logs, tokenizer = case.evidence.trainer_logs, case.evidence.tokenizer
    opening = Opening(trainer=trainer_logs, partial=bool(trainer_logs), tokenizer=tokenizer)
    diagnosis = measure_files(case.evidence.logs, MetricsRequest(), opening).diagnosis
    names = () if diagnosis is None else diagnosis.names("named", "semantics")
    symptoms = [name for name in names if _is_symptom(case, name)]
    shown = [*symptoms, *(name for name in names if name == RETOKENISED)]
    clues = tuple(Clue(says=diagnosis.find(name).reason) for name in shown if diagnosis is not None)
    return tuple(name for name in names if name not in symptoms), clues


def _is_symptom(case: Case, name: str) -> bool:
    """Whether a finding of a log is one that code may cause, and what it names does not make the difference here."""
    if name in _TEMPERATURE:
        return not _is_temperature(case)
    return name in _SYMPTOMS or (name in _TRUNCATION and not _is_truncation(case))


def _is_truncation(case: Case) -> bool:
    """Whether a distribution that is cut at one side explains half of the difference, by the cuts that are tried."""
    every = misread(case.bench.model.graph, None, case.bench.prompts)
    cuts = [each for each in every if isinstance(each.reading, Cut)]
    runs = [run for party in case.recorded for run in case.simulated(cuts, party)]
    return any(case.difference.share(run.simulated).estimate > LEAST for run in runs)


def _is_temperature(case: Case) -> bool:
    """Whether a temperature at one side leaves no more of the difference than noise."""
    family = next((family for family in _families(case) if family.name == _OF_HEAD), None)
    if family is None:
        return True
    runs = solved_for(case, [Lead(family=family, party=party, near=_NEAR) for party in case.recorded])
    remainders = [case.difference.d - run.simulated for run in runs]
    most = BEYOND * legal_sizes(case.legal)[0]
    return any(case.difference.mean(remainder.abs()).low < most for remainder in remainders)
