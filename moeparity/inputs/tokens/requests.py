"""What a request asked of its sampler by token ids, as a token file has it.

| key of `request` | holds |
|---|---|
| `logit_bias` | a number for each token id, as OpenAI-style servers take it |
| `sequence_bias` | a list of [ids, number], as transformers takes it |
| `bad_words_token_ids` | a list of lists of ids |
| `allowed_token_ids` | a list of ids |
| `min_tokens` | tokens of output before one of `stop_token_ids` is kept |
| `stop_token_ids` | a list of ids, the end of a sequence among them |

`grammar`, beside it, has an entry for each token: null, the list of ids that a grammar allowed as that token, or the
same as xgrammar packs it: base64 of little-endian int32 words, bit i % 32 of word i // 32 for id i.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeparity.errors import TokensError, Where, did_you_mean, listed, shown, whole_number
from moeparity.ops.kernels.requests import packed, unpacked
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.ops.requests import ALLOWED, BAD_WORDS, GRAMMAR, LOGIT_BIAS, MIN_TOKENS

KEYS = (
    "logit_bias",
    "sequence_bias",
    "bad_words_token_ids",
    "allowed_token_ids",
    "min_tokens",
    "stop_token_ids",
)
KEY_OF = {
    LOGIT_BIAS: "`request: {logit_bias: ...}`",
    BAD_WORDS: "`request: {bad_words_token_ids: ...}`",
    ALLOWED: "`request: {allowed_token_ids: ...}`",
    MIN_TOKENS: "`request: {min_tokens: ..., stop_token_ids: ...}`",
    GRAMMAR: "`grammar`",
}
"""By attribute of `log_probs`, what a line says of it."""
_MOST = 2**31
_WIDEST = 60


def read_request(where: Where, value: Any, grammar: Sequence[Any] | None = None) -> SamplingRequest | None:
    """The request of a sequence, of its `request` and of its `grammar`, one entry for each token; None without either.

    Raises TokensError.
    """
    if value is None and grammar is None:
        return None
    fields = {} if value is None else value
    if not isinstance(fields, dict):
        raise TokensError(
            f'{where}: request is {_text(value)}; expected an object, as {{"logit_bias": {{"7": -2.5}}}}.'
        )
    for key in fields:
        if key not in KEYS:
            raise TokensError(f"{where}: request has {key!r}; expected {listed(KEYS)}.{did_you_mean(key, KEYS)}")
    least = fields.get("min_tokens", 0)
    if type(least) is not int or not 0 <= least < _MOST:
        raise TokensError(f"{where}: min_tokens is {shown(least)}; expected a whole number from 0.")
    stop_ids = _ids(where, "stop_token_ids", fields)
    if least and not stop_ids:
        raise TokensError(
            f"{where}: min_tokens is {least} without stop_token_ids. Write all ids that end an output there, that of "
            "the end of a sequence among them."
        )
    return SamplingRequest(
        biases=tuple(_biases(where, fields)),
        bad_words=_words(where, fields.get("bad_words_token_ids", [])),
        allowed=_ids(where, "allowed_token_ids", fields),
        min_tokens=least,
        stop_ids=stop_ids,
        grammar={i: _allowed(where, entry) for i, entry in enumerate(grammar or ()) if entry is not None},
    )


def as_fields(request: SamplingRequest, length: int) -> dict[str, Any]:
    """The keys of a line of `length` tokens that read as this request."""
    of_request: dict[str, Any] = {
        "logit_bias": {str(ids[0]): bias for ids, bias in request.biases if len(ids) == 1},
        "sequence_bias": [[list(ids), bias] for ids, bias in request.biases if len(ids) > 1],
        "bad_words_token_ids": [list(ids) for ids in request.bad_words],
        "allowed_token_ids": list(request.allowed),
        "min_tokens": request.min_tokens,
        "stop_token_ids": list(request.stop_ids),
    }
    fields: dict[str, Any] = {"request": {key: value for key, value in of_request.items() if value}}
    if request.grammar:
        fields["grammar"] = [
            _as_text(request.grammar[number]) if number in request.grammar else None for number in range(length)
        ]
    return {key: value for key, value in fields.items() if value}


def as_tensors(requests: Sequence[SamplingRequest]) -> Iterator[tuple[str, Tensor]]:
    """Everything that requests ask for as named tensors, for a digest."""
    for number, request in enumerate(requests):
        text = repr(replace(request, grammar={})).encode()
        yield f"request {number}", torch.frombuffer(bytearray(text), dtype=torch.uint8)
        yield from ((f"grammar {number} {token}", words) for token, words in request.grammar.items())


def asks_for(requests: Sequence[SamplingRequest], attribute: str) -> bool:
    """Whether any request asks for what an attribute of `log_probs` applies."""
    of_request = {
        LOGIT_BIAS: lambda request: request.biases,
        BAD_WORDS: lambda request: request.bad_words,
        ALLOWED: lambda request: request.allowed,
        MIN_TOKENS: lambda request: request.min_tokens,
        GRAMMAR: lambda request: request.grammar,
    }
    return any(of_request[attribute](request) for request in requests)


def refuse_unknown_ids(
    requests: Sequence[SamplingRequest], ids: Tensor, mask: Tensor, vocabulary: int, where: Where
) -> None:
    """Raises TokensError for an id beyond a model's vocabulary, and for a grammar that forbids a token that stands
    there. ids: int64 [B, T]. mask: bool [B, T], true on real tokens.
    """
    for row, request in enumerate(requests):
        words = (*request.bad_words, *(ids_of for ids_of, _ in request.biases))
        largest = max((*request.allowed, *request.stop_ids, *(token for word in words for token in word)), default=0)
        if largest >= vocabulary:
            raise TokensError(
                f"{where}: the request of sequence {row} names token {largest}; expected ids below {vocabulary}."
            )
        tokens = ids[row][mask[row]].tolist() if request.grammar else ()
        for number, bits in request.grammar.items():
            if not bool(unpacked(bits, vocabulary)[tokens[number]]):
                raise TokensError(
                    f"{where}: the grammar of sequence {row} forbids {tokens[number]} as token {number}, which it is. "
                    "Entry i says what may stand as token i; null where no grammar held."
                )


def _ids(where: Where, key: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
    ids = fields.get(key)
    if ids is None:
        return ()
    if not _are_ids(ids):
        raise TokensError(f"{where}: {key} is {_text(ids)}; expected a list of token ids, at least one.")
    return tuple(ids)


def _text(value: Any) -> str:
    """A value as a line has it, cut short."""
    text = json.dumps(value)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}..."


def _are_ids(ids: Any) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(i) is int and 0 <= i < _MOST for i in ids)


def _words(where: Where, words: Any) -> tuple[tuple[int, ...], ...]:
    if not isinstance(words, list) or not all(_are_ids(ids) for ids in words):
        raise TokensError(
            f"{where}: bad_words_token_ids is {_text(words)}; expected a list of lists of token ids. A word of text "
            "has one list for each way in which it is tokenised."
        )
    return tuple(tuple(ids) for ids in words)


def _biases(where: Where, fields: Mapping[str, Any]) -> Iterator[tuple[tuple[int, ...], float]]:
    by_id, sequences = fields.get("logit_bias", {}), fields.get("sequence_bias", [])
    if not isinstance(by_id, dict):
        raise TokensError(f'{where}: logit_bias is {_text(by_id)}; expected an object, as {{"7": -2.5}}.')
    biased: set[tuple[int, ...]] = set()
    entries = [([name if (token := whole_number(name)) is None else token], bias) for name, bias in by_id.items()]
    if not isinstance(sequences, list) or not all(isinstance(e, list) and len(e) == 2 for e in sequences):
        raise TokensError(f"{where}: sequence_bias is {_text(sequences)}; expected a list as [[[3, 7], -2.5]].")
    for ids, bias in (*entries, *sequences):
        if not _are_ids(ids):
            raise TokensError(f"{where}: a bias is of {_text(ids)}; expected token ids.")
        if type(bias) not in {int, float} or not math.isfinite(bias):
            raise TokensError(
                f"{where}: the bias of {_text(ids)} is {_text(bias)}; expected a finite number. What may not be "
                "sampled stands under `bad_words_token_ids`."
            )
        if tuple(ids) in biased:
            raise TokensError(f"{where}: two biases of {_text(ids)}. Keep one.")
        biased.add(tuple(ids))
        yield tuple(ids), float(bias)


def _allowed(where: Where, entry: Any) -> Tensor:
    if _are_ids(entry):
        return packed(entry)
    try:
        content = base64.b64decode(entry, validate=True) if isinstance(entry, str) else b""
    except (binascii.Error, ValueError):
        content = b""
    if not content or len(content) % 4:
        raise TokensError(
            f"{where}: grammar holds {shown(entry)}; expected null, a list of ids, or base64 of the int32 words of a "
            "bitmask, for each token."
        )
    return torch.from_numpy(np.frombuffer(content, dtype="<i4").astype(np.int32))


def _as_text(words: Tensor) -> str:
    return base64.b64encode(words.numpy().astype("<i4").tobytes()).decode()
