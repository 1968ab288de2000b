"""What a sampler did to its logits because requests asked for it, where its log-probabilities are of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from moeparity.doctor.batch import Batch
from moeparity.doctor.engines import Engine
from moeparity.errors import counted
from moeparity.inputs.tokens.requests import asks_for
from moeparity.logs.record import Sampling
from moeparity.ops.requests import APPLIED, ASKED_FOR, GRAMMAR

_MODE = "processed"
_TEMPERATURE = "temperature"


def dividing(sampling: Sampling | None) -> dict[str, float]:
    """The temperature by which both sides divide, if the log states one and that its log-probabilities have it."""
    processors = sampling.processors if sampling is not None and sampling.logprobs_mode == _MODE else {}
    return {f"log_probs:{name}": value for name, value in processors.items() if name == _TEMPERATURE}


def as_requested(sampler: Engine, of_log: Batch) -> tuple[Engine, str]:
    """The sampler with what all requests ask of it, if the log says that its log-probabilities are processed; and what
    is said of requests that differ. The temperature, by which both sides divide, is not among it.
    """
    if all(sampling.logprobs_mode != _MODE for sampling in of_log.stated):
        return sampler, ""
    if of_log.sampling is None:
        ways = f"{len(of_log.stated)} different ways"
        return sampler, f"the log's requests were sampled in {ways}: what they asked for is not simulated"
    numbers = {name: value for name, value in of_log.sampling.processors.items() if name != _TEMPERATURE}
    by_id = {name: APPLIED for name in ASKED_FOR if name != GRAMMAR and asks_for(of_log.tokens.requests, name)}
    if not numbers and not by_id:
        return sampler, ""
    choices = {f"log_probs:{name}": value for name, value in (numbers | by_id).items()}
    variant = sampler.variant.model_copy(update={"set": {**sampler.variant.set, **choices}})
    by = f"{sampler.by}, with what the log's requests ask for"
    return replace(sampler, name=f"{sampler.name} as requested", variant=variant, by=by), ""


def without_cut(of_log: Batch, simulated: Sequence[Tensor]) -> tuple[Batch, str]:
    """The log without a record of the tokens that a simulation leaves out of what the sampler draws from, and what is
    said of these. simulated: log P of the scored tokens, fp64 [N] in nats each.
    """
    cut = torch.stack([values.isinf() for values in simulated]).any(0) & of_log.mask
    if of_log.tokens.logprobs is None or not bool(cut.any()) or bool(cut[of_log.mask].all()):
        return of_log, ""
    logprobs = of_log.tokens.logprobs.clone()
    logprobs[of_log.tokens.loss_mask] = logprobs[of_log.tokens.loss_mask].where(~cut, torch.nan)
    says = (
        f"{counted(int(cut.sum()), 'token')} left out: what the sampler was asked for keeps them out of its simulated "
        "distribution"
    )
    return replace(of_log, tokens=replace(of_log.tokens, logprobs=logprobs)), says
