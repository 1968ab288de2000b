"""What recorded values tell if the log leaves the cause open: `explain` at the nodes that a trace shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from moeparity.doctor.case import Case
from moeparity.doctor.engines import DEFAULTS
from moeparity.doctor.evidence import Files
from moeparity.doctor.report import Answer, Clue, Examination
from moeparity.documents.checked import shipped
from moeparity.errors import MoeparityError, counted, display_path
from moeparity.evidence.explain.report import Explained, Explanation
from moeparity.evidence.explain.trace import ExplainRequest, explain_trace
from moeparity.output.words import few
from moeparity.plan.address import pattern
from moeparity.progress import Callback, Stop
from moeparity.search.blame import Blame

OPEN: Final[frozenset[Answer]] = frozenset({"noise", "not explained", "undecided", "wrong checkpoint"})
"""Answers that leave the cause open. A log can't decide about a difference smaller than noise; bits can."""
SECONDS: Final = 120.0
"""For this many seconds a trace is searched; `moeparity explain` goes on to the end."""
_NAMED = 3


def with_traces(of: Examination, case: Case, progress: Callback | None = None) -> Examination:
    """The examination with what the traces tell, if its cause is open; a fault that gives a node's recorded bits is the
    cause.
    """
    if of.answer not in OPEN or not case.evidence.traces:
        return of
    clues = tuple(of_traces(case.evidence, _start(case), progress))
    causes = tuple(clue.cause for clue in clues if clue.cause)
    if not causes:
        return replace(of, clues=(*of.clues, *clues))
    blame = Blame(kind="one", named=causes, confidence="sure")
    return replace(of, answer="found", blame=blame, clues=(*of.clues, *clues), asks=())


def of_traces(evidence: Files, start: str, progress: Callback | None = None) -> Iterator[Clue]:
    """What each trace tells. With which profile it starts decides only how much has to be searched for."""
    for folder in evidence.traces:
        if evidence.checkpoint is None:
            yield Clue(says=f"{display_path(folder)}: a trace; give the weights that the program ran as --checkpoint")
        else:
            yield _of_trace(folder, evidence.checkpoint, evidence.previous_checkpoint, start, progress)


def _of_trace(folder: Path, checkpoint: Path, previous: Path | None, start: str, progress: Callback | None) -> Clue:
    name = display_path(folder)
    before = () if previous is None else (previous,)
    try:
        request = ExplainRequest(trace=folder, checkpoint=checkpoint, profile=start, previous=before)
        explained = explain_trace(request, progress, Stop(seconds=SECONDS))
    except MoeparityError as error:
        return Clue(says=f"{name}: a trace that can't be used: {error}")
    return _clue(explained, f"moeparity explain {name} --checkpoint {display_path(checkpoint)}", name)


def _start(case: Case) -> str:
    """The shipped profile that the trainer's engine begins with."""
    profile = case.engines["trainer"].variant.profile
    return profile if profile in shipped("profiles") else DEFAULTS["trainer"]


def _clue(explained: Explained, command: str, name: str) -> Clue:
    faulty = [part for part in explained.nodes if part.explained and not part.as_started and part.matches[0].faults]
    strange = [part for part in explained.nodes if part.searched and not part.explained]
    program = f"{name}, values of {explained.program}"
    if faulty:
        mistakes = list(dict.fromkeys(sentence for part in faulty for sentence in part.matches[0].faults))
        nodes = pattern(part.node for part in faulty)
        return Clue(
            says=f"{program}: at {nodes} the recorded bits are those of {few(mistakes, _NAMED)}",
            cause=few(list(_choices(faulty)), 1),
            change="look for it in this program's model code and configuration (docs/faults.md)",
            command=command,
        )
    if strange:
        where = f"{pattern(part.node for part in strange)}, first at {strange[0].node}"
        return Clue(says=f"{program}: no choices that were tried give the bits of {where}", command=command)
    unsearched = sum(not part.searched for part in explained.nodes)
    rest = f"; {counted(unsearched, 'node')} not searched in {SECONDS:.0f} seconds" if unsearched else ""
    says = f"{program}: legal choices give the bits of {counted(len(explained.nodes) - unsearched, 'node')}{rest}"
    return Clue(says=says, command=command)


def _choices(faulty: Sequence[Explanation]) -> Iterator[str]:
    """What stands for the faults, as `node:fault`."""
    yield from dict.fromkeys(str(part.matches[0]) for part in faulty)
