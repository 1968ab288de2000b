"""What must be said of a drawn job, seen from outside: exit codes, words, processes and files left, seconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moeparity.errors import MoeparityError
from moeparity.ranks.differing_fields import ranks_in_words
from moeparity.ranks.report import job_report
from tests.ranks.drawn.case import COLLECTIVE, LOST, Case, Fault, draws_first
from tests.ranks.launch import Ended

RAISED = re.compile(r"^(?:\[rank\d+\]: )?moeparity\.errors\.RankError: (.*)", re.MULTILINE)
TOLD = re.compile(r"^moeparity ranks: (.*)", re.MULTILINE)
CAUGHT = re.compile(r"^caught: (.*)", re.MULTILINE)
PLANTED = re.compile(r"^planted ([0-9.]+)$", re.MULTILINE)
WITHIN_S = 30.0
"""Beside twice the watchdog's time, so long may it take until all processes have ended, on a machine under load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a drawn job went. `seconds`: from the fault to the end of the last process, or of all for a job without any.
    `says`: what was told. `breach`: what should not be; empty where all is right.
    """

    seconds: float
    says: str
    breach: str


def judge(case: Case, ended: Ended, begun: float, folder: Path) -> Outcome:
    """Hold a job to what must be said of it."""
    times = [float(each) for output in ended.outputs for each in PLANTED.findall(output)]
    # A rank that comes too late ends when it has come.
    late = {fault.on for fault in case.faults if fault.kind == "never enters"}
    last = max(time for rank, time in enumerate(ended.times) if rank not in late)
    seconds = ended.seconds if not times else begun + last - min(times)
    texts = list(dict.fromkeys(text for rank in range(case.ranks) for text in _texts(ended, rank)))
    breaches = [*_leftovers(ended, folder), *(_faulty(case, ended, texts) if times else _clean(case, ended, texts))]
    if case.faults and not times:
        breaches.append("the fault was not planted")
    if times and seconds > 2 * case.settings["watchdog_s"] + WITHIN_S:
        breaches.append(f"{seconds:.1f} s until the end")
    if case.journal:
        breaches += _journals(case, folder / "journal")
    return Outcome(seconds=seconds, says=" / ".join(texts)[:600], breach="; ".join(breaches))


def _texts(ended: Ended, rank: int) -> list[str]:
    return [
        *CAUGHT.findall(ended.outputs[rank]),
        *RAISED.findall(ended.errors[rank]),
        *TOLD.findall(ended.errors[rank]),
    ]


def _leftovers(ended: Ended, folder: Path) -> Iterator[str]:
    if ended.leftovers:
        yield f"{len(ended.leftovers)} processes were left"
    files = [file.name for file in folder.iterdir() if file.name != "journal"]
    if files:
        yield f"files were left: {files}"


def _clean(case: Case, ended: Ended, texts: list[str]) -> Iterator[str]:
    if texts:
        yield "false alarm"
    if set(ended.codes) != {0}:
        yield f"exit codes {ended.codes}: {_error(ended)}"
    elif any(ended.errors):
        yield f"something on standard error: {_error(ended)}"


def _faulty(case: Case, ended: Ended, texts: list[str]) -> Iterator[str]:
    wanted = [pattern for fault in case.faults for pattern in expected(case, fault)]
    wrong = [text for text in texts if not any(re.search(pattern, text) for pattern in wanted)]
    if not texts:
        yield f"nothing was said: {_error(ended)}"
    if wrong:
        yield f"said instead: {wrong}"
    for rank, code in enumerate(ended.codes):
        if code not in _codes(case, ended, rank):
            yield f"rank {rank} ended with {code}: {ended.errors[rank][-1500:]}"


def _codes(case: Case, ended: Ended, rank: int) -> set[int]:
    """The exit codes that a rank may end with, by what it said."""
    kinds = {fault.kind for fault in case.faults if fault.on == rank}
    lost = {-9} if {"killed", "stopped"} & kinds else set[int]()
    if CAUGHT.search(ended.outputs[rank]):
        return lost | {0}
    # Gloo itself aborts a rank that is sent more bytes than it expects.
    aborted = "gloo::EnforceNotMet" in ended.errors[rank] and {f.kind for f in case.faults} & set(COLLECTIVE)
    return lost | {1} | ({-6} if aborted else set())


def _journals(case: Case, folder: Path) -> Iterator[str]:
    """The journals tell afterwards what was said."""
    try:
        report = job_report(folder)
    except MoeparityError as error:
        yield f"journals: {error}"
        return
    if not case.faults and report.exit_code:
        yield f"journals: exit code {report.exit_code}, {report.difference}"
    wanted = [pattern for fault in case.faults for pattern in expected(case, fault)]
    if wanted and not any(re.search(pattern, report.difference) for pattern in wanted):
        yield f"journals say {report.difference!r}"


def _error(ended: Ended) -> str:
    return next((error[-1500:] for error in ended.errors if error), "")


def expected(case: Case, fault: Fault) -> list[str]:
    """Patterns of what may be said of a fault: each names the rank and the call."""
    rank, call = fault.on, fault.call
    if fault.kind in COLLECTIVE:
        return _of_collective(case, fault)
    if fault.kind in LOST:
        return [_of_lost(case, fault)]
    every = case.settings
    inputs, weights, cache = (_next(call, every[name]) for name in ("inputs_every", "weights_every", "cache_every"))
    weights = max(weights, every["weights_every"])
    plain = {
        "variable": ("at start", r"environment\.\$CUBLAS_WORKSPACE_CONFIG", ":4096:8", "absent"),
        "backend": ("at start", r"environment\.given\.attention", "fa4", "flash"),
        "envelope": (f"call {inputs}", r"envelope\.action", '"noop"', '"infer"'),
        "input bit": (f"call {inputs}", r"tensors\.inputs\.bytes", r"\w{16}", r"\w{16}"),
        "input dtype": (f"call {inputs}", r"tensors\.inputs\.dtype", "float64", "float32"),
        "input shape": (f"call {inputs}", r"tensors\.inputs\.shape", r"\[3, 8\]", r"\[4, 8\]"),
        "weight bit": (f"call {weights}", r"weights\.[01]\.(weight|bias)", r"changed to \w{16}", "unchanged"),
        "cache": (f"call {cache}", r"cache\.current_start_frame", "7", str(3 * cache)),
    }
    if fault.kind in plain:
        at, field, words, theirs = plain[fault.kind]
        return [
            rf"^{at}: ranks are not in step\. {_holders(case, rank, field, words, theirs)}( \(\d+ further|\. Set it|$)"
        ]
    others = _others(case, rank)
    anew = f"call {call}, looking at weights anew"
    drew = rf"call {call}: ranks are not in step\. rng\.torch: "
    return {
        "skipped call": [_of_skipped(case, fault)],
        "same shard": [rf"^at start: weights\.1\.weight: {ranks_in_words(range(case.ranks))} have the same bits"],
        "other replica": [rf"^at start: {_holders(case, rank, r'weights.0.weight', '.*', '.*')}; every rank holds all"],
        "never enters": [
            rf"^rank {rank} gave no sign of life: not in the guard yet",
            # What it is told itself when it comes too late.
            r"^starting: the job's store is gone, and the process that held it",
            *([r"rank 0 was not in its guard"] if rank == 0 else []),
        ],
        "extra draw": [rf"^{drew}rank {rank} drew 1 number more than {others}$"],
        "forgotten update": [
            rf"^call {call}(, looking.*)?: ranks are not in step\. {_holders(case, rank, 'at', f'call {call}', anew)}$"
        ],
        "raises": [rf"rank {rank} is not there any more(, nor.*)?: it left in call {call} by ValueError: planted\."],
        "leaves": [
            rf"^\S.*: ranks are not in step\. {_holders(case, rank, 'at', 'the end', _waiting(case, call))}$",
            rf"^control flow diverged\. collectives\.0: the first .*\brank {rank} none, at the end",
        ],
    }[fault.kind]


def _waiting(case: Case, call: int) -> str:
    """Where ranks are that wait for one that left before this call: at its guard, or at the noise in front of it."""
    number = call * sum(op != "part" for op in ("noise", *case.ops))
    return rf"(call {call}|(between calls, after {call - 1}|before the first call), collective {number} of 0)"


def _of_collective(case: Case, fault: Fault) -> list[str]:
    """The number of the collective in its group, and what was called by the rank and by others."""
    rank_words = rf"(\b|^)rank {fault.on} .*"
    noise = case.settings["rng"] == "broadcast"
    before = sum(op != "part" for op in case.ops[: fault.op])
    world = fault.call * (noise + sum(op != "part" for op in case.ops)) + noise + before
    differs = rf"(?=.*{rank_words})(?=.*in call {fault.call}\b)"
    logged = [rf"collectives\.0: the first that differs is number {world}: {differs}"]
    touched = case.ops[fault.op : fault.op + (2 if fault.kind == "exchanged order" else 1)]
    if "part" in touched and fault.kind != "extra collective":
        logged.append(rf"collectives\.1: the first that differs is number {fault.call}: {differs}")
    # Ranks that check a collective before it runs have not called it yet.
    logged.append(rf"collectives\.1: the first .*: (?=.*, before collective {world} of 0){differs}")
    at = rf"(in call {fault.call}|between calls, after {fault.call}), collective {world} of 0"
    return [*logged, rf"^({at}|call {fault.call + 1}): ranks are not in step\. {differs}.*({at}|called by)"]


def _of_skipped(case: Case, fault: Fault) -> str:
    """From the third call on, what the envelope counts is known."""
    chunk = _holders(case, fault.on, r"envelope\.chunk", str(fault.call + 1), str(fault.call))
    words = rf"rank {fault.on} 1 call ahead, as if call {fault.call} had been skipped: "
    if fault.call < 2:
        drew = rf"rng\.torch: rank {fault.on} drew 8 numbers more than {_others(case, fault.on)}; "
        words = drew if draws_first(case, fault) else ""
    return rf"^call {fault.call}: ranks are not in step\. {words}{chunk}( \(\d+ further|$)"


def _of_lost(case: Case, fault: Fault) -> str:
    rank, call = fault.on, fault.call
    if fault.kind == "slow":
        before = f"between calls, after {call - 1}" if call else "before the first call"
        where = before if fault.place == "before" else f"in call {call}"
        return rf"^rank {rank} is slow or stuck: {where}\b"
    how = {"killed": "was killed", "stopped": "is stopped"}[fault.kind]
    calls = {"before": (call - 1,), "in call": (call,), "in collective": (call, call + 1), "in guard": (call,)}
    names = "|".join(
        "(start|before the first call)" if c < 0 else rf"(call {c}|between calls, after {c})\b"
        for c in calls[fault.place]
    )
    return rf"^rank {rank} {how}\. Its last sign of life: .*({names})"


def _next(call: int, every: int) -> int:
    return -(-call // every) * every


def _others(case: Case, rank: int) -> str:
    return ranks_in_words(each for each in range(case.ranks) if each != rank)


def _holders(case: Case, rank: int, field: str, words: str, theirs: str) -> str:
    """A field with who has what, in the order of the ranks."""
    mine, rest = f"rank {rank} {words}", f"{_others(case, rank)} {theirs}"
    return f"{field}: {mine}, {rest}" if rank == 0 else f"{field}: {rest}, {mine}"
