"""What is missing, most informative first, with what each would settle."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.doctor.case import Case
from moeparity.doctor.engines import BY_DEFAULT, DEFAULTS
from moeparity.doctor.report import PARTIES, Answer

_SETTLED = {"named", "as configured", "logged", "found"}


def asks(case: Case, answer: Answer) -> Iterator[str]:
    """Sentences on what is missing; none if the answer is clear. A side's record comes first, since it halves what may
    be wrong; then evidence that names tensors without a model of the run; then evidence that shows values; then more
    sequences, which narrow intervals. If there is no interval, more sequences come first.
    """
    if answer in _SETTLED:
        return
    evidence = case.evidence
    more = "more sequences (--sequences, or a larger log): intervals are over sequences, and more tell rivals apart"
    has_interval = math.isfinite(case.difference.mean(case.difference.d).high)
    if not has_interval:
        yield more
    for party in PARTIES:
        if party not in case.recorded:
            yield f"log-probabilities that the {party} recorded: they settle which side is wrong"
    if not evidence.fingerprints:
        yield (
            "fingerprints of the weights that the engines hold (`moeparity weights` reads them, docs/weights.md says "
            "how they are written): they settle which tensors are not the checkpoint's, without any simulation"
        )
    if evidence.previous is None and evidence.adapter is not None:
        yield "--previous FOLDER, the adapter before the update: it settles whether a part of it is stale"
    elif evidence.previous is None:
        yield "--previous FOLDER, the weights before the update: it settles whether a part of them is stale"
    defaults = [party for party in PARTIES if case.engines[party].by == BY_DEFAULT]
    if defaults:
        names = " and ".join(f"{party} (simulated: {DEFAULTS[party]})" for party in defaults)
        yield (
            f"launch files or resolved arguments of the {names}, or its profile as --{defaults[0]}: they settle what "
            "the engines legally differ in, so that this hides no cause"
        )
    if not evidence.traces and answer != "noise":
        yield (
            "a trace of one forward (`moeparity capture`): it settles at which op a side stops computing what its "
            "profile says"
        )
    if case.of_log.tokens.routed_experts is None and answer != "noise":
        yield "routes in the log (routed experts of each token): they settle in which layer routing begins to differ"
    if answer == "undecided" and has_interval:
        yield more
