"""A side that gives every token of the vocabulary the same probability: its values ended in zeros on the way, so its
log-probabilities do not say where.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from moeparity.doctor.case import Case
from moeparity.doctor.report import Clue, Party
from moeparity.doctor.standing import Standing

_EQUAL = 1e-3
"""Nats: logits that are all the same, as their log-softmax is written in a log."""
_FEWEST = 2


def is_uniform(case: Case, party: Party) -> bool:
    """Whether a party recorded -ln V at every token, V the size of the vocabulary."""
    recorded, vocabulary = case.recorded[party], int(case.bench.model.graph.config["vocab_size"])
    return recorded.numel() >= _FEWEST and float((recorded + math.log(vocabulary)).abs().max()) < _EQUAL


def of_uniform(case: Case) -> Iterator[Clue]:
    """A clue for each party whose logits are all the same."""
    for party in case.recorded:
        if is_uniform(case, party):
            vocabulary = int(case.bench.model.graph.config["vocab_size"])
            yield Clue(
                says=f"the {party} gives every token the same probability, 1 of {vocabulary:,}: its logits are all the "
                "same. Weights of zero do that, and so do values too large to be squared, which a norm divides to zero"
            )


def equals_as_rivals(case: Case, stand: Standing) -> Standing:
    """The standing, in which nothing is the plainest name of a uniform distribution: whatever makes the same is a rival
    there, since these mistakes have nothing in common but their end.
    """
    party = stand.first.party
    if party is None or not is_uniform(case, party):
        return stand
    return replace(stand, rivals=(*stand.alike, *stand.rivals), alike=())
