"""What no scored token may be, whoever wrote the log: a number comes out only of log-probabilities that are ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeparity.errors import LogError
from moeparity.logs.record import Sequence
from moeparity.tokens.tokenset import LARGEST_LOGPROB

NONE_GIVEN = -9999.0
"""What OpenAI's and vLLM's servers write for a log-probability that they have not, or that is -inf."""
_FEWEST = 8
"""Scored tokens from which on a side of nothing but exact zeros is taken for a placeholder."""


def checked(sequence: Sequence) -> Sequence:
    """The sequence, once its scored log-probabilities are found to be such. Raises LogError with the token's index."""
    every = bool(sequence.mask.all())
    sides = {"the sampler's": sequence.rollout, "the trainer's": sequence.trainer}
    scored = {name: values if every else values[sequence.mask] for name, values in sides.items() if values is not None}
    for name, values in scored.items():
        if not values.numel():
            continue
        low, high = torch.aminmax(values)
        # NaN fails both comparisons, and aminmax hands it on.
        if not (float(low) > NONE_GIVEN and float(high) <= LARGEST_LOGPROB):
            raise _refusal(sequence, name, values)
    for name, values in scored.items():
        blank = len(values) >= _FEWEST and not bool(values.any())
        if blank and any(bool(other.any()) for other in scored.values()):
            raise LogError(
                f"{sequence.where}: {name} log-probabilities are 0 at all {len(values)} scored tokens: a placeholder, "
                "as trainers write where they computed none. Log them with log-probabilities, or mask the tokens."
            )
    return sequence


def _refusal(sequence: Sequence, side: str, values: Tensor) -> LogError:
    bad = ~((values > NONE_GIVEN) & (values <= LARGEST_LOGPROB))
    place = int(sequence.mask.nonzero()[bad.nonzero()[0, 0], 0])
    value = float(values[bad][0])
    at = f"{sequence.where}: token {place} of sequence {sequence.id} is scored, but {side} log-probability there is"
    if math.isnan(value):
        return LogError(f"{at} missing (NaN or null). Mask the token, or log the value.")
    if value > 0:
        return LogError(f"{at} {value:g}; expected nats, at most 0. Is it a probability, or its negative logarithm?")
    if value == -torch.inf:
        return LogError(
            f"{at} -inf: that side could not have made this token. Other weights, another token, or a cut "
            "by top-p or top-k?"
        )
    return LogError(f"{at} {value:g}, which servers write for one they do not have. Ask for more `logprobs`.")
