"""What requests ask for by token ids, carried out on logits. Part of the kernel of `log_probs`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.text import SamplingRequest, Text
from moeparity.ops.requests import (
    ALL,
    ALLOWED,
    APPLIED,
    BAD_WORDS,
    FILLED,
    FORCED,
    GRAMMAR,
    LOGIT_BIAS,
    MIN_TOKENS,
    OUTPUT,
    applied,
)

_BITS = 32


class _Rows(NamedTuple):
    """The rows of one request: ids int64 [n, N], before and output bool [n, N] as in `Text`."""

    ids: torch.Tensor
    before: torch.Tensor
    output: torch.Tensor | None

    def standing(self, *, in_output: bool, attribute: str) -> torch.Tensor:
        if not in_output:
            return self.before
        if self.output is None:
            raise RefusedError(attribute, "which tokens are prompt is not known here.")
        return self.output


def restricted(x: torch.Tensor, text: Text | None, at: Mapping[str, Any]) -> torch.Tensor:
    """x [B, T, V], any float -> x with -inf at the tokens that requests leave out, in the dtype of x.

    Imitates, op by op in torch, transformers 5.23.0 generation/logits_process.py (NoBadWordsLogitsProcessor,
    SuppressTokensLogitsProcessor, MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor,
    PrefixConstrainedLogitsProcessor), vLLM 0.32.0 v1/sample/sampler.py, ops/bad_words.py and
    logits_processor/builtin.py. Raises RefusedError where requests, or where the prompt ends, are not known.
    """

    def of_request(logits: torch.Tensor, rows: _Rows, request: SamplingRequest) -> torch.Tensor:
        for left_out, form in _masks(logits, rows, request, at):
            if form == FILLED:
                logits = logits.masked_fill(left_out, -math.inf)
                continue
            mask = torch.zeros_like(logits).masked_fill(left_out, -math.inf)
            logits = logits + mask
            if form == FORCED:
                logits = torch.where(logits.amax(-1, keepdim=True).isneginf(), mask, logits)
        return logits

    return _each(x, text, applied(at), of_request)


def biased(x: torch.Tensor, text: Text | None, at: Mapping[str, Any]) -> torch.Tensor:
    """x [B, T, V], any float -> x with the biases that requests ask for, in the dtype of x.

    Imitates, op by op in torch, transformers 5.23.0 SequenceBiasLogitsProcessor and vLLM 0.32.0
    LogitBiasLogitsProcessor. Raises RefusedError where requests are not known.
    """

    def of_request(logits: torch.Tensor, rows: _Rows, request: SamplingRequest) -> torch.Tensor:
        if not request.biases:
            return logits
        bias, has_bias = _bias(logits, rows, request.biases)
        return logits + bias if at["bias_form"] == ALL else torch.where(has_bias, logits + bias, logits)

    return _each(x, text, (LOGIT_BIAS,), of_request)


def _each(
    x: torch.Tensor,
    text: Text | None,
    attributes: Sequence[str],
    change: Callable[[torch.Tensor, _Rows, SamplingRequest], torch.Tensor],
) -> torch.Tensor:
    """x with the rows of each request changed; rows of padding, before which nothing stands, are left as they are."""
    if text is None or text.sequences is None or not text.requests:
        raise RefusedError(attributes[0], "what requests ask for is not known here. Set `ignored`.")
    x = x.clone()
    real = text.before.any(-1)
    for number, request in enumerate(text.requests):
        of_request = real & (text.sequences == number)
        if bool(of_request.any()):
            output = None if text.output is None else text.output[of_request]
            rows = _Rows(text.ids[of_request], text.before[of_request], output)
            x[of_request] = change(x[of_request], rows, request)
    return x


def _masks(
    logits: torch.Tensor, rows: _Rows, request: SamplingRequest, at: Mapping[str, Any]
) -> Iterator[tuple[torch.Tensor, str]]:
    """The ids that a request leaves out, bool [n, V], and in which form, of everything that it asks for."""
    vocabulary = logits.shape[-1]
    if at[ALLOWED] == APPLIED and request.allowed:
        yield ~_ids(request.allowed, vocabulary, logits.device).expand(logits.shape), FILLED
    if at[BAD_WORDS] == APPLIED and request.bad_words:
        yield _bad_words(logits, rows, request, at), at["bad_words_form"]
    if at[MIN_TOKENS] == APPLIED and request.min_tokens:
        short = rows.standing(in_output=True, attribute=MIN_TOKENS).sum(-1, keepdim=True) < request.min_tokens
        yield short & _ids(request.stop_ids, vocabulary, logits.device), at["min_tokens_form"]
    if at[GRAMMAR] == APPLIED and request.grammar:
        yield _by_grammar(logits, rows, request.grammar), at["grammar_form"]


def _bad_words(logits: torch.Tensor, rows: _Rows, request: SamplingRequest, at: Mapping[str, Any]) -> torch.Tensor:
    standing = rows.standing(in_output=at["bad_words_tokens"] == OUTPUT, attribute="bad_words_tokens")
    left_out = torch.zeros_like(logits, dtype=torch.bool)
    for *prefix, last in request.bad_words:
        if last < logits.shape[-1]:
            left_out[:, last] |= _ends_with(rows.ids, standing, prefix)
    return left_out


def _by_grammar(logits: torch.Tensor, rows: _Rows, grammar: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """The ids that a grammar forbids as the token behind each row."""
    left_out = torch.zeros_like(logits, dtype=torch.bool)
    for row, number in enumerate(rows.before.sum(-1).tolist()):
        if number in grammar:
            left_out[row] = ~unpacked(grammar[number], logits.shape[-1]).to(logits.device)
    return left_out


def _bias(
    logits: torch.Tensor, rows: _Rows, biases: Sequence[tuple[tuple[int, ...], float]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The biases, in the dtype of logits [n, V], and which ids have one. That of one id is rounded once; those of
    longer sequences are added to it by the length of what stands before, in the order in which they are given.
    """
    bias, has_bias = torch.zeros_like(logits), torch.zeros_like(logits, dtype=torch.bool)
    lengths = list(dict.fromkeys(len(ids) for ids, _ in biases))
    for length in sorted(lengths, key=lambda length: length > 1):
        for (*prefix, last), value in biases:
            if len(prefix) + 1 != length or last >= logits.shape[-1]:
                continue
            ends = _ends_with(rows.ids, rows.before, prefix)
            added = torch.where(ends, torch.tensor(value, dtype=torch.float32), 0.0).to(logits)
            bias[:, last] += added
            has_bias[:, last] |= ends
    return bias, has_bias


