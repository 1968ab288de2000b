"""Requests of vLLM as sequences of a token file: their tokens, which are scored, and whose prefix each shares."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

OFF = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
}
"""By name of a number that a request may ask for, the values that do nothing."""


@dataclass(slots=True)
class Sequence:
    """One request from its start to its end, or to where it is preempted; `computed` of its tokens have keys by now.

    prompt: how many tokens it began with. scores_prompt: whether the request asks for log-probabilities of its prompt.
    hashes: of each whole block of its computed tokens, with all before it. versions: of each sampled token that of the
    weights, -1 where it is no number. request: what it asks of the sampler by token ids. sampling: its numbers for the
    sampler, and which log-probabilities it gets.
    """

    number: int
    tokens: array[int]
    prompt: int
    computed: int
    scores_prompt: bool
    log_probs: dict[int, float] = field(default_factory=dict)
    hashes: list[int] = field(default_factory=list)
    versions: dict[int, int] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)

    def line(self, *, is_whole: bool) -> dict[str, Any]:
        """The sequence as a line of a token file and of a log; of one that was stopped early what was computed, and one
        more.
        """
        end = len(self.tokens) if is_whole else min(len(self.tokens), self.computed + 1)
        first_scored = 1 if self.scores_prompt else self.prompt
        fields: dict[str, Any] = {
            "id": self.number,
            "input_ids": self.tokens[:end].tolist(),
            "mask": [int(place >= first_scored) for place in range(end)],
        }
        if any(place < end for place in self.log_probs):
            fields["logprobs"] = [self.log_probs.get(place) for place in range(end)]
        if any(version >= 0 for version in self.versions.values()):
            fields["versions"] = [self.versions.get(place, -1) for place in range(end)]
        wishes = {"request": self.request, "sampling_params": self.sampling}
        return fields | {key: value for key, value in wishes.items() if value}

    def take(self, output: Any, weights: str) -> None:
        """Append what a step gave: tokens sampled by this version of the weights, and log-probabilities where the
        request asks for them.
        """
        if output.new_prompt_logprobs_tensors is not None:
            values = output.new_prompt_logprobs_tensors.logprobs[:, 0].tolist()
            self.log_probs |= {place: value for place, value in enumerate(values, 1) if place < self.prompt}
        start = len(self.tokens)
        self.tokens.extend(output.new_token_ids)
        self.versions |= dict.fromkeys(range(start, len(self.tokens)), int(weights) if weights.isdecimal() else -1)
        if output.new_logprobs is not None:
            values = output.new_logprobs.logprobs[:, 0].tolist()
            self.log_probs |= dict(enumerate(values[: len(output.new_token_ids)], start))


def request_of(sampling: Any) -> dict[str, Any]:
    """What vLLM's SamplingParams ask for by token ids, as the `request` of a token file. Masks of a grammar are not
    among them. Read: vLLM 0.33.0, vllm/sampling_params.py.
    """
    if sampling is None:
        return {}
    stops = sorted(sampling.all_stop_token_ids)
    fields = {
        "logit_bias": {str(token): bias for token, bias in (sampling.logit_bias or {}).items()},
        "bad_words_token_ids": sampling.bad_words_token_ids,
        "allowed_token_ids": sampling.allowed_token_ids,
        "min_tokens": sampling.min_tokens if stops else 0,
        "stop_token_ids": stops if sampling.min_tokens else [],
    }
    return {key: value for key, value in fields.items() if value}


def sampling_of(sampling: Any, mode: str) -> dict[str, Any]:
    """What vLLM's SamplingParams ask for by numbers, those that do nothing left out, and the mode of the engine's
    log-probabilities, as the `sampling_params` of a log. Read: vLLM 0.33.0, vllm/sampling_params.py.
    """
    if sampling is None:
        return {}
    numbers = {name: getattr(sampling, name) for name in OFF}
    acting = {name: value for name, value in numbers.items() if value not in OFF[name]}
    return {"temperature": sampling.temperature, **acting, "logprobs_mode": mode}


class Prefixes:
    """Which sequence first had a prefix, by its blocks of `size` tokens."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.holders: dict[int, Sequence] = {}

    def add(self, sequence: Sequence, end: int) -> None:
        """The first `end` tokens of a sequence are computed, or are in this step."""
        for block in range(len(sequence.hashes), min(end, len(sequence.tokens)) // self.size):
            before = sequence.hashes[-1] if sequence.hashes else 0
            sequence.hashes.append(hash((before, *sequence.tokens[block * self.size : (block + 1) * self.size])))
            self.holders.setdefault(sequence.hashes[-1], sequence)

    def source(self, sequence: Sequence) -> Sequence:
        """Whose keys and values the computed tokens of a sequence that begins are. Raises LookupError."""
        end = sequence.computed
        before = 0
        for block in range(end // self.size):
            before = hash((before, *sequence.tokens[block * self.size : (block + 1) * self.size]))
        holder = self.holders.get(before)
        if holder is None or end % self.size or holder.tokens[:end] != sequence.tokens[:end]:
            raise LookupError(f"{end} cached tokens of sequence {sequence.number} are of no sequence that was seen")
        return holder
