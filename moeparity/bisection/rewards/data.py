"""Losses of a reward model on both sides; plain data."""

from __future__ import annotations

from dataclasses import dataclass

from moeparity.metrics.verdict import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Both sides on pairs of sequences; losses in nats per pair, each pair once.

    reference, candidate: the Bradley-Terry loss, -log sigmoid(score of the chosen - score of the rejected); its
    interval is over pairs.
    change: the candidate's loss minus the reference's, pair by pair; its interval tells what other pairs would give.
    reference_accuracy, candidate_accuracy: the share of pairs whose chosen sequence has the higher score.
    turned: in how many pairs the sides do not prefer the same sequence.
    largest: the largest difference between the sides' losses of one pair.
    tied: pairs whose two scores are equal on a side.
    """

    pairs: int
    reference: Interval
    candidate: Interval
    change: Interval
    reference_accuracy: float
    candidate_accuracy: float
    turned: int
    largest: float
    tied: int
