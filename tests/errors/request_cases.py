"""Token files whose requests ask for what cannot be."""

from __future__ import annotations

import torch

from moeparity.inputs.tokens.drafted import with_drafts
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.ops.kernels.text import SamplingRequest

_SAMPLED = "sampled_from: candidate"
_IDS = '"input_ids": [1, 2, 3]'


def _asking(request: str) -> tuple[str, str]:
    return f'{{{_IDS}, "request": {request}}}', _SAMPLED


def _under(grammar: str, rest: str = _SAMPLED) -> tuple[str, str]:
    return f'{{{_IDS}, "grammar": {grammar}}}', rest


LINES: dict[str, tuple[str, str]] = {
    "jsonl-request-a-list": _asking("[7, -2.5]"),
    "jsonl-request-of-a-temperature": _asking('{"temperature": 0.7}'),
    "jsonl-request-biases-a-list": _asking('{"logit_bias": [[7, -2.5]]}'),
    "jsonl-request-biases-of-words": _asking('{"logit_bias": {"no": -2.5}}'),
    "jsonl-request-biases-infinite": _asking('{"logit_bias": {"7": -Infinity}}'),
    "jsonl-request-biases-of-sequences-flat": _asking('{"sequence_bias": [[3, 7, -2.5]]}'),
    "jsonl-request-biases-twice": _asking('{"logit_bias": {"7": 1}, "sequence_bias": [[[7], 2.0]]}'),
    "jsonl-request-bad-words-of-text": _asking('{"bad_words_token_ids": ["no"]}'),
    "jsonl-request-allows-nothing": _asking('{"allowed_token_ids": []}'),
    "jsonl-request-least-length-below-0": _asking('{"min_tokens": -1, "stop_token_ids": [3]}'),
    "jsonl-request-least-length-without-stops": _asking('{"min_tokens": 4}'),
    "jsonl-request-above-the-vocabulary": _asking('{"bad_words_token_ids": [[1, 32]]}'),
    "jsonl-grammar-of-flags": _under("[null, true, true]"),
    "jsonl-grammar-of-half-a-word": _under('[null, "/w==", null]'),
    "jsonl-grammar-that-forbids-its-text": _under("[null, [2], [4, 5]]"),
    "jsonl-sample-beside-a-grammar": _under("[null, [2], [3]]", "sample: {from: candidate, new_tokens: 2}"),
}

TENSORS: dict[str, tuple[dict[str, torch.Tensor], dict[str, str] | None]] = {
    "tokens-requests-of-fewer-sequences": ({}, {"requests": '[{"request": {"logit_bias": {"7": 1}}}]'}),
    "tokens-requests-of-a-short-grammar": ({}, {"requests": '[{"grammar": [null, [1]]}, {}]'}),
}


def drafted() -> object:
    """Drafts of sequences whose requests ask for something."""
    ids, real = torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 3, dtype=torch.bool)
    requests = (SamplingRequest(bad_words=((4,),)),)
    return with_drafts(
        TokenSet(input_ids=ids, loss_mask=real, attention_mask=real, requests=requests), "3:0.5", flat=True
    )
