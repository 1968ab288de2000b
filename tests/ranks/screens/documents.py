"""What the journals of a job tell, by hand: ranks in step, ranks apart, ranks that are lost, weights of nobody."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moeparity.output.blocks import Document
from moeparity.ranks.report import JobReport, RankLine, Undeclared
from moeparity.ranks.show import document
from tests.screens import Screens

FIRST = RankLine(rank=0, host="host0", pid=111, calls=11, last=10, end="ended", error="")
SECOND = replace(FIRST, rank=1, host="host1", pid=222)
JOB = JobReport(folder="journals", ranks=(FIRST, SECOND), missing=(), difference="", undeclared=None)
WEIGHTS = Undeclared(tensors=1, apart=(), moment="at start and after 7 updates")
NAMES = tuple(f"layers.{i}.experts.gate" for i in range(6))


def ended(*ends: str) -> tuple[RankLine, ...]:
    """Ranks that ended so, of which none but the first finished a call."""
    return tuple(
        replace(FIRST, rank=rank, pid=111 * rank, end=end, last=None if rank else 10, calls=0 if rank else 11)
        for rank, end in enumerate(ends)
    )


def journal(**fields: object) -> Document:
    return document(replace(JOB, **fields), "journals")  # type: ignore[arg-type]


RANKS: Screens = {
    "in step": journal(),
    "one rank": journal(ranks=(FIRST,)),
    "out of step": journal(ranks=ended("told", "told"), difference="call 7: rank 1 has allreduce, others broadcast."),
    "one left by an error": journal(ranks=ended("ended", "left"), difference="rank 1 left with ValueError: a message"),
    "one without a journal": journal(ranks=(FIRST,), missing=(1,)),
    "several without a journal": journal(ranks=(FIRST,), missing=(1, 2, 3, 7)),
    "one lost": journal(ranks=ended("ended", "lost")),
    "several lost": journal(ranks=ended("ended", "lost", "lost")),
    "one weight that nobody declared, alike": journal(undeclared=WEIGHTS),
    "several weights that nobody declared, apart": journal(
        undeclared=Undeclared(tensors=8, apart=NAMES, moment="after 1 update")
    ),
}
DOCUMENTS: Mapping[str, Screens] = {"ranks": RANKS}
