"""The decoy suite: moeparity on each case, and its report held to the truth that was fixed before."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import moeparity
from benchmarks.planted.cases import SEQUENCES, Case
from moeparity.bisection.options import Options
from moeparity.bisection.report import Report

BLAMED = frozenset({"culprit", "saturated"})
"""Roles that put the blame on a toggle, alone or together with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What moeparity's report says of a case.

    roles, shares: by toggle; a share with its 95 % interval over sequences and its standard error from drawn orders,
        all in nats per token.
    roots: the nodes at which a difference begins. first: the toggle with the largest share among those blamed.
    seconds: CPU time of this process; bytes: of the report as JSON.
    """

    status: str
    whole: float
    roles: Mapping[str, str]
    shares: Mapping[str, tuple[float, float, float, float]]
    roots: tuple[str, ...]
    fixes: int
    mixtures: int
    passes: int
    seconds: float
    bytes: int

    def with_role(self, role: str) -> frozenset[str]:
        """The toggles with that role."""
        return frozenset(key for key, of_key in self.roles.items() if of_key == role)


def answer_of(data: dict[str, Any]) -> Answer:
    """The inverse of `asdict`."""
    shares = {key: tuple(interval) for key, interval in data["shares"].items()}
    return Answer(**{**data, "shares": shares, "roots": tuple(data["roots"])})


def write_recipe(case: Case, folder: Path, sequences: int = SEQUENCES) -> Path:
    """The recipe of a case, all sequences in one micro-batch as the truth ran them."""
    same = {each.key: each.reference for each in case.planted if each.reference != "model"}
    side: dict[str, Any] = {"profile": "hf-eager", "micro_batch": sequences, "dtype": case.dtype}
    recipe = {
        "kind": "recipe",
        "checkpoint": "checkpoint",
        "tokens": {"file": "tokens.safetensors", "sampled_from": "candidate"},
        "reference": {**side, "set": same},
        "candidate": {**side, "set": {each.key: each.candidate for each in case.planted}},
        "gate": {"metric": "k3", "below": 1e-4},
        "floor": False,
        "attribute": True,
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1), "utf-8")
    return path


def ask(case: Case, folder: Path, sequences: int = SEQUENCES) -> Answer:
    """Run moeparity on a case in a folder that holds its checkpoint and so many sequences of tokens."""
    started = time.process_time()
    path = write_recipe(case, folder, sequences)
    report = moeparity.bisect(path, device="cpu", options=Options(memory_limit=float("inf")))
    return read(report, time.process_time() - started)


def read(report: Report, seconds: float) -> Answer:
    """What the report says, by toggle."""
    attribution = report.attribution
    assert attribution is not None, "asked for by the recipe"
    rows = [row for row in attribution.shares.rows if row.depth == 0]
    return Answer(
        status=report.verdict.status,
        whole=attribution.shares.total or 0.0,
        roles={row.name: row.role for row in rows},
        shares={row.name: (row.share, row.low, row.high, row.standard_error) for row in rows},
        roots=tuple(root.node for root in report.roots),
        fixes=len(attribution.fixes),
        mixtures=attribution.mixtures,
        passes=report.cost.search_passes,
        seconds=seconds,
        bytes=len(json.dumps(asdict(report), default=str)),
    )
