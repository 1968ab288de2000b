"""How long the doctor takes: for what needs no weights, of 64 x 512 tokens, and for a whole examination of the shipped
checkpoint's 32 x 64 tokens that names nothing, which is the longest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.doctor.faults import other_activation
from moeparity.doctor.case import DoctorRequest, gather
from moeparity.doctor.clues import of_files
from moeparity.doctor.cost import expected
from moeparity.doctor.examine import examine
from moeparity.logs.log_files import measure_files
from moeparity.logs.request import MetricsRequest
from tests.doctor.programs import QUICKSTART, drifted, log, scored, tokens


def times(folder: Path) -> Iterator[str]:
    """A line for each."""
    yield _cheap(folder)
    yield _whole(folder)


def _cheap(folder: Path) -> str:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 256, (64, 512), generator=draw)
    values = -1 - torch.rand(64, 511, generator=draw)
    path = log(folder / "long.jsonl", ids, values, values + 0.01 * torch.randn(64, 511, generator=draw), prompt=64)
    begin = time.perf_counter()
    material = gather(DoctorRequest(evidence=(path,), checkpoint=QUICKSTART))
    clues = list(of_files(material.evidence))
    measure_files(material.evidence.logs, MetricsRequest())
    return f"64 x 512 tokens, all that needs no weights: {time.perf_counter() - begin:.1f} s, {len(clues)} clues"


def _whole(folder: Path) -> str:
    ids = tokens(32, 64)
    previous = folder / "previous"
    if not previous.exists():
        drifted(QUICKSTART, previous)
    sides = scored(QUICKSTART, ids, 1, patch=other_activation), scored(QUICKSTART, ids, 8)
    path = log(folder / "whole.jsonl", ids, *sides, prompt=8)
    request = DoctorRequest(evidence=(path,), checkpoint=QUICKSTART, previous=previous, every=True)
    estimate = expected(request)
    begin = time.perf_counter(), time.process_time()
    of = examine(request)
    wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
    return (
        f"{ids.shape[0]} x {ids.shape[1]} tokens of the shipped checkpoint, whole: {wall:.0f} s ({cpu:.0f} s of CPU, "
        f"{torch.get_num_threads()} threads), {of.tried} hypotheses, {of.answer}; "
        f"expected {estimate.fewest:.0f} to {estimate.most:.0f} s"
    )
