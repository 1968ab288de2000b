"""Warnings about degenerate weights, tokens and logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moeparity.bisection.data import ReportData
from moeparity.bisection.degeneracy.data import Degeneracy
from moeparity.errors import counted
from moeparity.metrics.verdict import Verdict
from moeparity.output.blocks import Lines, warnings
from moeparity.output.words import few

_NAMED = 3


def reasons(degeneracy: Degeneracy) -> Iterator[str]:
    """A sentence for each reason why a pass would say nothing about a real model on real tokens."""
    if names := degeneracy.constant_weights:
        yield f"{few(names, _NAMED)}: every number of the matrix is the same"
    if degeneracy.flat:
        yield (
            f"logits of {counted(degeneracy.flat, 'scored token')} of {degeneracy.scored_tokens:,} spread over the "
            "vocabulary by less than one ulp"
        )
    if 0 < degeneracy.sequences == degeneracy.constant_sequences:
        yield "every sequence repeats one token id"


def repeated(degeneracy: Degeneracy) -> str | None:
    """A sentence saying how many sequences repeat others, which count once; None if none does."""
    if degeneracy.distinct == degeneracy.sequences:
        return None
    return (
        f"Of {counted(degeneracy.sequences, 'sequence')} only {degeneracy.distinct:,} are different; a repeated "
        "sequence counts once."
    )


def sound(verdict: Verdict, degeneracy: Degeneracy) -> Verdict:
    """The verdict; a pass becomes inconclusive if something is degenerate."""
    causes = "; ".join(reasons(degeneracy))
    if not causes or verdict.status != "pass":
        return verdict
    return replace(verdict, status="inconclusive", reason=f"{causes}: {verdict.reason}, which says nothing here")


def show(report: ReportData) -> Iterator[Lines]:
    """The warnings; nothing if all is well."""
    again = repeated(report.degeneracy)
    yield from warnings(
        [*([again] if again else []), *(f"Degenerate: {reason}." for reason in reasons(report.degeneracy))]
    )
