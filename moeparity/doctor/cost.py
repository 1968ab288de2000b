"""How long an examination may take, by what one simulation takes on these tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass

from moeparity.bisection.cost import shown_time
from moeparity.doctor.case import Case, DoctorRequest, gather, opened
from moeparity.doctor.evidence_lines import evidence_lines
from moeparity.doctor.hypotheses import AS_CONFIGURED, coarse
from moeparity.doctor.scores import Run, scores
from moeparity.doctor.screening import Screening
from moeparity.output.blocks import Block, group, lines
from moeparity.progress import Callback

_MOST = 12
"""A whole examination, which names nothing, simulates up to so many times the number of coarse hypotheses."""
_LONGEST = 20
"""It takes up to so many times as long as these: 16 times where it was measured, since numbers are solved for and the
best hypotheses run on all sequences (`python -m benchmarks.doctor FOLDER --times`).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an examination simulates. evidence: what was found, in sentences. coarse: the hypotheses that are tried
    first, at each side. of_one: seconds that one takes on all tokens. fewest, most: seconds where one of the coarse
    ones settles it, and where nothing does.
    """

    evidence: tuple[str, ...]
    coarse: int
    of_one: float
    fewest: float
    most: float

    def blocks(self) -> tuple[Block, ...]:
        """As shown."""
        times = (
            f"{self.coarse} hypotheses are tried first, and up to {_MOST * self.coarse:,} in all.",
            f"One takes {shown_time(self.of_one)} on all tokens.",
            f"{shown_time(self.fewest)} if one of the first settles it, {shown_time(self.most)} if nothing does.",
        )
        return group("Evidence", lines(*self.evidence)), group("Expected", lines(*times))


def expected(request: DoctorRequest, progress: Callback | None = None) -> Expected:
    """What an examination of this evidence would take; runs the engines without a mistake, and no hypothesis. Raises
    MoeparityError for evidence that can't be used.
    """
    material = gather(request)
    case = opened(request, material, progress)
    of_one = _seconds_of_one(case)
    profiles = {case.profile_in_fp32(party) for party in case.recorded}
    first = sum(each is not AS_CONFIGURED for each in coarse(case.bench.model.graph, case.evidence.previous))
    sample = Screening.of(case).sample
    share = 1.0 if sample is None else sample.difference.d.numel() / case.difference.d.numel()
    fewest = first * len(profiles) * of_one * share
    return Expected(
        evidence=tuple(evidence_lines(material, case.engines)),
        coarse=first * len(case.recorded),
        of_one=of_one,
        fewest=fewest,
        most=_LONGEST * fewest,
    )


def _seconds_of_one(case: Case) -> float:
    """Seconds of one plan in fp32 on all tokens, alone."""
    profile, plan = next(iter(case.bench.exact.items()))
    begin = time.perf_counter()
    scores(case.bench.model, case.bench.tokens, {profile: Run(plan, case.bench.together)})
    return time.perf_counter() - begin
