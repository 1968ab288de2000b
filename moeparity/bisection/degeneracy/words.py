"""What is degenerate, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moeparity.bisection.degeneracy.report import Degeneracy
from moeparity.errors import counted
from moeparity.metrics.verdict import Verdict
from moeparity.output.words import few

_NAMED = 3


def reasons(degeneracy: Degeneracy) -> Iterator[str]:
    """Why a pass would say nothing of a real model on real tokens."""
    if names := degeneracy.constant_weights:
        yield f"{few(names, _NAMED)}: every number of the matrix is the same"
    if degeneracy.flat:
        yield (
            f"logits of {counted(degeneracy.flat, 'scored token')} of {degeneracy.scored_tokens:,} spread over the "
            "vocabulary by less than one of their own roundings"
        )
    if 0 < degeneracy.sequences == degeneracy.constant_sequences:
        yield "every sequence repeats one token id"


def repeated(degeneracy: Degeneracy) -> str | None:
    """That sequences repeat others, which count once; None where none does."""
    if degeneracy.distinct == degeneracy.sequences:
        return None
    return (
        f"Of {counted(degeneracy.sequences, 'sequence')} only {degeneracy.distinct:,} are different; the same tokens "
        "again are counted once."
    )


def sound(verdict: Verdict, degeneracy: Degeneracy) -> Verdict:
    """The verdict; a pass on what is degenerate is inconclusive."""
    causes = "; ".join(reasons(degeneracy))
    if not causes or verdict.status != "pass":
        return verdict
    return replace(verdict, status="inconclusive", reason=f"{causes}: {verdict.reason}, which says nothing here")
