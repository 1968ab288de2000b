"""Answers without a simulation: what files tell by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from moeparity.doctor.batch import Gathered
from moeparity.doctor.evidence import Files
from moeparity.doctor.evidence_lines import aside_lines, evidence_lines, lines_without_log
from moeparity.doctor.judge import Difference
from moeparity.doctor.report import Answer, Clue, Examination
from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Interval
from moeparity.search.blame import Blame


def causes(clues: Sequence[Clue], logged: tuple[str, ...]) -> tuple[str, ...]:
    """The causes that files name by themselves; if none does, those that the log names."""
    return tuple(clue.cause for clue in clues if clue.cause) or logged


def at_once(material: Gathered, clues: tuple[Clue, ...]) -> Examination:
    """The examination of evidence in which a file by itself names the cause, so that nothing is simulated."""
    of_log = material.of_log
    recorded, sequence = of_log.recorded, of_log.sequence
    apart = Difference(d=torch.full(sequence.shape, torch.nan, dtype=torch.float64), sequence=sequence)
    if recorded.keys() == {"sampler", "trainer"}:
        apart = replace(apart, d=(recorded["sampler"] - recorded["trainer"])[of_log.mask])
    return _unsimulated(
        answer="found",
        blame=Blame(kind="one", named=causes(clues, ()), confidence="sure"),
        evidence=tuple(evidence_lines(material, {})),
        aside=tuple(aside_lines(material.evidence)),
        clues=clues,
        size=apart.mean(apart.d.abs()),
        sequences=int(torch.unique(sequence).numel()),
        tokens=sequence.numel(),
    )


def without_log(files: Files, clues: tuple[Clue, ...]) -> Examination:
    """The examination of files without a log: what they tell by themselves."""
    names = causes(clues, ())
    ask = "a log of log-probabilities (docs/logs.md): it settles whether anything is wrong that these files do not show"
    return _unsimulated(
        answer="found" if names else "undecided",
        blame=Blame(kind="one", named=names, confidence="sure") if names else Blame(kind="undecided", would_decide=ask),
        evidence=tuple(lines_without_log(files)),
        aside=tuple(aside_lines(files)),
        clues=clues,
        size=token_mean(torch.zeros(0), torch.zeros(0)),
        asks=() if names else (ask,),
    )


def _unsimulated(
    *,
    answer: Answer,
    blame: Blame,
    evidence: tuple[str, ...],
    aside: tuple[str, ...],
    clues: tuple[Clue, ...],
    size: Interval,
    sequences: int = 0,
    tokens: int = 0,
    asks: tuple[str, ...] = (),
) -> Examination:
    """An examination without a simulation."""
    return Examination(
        answer=answer,
        blame=blame,
        evidence=evidence,
        aside=aside,
        clues=clues,
        records=(),
        size=size,
        left=size,
        legal=math.nan,
        legal_pair=(),
        logged=(),
        explanations=(),
        rivals=(),
        tried=0,
        sequences=sequences,
        tokens=tokens,
        asks=asks,
    )
