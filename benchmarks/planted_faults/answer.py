"""What a report says, read from its fields: the only file that knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeparity.bisection.report import Report
from moeparity.bisection.toggles.data import TrialResult
from moeparity.plan.sides import CANDIDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Choices that are claimed to give a function's bits; `whole`: all of them, and not only where it was looked at."""

    choices: tuple[str, ...]
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One report's claims; None where nothing is said.

    roots: by node the number of sequences, in their order. same_values: the first is said to differ in dtype only;
    tokens, padded: in how many tokens it differs, and whether in padding only.
    names: by node of a user's function the choices claimed, the first first; empty where none are.
    roles: by toggle. trials: by toggle the KL alone and restored (None: an op refuses it). whole: the KL that shares
    are taken of, all in nats per scored token.
    not_finite: the first node named that has a value that is not finite, with a sequence and a position. offset: two
    nodes named as a pair that cancels. unsteady: nodes named as not deterministic.
    """

    roots: Mapping[str, int]
    same_values: bool
    tokens: int | None
    padded: bool | None
    names: Mapping[str, tuple[Claim, ...]]
    roles: Mapping[str, str]
    trials: Mapping[str, tuple[float | None, float | None]]
    whole: float | None
    not_finite: tuple[str, int, int] | None
    offset: frozenset[str] | None
    unsteady: frozenset[str] | None


def answer_of(report: Report) -> Answer:
    """The claims of a report."""
    shares = report.attribution.shares if report.attribution else None
    first = report.roots[0] if report.roots else None
    return Answer(
        roots={root.node: root.sequences for root in report.roots},
        same_values=first is not None and first.same_values,
        tokens=None if first is None else first.tokens,
        padded=None if first is None else first.pads_only,
        names={node.node: tuple(_claim(match) for match in node.found if match.exact) for node in report.nearest},
        roles={row.name: row.role for row in shares.rows if row.depth == 0} if shares else {},
        trials={
            toggle.name: (_kl(toggle.alone), _kl(toggle.restored)) for toggle in report.toggles if toggle.parent is None
        },
        whole=shares.total if shares else None,
        not_finite=_not_finite(report),
        offset=_offset(report),
        unsteady=frozenset(region.node for region in report.not_deterministic) or None,
    )


def _claim(match: Any) -> Claim:
    return Claim(choices=match.choices, whole=match.compared == 1)


def _kl(trial: TrialResult | None) -> float | None:
    return None if trial is None else trial.kl


def _not_finite(report: Report) -> tuple[str, int, int] | None:
    section = report.nonfinite
    places = [place for place in section.first if place.side == CANDIDATE] if section else []
    return (places[0].node, places[0].sequence, places[0].position) if places else None


def _offset(report: Report) -> frozenset[str] | None:
    pairs = report.offsets
    return frozenset((pairs[0].first_nodes, pairs[0].second_nodes)) if pairs else None
