"""The evidence and what it was taken for, in three lines, and what is left aside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from moeparity.doctor.batch import Gathered
from moeparity.doctor.engines import Engine
from moeparity.doctor.evidence import Files
from moeparity.doctor.report import PARTIES, Party
from moeparity.errors import counted, display_path
from moeparity.output.words import enumerated, few

_ASIDE = 4


def evidence_lines(material: Gathered, engines: Mapping[Party, Engine]) -> Iterator[str]:
    """The tokens and who recorded them; the weights; the engines, if anything was simulated."""
    evidence, of_log = material.evidence, material.of_log
    used = int(torch.unique(of_log.sequence).numel())
    sequences = counted(evidence.sequences, "sequence")
    if used < evidence.sequences:
        sequences = f"{used:,} of {sequences}, the first that every side scored"
    logs = few([display_path(path) for path in (*evidence.logs, *evidence.trainer_logs)], 2)
    routes = "" if of_log.tokens.routed_experts is None else ", with routes"
    tokens, parties = counted(int(of_log.mask.sum()), "token"), enumerated([*of_log.recorded])
    yield f"{logs}: {tokens} of {sequences}, recorded by {parties}{routes}"
    before = "no checkpoint of the weights before the update"
    if evidence.previous is not None:
        part = "the adapter" if evidence.previous_checkpoint is None else "those"
        before = f"{display_path(evidence.previous)}: {part} before the update"
    beside = "" if evidence.adapter is None else f", with the adapter {display_path(evidence.adapter)}"
    yield f"{display_path(evidence.checkpoint)}{beside}: the weights that both sides were to have; {before}"
    if engines:
        yield "; ".join(f"{party}: {engines[party].name} {engines[party].by}" for party in PARTIES)


def lines_without_log(files: Files) -> Iterator[str]:
    """What there is beside a log, and the weights, if anything is held to them."""
    kinds = {"trace": files.traces, "fingerprint of weights": files.fingerprints, "folder of journals": files.journals}
    there = [display_path(path) + f": a {kind}" for kind, paths in kinds.items() for path in paths]
    yield f"no log of log-probabilities; {few(there, _ASIDE)}"
    if files.checkpoint is not None:
        yield f"{display_path(files.checkpoint)}: the weights that a program was to have"


def aside_lines(evidence: Files) -> Iterator[str]:
    """The files that are not used, each with its reason; if there are many, the first of them."""
    for stranger in evidence.strangers[:_ASIDE]:
        # The rest of the message says what the reader expected, which helps only users who meant to give such a file.
        yield f"not used: {stranger.reason.splitlines()[0].partition('. ')[0].removesuffix('.')}"
    more = len(evidence.strangers) - _ASIDE
    if more > 0:
        names = few([display_path(each.path) for each in evidence.strangers[_ASIDE:]], _ASIDE)
        yield f"not used either, for other reasons: {names}"
