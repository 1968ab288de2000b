"""The tokens that an examination is about, and what each side recorded of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moeparity.doctor.evidence import Evidence
from moeparity.doctor.report import Party
from moeparity.errors import LogError, Where
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.logs.record import Sampling
from moeparity.logs.tokens import tokens_of
from moeparity.metrics.repeated import firsts


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The tokens of a log with what both engines recorded of them. stated: each way of sampling that the log states, if
    only by silence. further: what else they recorded (`logs.tokens.LoggedTokens`).
    """

    tokens: TokenSet
    left_out: int
    stated: tuple[Sampling, ...]
    further: Mapping[str, Tensor]

    @property
    def sampling(self) -> Sampling | None:
        """As the log states it of all sequences; None if it does so in several ways."""
        return self.stated[0] if len(self.stated) == 1 else None

    @property
    def recorded(self) -> dict[Party, Tensor]:
        """The recorded log-probabilities of all scored tokens, by party: fp64 [N] in nats, sequence after sequence, NaN
        for a token of which that party recorded none. A party without any is not in it.
        """
        scored = self.tokens.loss_mask
        columns: dict[Party, Tensor | None] = {"sampler": self.tokens.logprobs, "trainer": self.tokens.trainer_logprobs}
        of_party = {party: values[scored] for party, values in columns.items() if values is not None}
        return {party: values for party, values in of_party.items() if bool(values.isfinite().any())}

    @property
    def mask(self) -> Tensor:
        """bool [N]: the scored tokens at which every party that recorded anything did so."""
        mask = torch.ones(int(self.tokens.loss_mask.sum()), dtype=torch.bool)
        for values in self.recorded.values():
            mask &= values.isfinite()
        return mask

    @property
    def sequence(self) -> Tensor:
        """int64: the sequence of each token of `mask`; of sequences with the same tokens the first, since they say
        nothing about others.
        """
        tokens = self.tokens
        rows = torch.cat([tokens.input_ids, tokens.loss_mask, tokens.attention_mask], 1)
        first = firsts(torch.unique(rows, dim=0, return_inverse=True)[1])
        return first[tokens.loss_mask.nonzero()[:, 0][self.mask]]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is known before anything is computed."""

    evidence: Evidence
    of_log: Batch


def gathered(evidence: Evidence, most: int) -> Gathered:
    """The evidence with the first `most` sequences of the logs. Raises LogError."""
    of_log = batch(evidence, most)
    if not bool(of_log.mask.any()):
        raise LogError(f"{Where(evidence.logs[0])}: no token has a log-probability of every side that recorded any.")
    return Gathered(evidence, of_log)


def batch(evidence: Evidence, most: int) -> Batch:
    """The first `most` sequences of the logs. Raises LogError."""
    logged = tokens_of(evidence.opened(), most=most)
    return Batch(
        tokens=logged.tokens,
        left_out=logged.left_out,
        stated=tuple(sampling for sampling, _ in logged.sampling),
        further=logged.further,
    )
