"""What every log becomes: sequences with the log-probabilities that a sampler and a trainer gave their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from moeparity.errors import Where

LogprobsMode = Literal["raw", "processed"]
EXTRA = {
    "ref": "fp64 [n], log P of the reference policy",
    "current": "fp64 [n], log P of the weights while being updated; `trainer` holds those at the batch's start",
    "advantages": "fp64 [n]",
    "routed_experts": "int64 [n, layers, K], experts of the sampler; -1 where there is none",
    "trainer_routed_experts": "int64 [n, layers, K], experts of the trainer",
}
"""What `Sequence.extra` may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What is known of how the sampler made its log-probabilities; None where the file does not say.

    logprobs_mode: `raw` is the log-softmax of the logits; `processed` that of the logits after temperature, penalties
        and truncation. The names are vLLM's (`--logprobs-mode raw_logprobs | processed_logprobs`).
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    logprobs_mode: LogprobsMode | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One rolled-out sequence as a log tells it; whatever the producer does, index t tells of `token_ids[t]`.

    id: what joins files. where: the line or row it was read from.
    token_ids: int64 [n], prompt and response without padding, or the response alone where the log has no prompt.
    mask: bool [n], True where the token is scored. A placeholder is never scored, nor is a token 0 of a whole
        sequence, which nothing predicts.
    rollout, trainer: fp64 [n] in nats, log P(token t | those before it) by the sampler and by the trainer at the start
        of the batch; NaN where unknown, which a scored token never is; the trainer's may be -inf. None where the log
        has none at all.
    prompt: length of the prompt in tokens, 0 where `token_ids` are the response alone, None where it is unknown.
    step: the trainer's step. versions: int64 [n], the weight version that sampled each token, -1 where unknown.
    several: whether it is known to be of more than one version, also where the log does not say which token is whose.
    trainer_version: the weight version that scored.
    group: environment or prompt group. entropy: fp64 [n] in nats. extra: as `EXTRA` lists.
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
    group: str | None = None
    entropy: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
