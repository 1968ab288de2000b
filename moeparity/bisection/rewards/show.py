"""The validation loss of both sides, in a table and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from moeparity.bisection.data import ReportData
from moeparity.bisection.rewards.data import Rewards
from moeparity.output.blocks import Group, bullets, columns, group, table
from moeparity.output.words import between, percent, quantity


def show(report: ReportData) -> Iterator[Group]:
    """The group about a reward model's losses."""
    if (rewards := report.rewards) is None:
        return
    rows = [
        (name, f"{loss.estimate:.4f}", between(loss.low, loss.high, ".4f"), percent(accuracy))
        for name, loss, accuracy in (
            ("reference", rewards.reference, rewards.reference_accuracy),
            ("candidate", rewards.candidate, rewards.candidate_accuracy),
        )
    ]
    head = columns("loss", "interval over pairs", "accuracy", first="side")
    yield group("Rewards", table(head, rows), bullets(rewards_reading(rewards)))


def rewards_reading(rewards: Rewards) -> Iterator[str]:
    """What lies between the losses, and what is noise, in sentences."""
    change, pairs = rewards.change, quantity(rewards.pairs, "pair")
    if rewards.largest == 0:
        yield f"All {pairs} have the same loss on both sides."
    else:
        bounds = between(change.low, change.high, "+.2g")
        yield (
            f"On the same pairs the candidate's loss is {change.estimate:+.2g} nats per pair from the reference's, "
            f"{bounds} over other pairs; of a single pair at most {rewards.largest:.2g}."
        )
    width = rewards.reference.high - rewards.reference.low
    if math.isfinite(width):
        yield (
            f"Other pairs give another loss by themselves: over draws of {pairs} the interval is {width:.2g} wide. So "
            "losses of two runs are compared on the same pairs."
        )
    if rewards.turned:
        yield f"{quantity(rewards.turned, 'pair')} of {rewards.pairs:,}: the two sides do not prefer the same sequence."
    if rewards.tied:
        yield f"{quantity(rewards.tied, 'pair')} of {rewards.pairs:,}: a side gives both sequences the same score."
