"""What no scored token may be, whoever wrote the log: a number comes out only of log-probabilities that are ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from moeparity.errors import LogError
from moeparity.inputs.tokens.tokenset import LARGEST_LOGPROB
from moeparity.logs.record import Sequence

NONE_GIVEN = -9999.0
"""What OpenAI's and vLLM's servers write for a log-probability that they have not, or that is -inf."""
_SAMPLER, _TRAINER = "the sampler's", "the trainer's"
FEWEST = 8
"""Scored tokens from which on a side of nothing but exact zeros is taken for a placeholder."""
_ENTROPY = (-0.1, 30.0)
"""Nats: bf16 rounds the entropy of a sure distribution below 0, and ln of the largest vocabulary is 13."""


def checked(sequence: Sequence) -> Sequence:
    """The sequence, once its scored log-probabilities are found to be such. Raises LogError with the token's index."""
    every = bool(sequence.mask.all())
    sides = {_SAMPLER: sequence.rollout, _TRAINER: sequence.trainer}
    scored = {name: values if every else values[sequence.mask] for name, values in sides.items() if values is not None}
    for name, values in scored.items():
        if values.numel():
            _check_values(sequence, name, values)
    _check_further(sequence)
    for name, values in scored.items():
        zeros = len(values) >= FEWEST and not bool(values.any())
        if zeros and any(bool(other.any()) for other in scored.values()):
            raise LogError(
                f"{sequence.where}: {name} log-probabilities are 0 at all {len(values)} scored tokens: a placeholder, "
                "as trainers write where they computed none. Log them with log-probabilities, or mask the tokens."
            )
    return sequence


def blank(sequence: Sequence) -> bool:
    """Whether both sides are exactly 0 wherever they are scored."""
    return not any(bool(side[sequence.mask].any()) for side in (sequence.rollout, sequence.trainer) if side is not None)


def _check_values(sequence: Sequence, side: str, values: Tensor) -> None:
    low, high = torch.aminmax(values)
    # NaN fails both comparisons, and aminmax hands it on.
    if float(low) > NONE_GIVEN and float(high) <= LARGEST_LOGPROB:
        return
    bad = ~((values > NONE_GIVEN) & (values <= LARGEST_LOGPROB))
    if side == _TRAINER:
        # A trainer may give a token of the sampler's no probability, which is a finding; a sampler cannot.
        bad &= values != -torch.inf
    if bool(bad.any()):
        place = int(sequence.mask.nonzero()[bad.nonzero()[0, 0], 0])
        fault = _fault(float(values[bad][0]))
        raise LogError(
            f"{sequence.where}: token {place} of sequence {sequence.id} is scored, but {side} log-probability there is "
            f"{fault}"
        )


def _check_further(sequence: Sequence) -> None:
    """The columns that few metrics need; NaN says there that nothing is known."""
    columns = {
        "entropy": (sequence.entropy, *_ENTROPY),
        "current log-probability": (sequence.extra.get("current"), -math.inf, LARGEST_LOGPROB),
        "reference log-probability": (sequence.extra.get("ref"), -math.inf, LARGEST_LOGPROB),
    }
    for name, (values, low, high) in columns.items():
        if values is None:
            continue
        bad = ((values < low) | (values > high)) & sequence.mask
        if bool(bad.any()):
            place = int(bad.nonzero()[0, 0])
            expected = f"at most {0 if low == -math.inf else high:g}" if values[place] > high else "at least 0"
            raise LogError(
                f"{sequence.where}: token {place} of sequence {sequence.id} is scored, but its {name} is "
                f"{float(values[place]):g}; expected nats, {expected}."
            )


def _fault(value: float) -> str:
    if math.isnan(value):
        return "missing (NaN or null). Mask the token, or log the value."
    if value > 0:
        return f"{value:g}; expected nats, at most 0. Is it a probability, or its negative logarithm?"
    if value == -math.inf:
        return "-inf: it could not have made this token. Another token, or another sequence's log-probabilities?"
    return f"{value:g}, which servers write for one they do not have. Ask for more `logprobs`."
