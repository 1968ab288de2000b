"""`Sequence`: what every log is turned into, with the log-probabilities that sampler and trainer gave its tokens.

Values of scored tokens are checked here, whoever wrote the log, so that no metric is computed from anything but
log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import Tensor

from moeparity.errors import LogError, Where
from moeparity.inputs.tokens.pads import Pads
from moeparity.inputs.tokens.tokenset import LARGEST_LOGPROB
from moeparity.logs.retokenised import Retokenised

LogprobsMode = Literal["raw", "processed"]


PENALTIES: Final[Mapping[str, float]] = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
OFF: Final[Mapping[str, float]] = {**PENALTIES, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""By name of vLLM's sampling parameters, and of `log_probs`'s attributes: the number that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the sampler made its log-probabilities, as far as the file says; None if it does not.

    logprobs_mode: `raw` is the log-softmax of the logits; `processed` that of the logits after temperature, penalties
        and truncation. The names are vLLM's (`--logprobs-mode raw_logprobs | processed_logprobs`).
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logprobs_mode: LogprobsMode | None = None

    @property
    def processors(self) -> dict[str, float]:
        """By name of an attribute of `log_probs`, the numbers that change a distribution; a greedy one's penalties."""
        names = PENALTIES if self.temperature == 0 else {"temperature": 1.0, **OFF}
        stated = {name: getattr(self, name) for name in names}
        return {name: value for name, value in stated.items() if value not in {None, names[name]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One rolled-out sequence of a log. In whatever way the producer writes it, index t is about `token_ids[t]`.

    id: by which files are joined. where: the line or row from which it was read.
    token_ids: int64 [n], prompt and response without padding, or the response alone if the log has no prompt.
    mask: bool [n], True at scored tokens. A placeholder is never scored, nor is token 0 of a whole sequence, which
        nothing predicts.
    rollout, trainer: fp64 [n] in nats, log P(token t | those before it) by the sampler, and by the trainer at the start
        of the batch. NaN if unknown, which no scored token is; the trainer's may be -inf. None if the log has none at
        all.
    prompt: length of the prompt in tokens, 0 if `token_ids` are the response alone, None if unknown.
    step: the trainer's step. versions: int64 [n], the weight version that sampled each token, -1 if unknown.
    several: whether the tokens are known to be of several versions, even if the log does not say which is whose.
    trainer_version: the weight version that scored.
    request: what the request asked for by token ids, as the file has it; grammar: an entry for each token, likewise,
        None if there is none. Both are keys of a token file (`moeparity.inputs.tokens.requests`), and not checked here.
    group: environment or prompt group. entropy: fp64 [n] in nats. pads: those that the trainer computed beside the
        sequence; None if unknown.
    classes: a word for each token, such as text and image; None if the log has none.
    labels: int64 [n] by name, further groups of tokens, -1 if unknown. retokenised: what differs in the trainer's ids.
    extra: further columns: `ref`, fp64 [n], log P of the reference policy; `current`, fp64 [n], log P of the weights
        being updated (`trainer` has those at the batch's start); `advantages`, fp64 [n]; `routed_experts`, int64 [n,
        layers, K], the sampler's experts, -1 if there is none; `top_ids`, int64 [n, K], -1 if there is none, and
        `top_logprobs`, fp64 [n, K] in nats, NaN if there is none, the sampler's log P of several tokens in place of
        token t; `hidden_states`, fp32 [n, H], NaN if there is none, what its head read behind token t. The trainer's
        have `trainer_` before their names.
    """

    id: str
    where: Where
    token_ids: Tensor
    mask: Tensor
    rollout: Tensor | None = None
    trainer: Tensor | None = None
    prompt: int | None = None
    step: int | None = None
    versions: Tensor | None = None
    several: bool = False
    trainer_version: int | None = None
    sampling: Sampling = Sampling()
    request: Mapping[str, Any] = field(default_factory=dict)
    grammar: tuple[Any, ...] | None = None
    group: str | None = None
    classes: tuple[str, ...] | None = None
    entropy: Tensor | None = None
    pads: Pads | None = None
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    retokenised: Retokenised | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)


NONE_GIVEN = -9999.0
"""What OpenAI's and vLLM's servers write for a log-probability that they do not have or that is -inf."""
_SAMPLER, _TRAINER = "the sampler's", "the trainer's"
FEWEST = 8
"""If a side has at least this many scored tokens and all are exactly 0, they are taken for placeholders."""
_ENTROPY = (-0.1, 30.0)
"""The range of an entropy in nats: bf16 can round that of a sure distribution below 0; ln of the largest vocabulary is
13."""


def check(sequence: Sequence) -> Sequence:
    """The sequence, after its scored log-probabilities were checked. Raises LogError with the index of the token."""
    every = bool(sequence.mask.all())
    sides = {_SAMPLER: sequence.rollout, _TRAINER: sequence.trainer}
    scored = {name: values if every else values[sequence.mask] for name, values in sides.items() if values is not None}
    for name, values in scored.items():
        if values.numel():
            _check_values(sequence, name, values)
    _check_further(sequence)
    for name, values in scored.items():
        zeros = len(values) >= FEWEST and not bool(values.any())
        if zeros and any(bool(mask.any()) for mask in scored.values()):
            raise LogError(
                f"{sequence.where}: {name} log-probabilities are 0 at all {len(values)} scored tokens: a placeholder, "
                "as trainers write where they computed none. Log them with log-probabilities, or mask the tokens."
            )
    return sequence


def blank(sequence: Sequence) -> bool:
    """Whether both sides are exactly 0 at all scored tokens."""
    return not any(bool(side[sequence.mask].any()) for side in (sequence.rollout, sequence.trainer) if side is not None)


def _check_values(sequence: Sequence, side: str, values: Tensor) -> None:
    low, high = torch.aminmax(values)
    # NaN fails both comparisons, and aminmax passes it on.
    if float(low) > NONE_GIVEN and float(high) <= LARGEST_LOGPROB:
        return
    bad = ~((values > NONE_GIVEN) & (values <= LARGEST_LOGPROB))
    if side == _TRAINER:
        # A trainer may give a sampled token probability 0, which is a finding; a sampler can't.
        bad &= values != -torch.inf
    if bool(bad.any()):
        place = int(sequence.mask.nonzero()[bad.nonzero()[0, 0], 0])
        fault = _fault(float(values[bad][0]))
        raise LogError(
            f"{sequence.where}: token {place} of sequence {sequence.id} is scored, but {side} log-probability there is "
            f"{fault}"
        )


def _check_further(sequence: Sequence) -> None:
    """Check the columns that few metrics need; NaN means unknown there."""
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
