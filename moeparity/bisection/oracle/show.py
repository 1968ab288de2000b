"""Both sides against the oracle, in a sentence and as a table with a row for each layer."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.oracle.data import Oracle, Standing
from moeparity.output.blocks import Group, Styled, Table, bullets, columns, group, table

_PARITY = {"pass": "", "fail": ", yet not parity", "inconclusive": ", yet parity is not shown"}


def accuracy_reading(
    standing: Standing, status: str, *, ratio: float, reference: float, candidate: float, change: tuple[float, float]
) -> str:
    """One sentence on a candidate's `standing`.

    status: the verdict on parity. ratio: the candidate's L2 distance from the oracle at the logits over the
    reference's.
    reference, candidate: KL(side || oracle); change: the bounds of their difference; all in nats per token.
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
    # The KL decides. The distance at the logits, which no softmax weighs, may say the opposite.
    conjunction = "and" if (ratio < 1) == (standing == "nearer") else "although"
    place = "nearer the truth" if standing == "nearer" else "less accurate"
    parity = _PARITY[status] if standing == "nearer" else ""
    return f"The candidate is {place}{parity}: {numbers}, {conjunction} it has {error}."


def show(report: ReportData) -> Iterator[Group]:
    """The group about which side is nearer to the fp64 run."""
    if report.oracle is not None:
        yield group("Against the oracle", oracle_table(report.oracle), bullets([report.oracle.reading]))


def oracle_table(oracle: Oracle) -> Table:
    """A row for each layer: both sides' distances, and which is nearer."""
    rows = [
        (node.node, f"{node.reference.relative_l2:.2e}", f"{node.candidate.relative_l2:.2e}", f"{node.ratio:.2f}")
        for node in oracle.layers
    ]
    note = Styled("relative L2 of carried values; ratio: candidate over reference.", "dim")
    return table(columns("reference", "candidate", "ratio", first="distance from fp64 after"), rows, note)
