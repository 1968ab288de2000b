"""Which side is nearer the truth, in words: parity and accuracy are different questions."""

from __future__ import annotations

from moeparity.bisection.oracle.report import Standing

_PARITY = {"pass": "", "fail": ", yet not parity", "inconclusive": ", yet parity is not shown"}


def accuracy_reading(
    standing: Standing, status: str, *, ratio: float, reference: float, candidate: float, change: tuple[float, float]
) -> str:
    """One sentence on a candidate's `standing`.

    `status` is the verdict on parity; `ratio` the candidate's L2 distance from the oracle at the logits over the
    reference's; `reference` and `candidate` KL(side || oracle) and `change` the bounds of their difference, in nats
    per token.
    """
    numbers = f"KL to the oracle {candidate:.3g} against {reference:.3g} nats per token"
    if standing == "level":
        return f"Both sides are equally near the truth: {numbers}."
    error = f"{ratio:.2g} x the reference's error at the logits"
    if standing == "undecided":
        return (
            f"Neither side is shown to be nearer the truth: the candidate has {error}, {numbers}, and the interval of "
            f"the difference, {change[0]:.3g} to {change[1]:.3g}, decides nothing."
        )
    # The standing is decided by the KL; the error at the logits, which the softmax does not weigh, may disagree.
    conjunction = "with" if (ratio < 1) == (standing == "nearer") else "though with"
    place = "nearer the truth" if standing == "nearer" else "less accurate"
    parity = _PARITY[status] if standing == "nearer" else ""
    return f"The candidate is {place}{parity}: {numbers}, {conjunction} {error}."