def _ends_with(ids: torch.Tensor, standing: torch.Tensor, prefix: Sequence[int]) -> torch.Tensor:
    """bool [n]: whether the ids [n, N] that are `standing` end with `prefix`."""
    if not prefix:
        return torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    length = len(prefix)
    ends = (standing * torch.arange(1, ids.shape[-1] + 1, device=ids.device)).amax(-1)
    places = (ends[:, None] - torch.arange(length, 0, -1, device=ids.device)).clamp(min=0)
    tail = ids.gather(-1, places) == torch.tensor(prefix, device=ids.device)
    return (standing.sum(-1) >= length) & tail.all(-1)


def _ids(ids: Sequence[int], vocabulary: int, device: torch.device) -> torch.Tensor:
    """bool [V]: true at these ids, of which those beyond the vocabulary are none."""
    chosen = torch.zeros(vocabulary, dtype=torch.bool, device=device)
    chosen[[token for token in ids if token < vocabulary]] = True
    return chosen


def packed(ids: Sequence[int]) -> torch.Tensor:
    """int32 [W]: the bits of these ids, bit i % 32 of word i // 32."""
    bits = torch.zeros((max(ids) // _BITS + 1) * _BITS, dtype=torch.int64)
    bits[list(ids)] = 1
    words = (bits.view(-1, _BITS) << torch.arange(_BITS)).sum(-1)
    return torch.where(words >= 1 << (_BITS - 1), words - (1 << _BITS), words).to(torch.int32)


def unpacked(words: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """bool [V]: the ids of which a bit is set in int32 [W]."""
    bits = (words[:, None] >> torch.arange(_BITS, dtype=torch.int32)) & 1
    allowed = torch.zeros(vocabulary, dtype=torch.bool)
    flat = bits.flatten()[:vocabulary].bool()
    allowed[: len(flat)] = flat
    return allowed
