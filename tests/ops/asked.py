"""Requests on which what they ask for by token ids is compared with what engines make of it. No moeparity kernel."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from moeparity.ops.kernels.requests import packed
from moeparity.ops.kernels.text import SamplingRequest, Text
from tests.ops import processors

NAMES = ("logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "grammar")
PENALTIES = {"repetition_penalty": (1.05,), "presence_penalty": (-0.3,), "frequency_penalty": (1.7,)}
FURTHER = {"temperature": (0.7,), "top_k": (5,), "top_p": (0.95,), "min_p": (0.05,)}


def combinations(numbers: Sequence[str]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """One, two and three processors, of which one at least is of_rows for by token ids: their names, and the numbers of
    the others.
    """
    values = {**PENALTIES, **FURTHER}
    for count in range(1, 4):
        for chosen in itertools.combinations((*NAMES, *numbers), count):
            names = tuple(name for name in chosen if name in NAMES)
            if names:
                yield names, {name: values[name][0] for name in chosen if name not in NAMES}


def requests(
    vocabulary: int, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], seed: int
) -> list[SamplingRequest]:
    """One for each row; the last asks for nothing. Some bad words begin in the prompt, some fit, some are longer than
    the text. Token 0 is always allowed.
    """
    draw = random.Random(seed)  # noqa: S311
    drawn = [_request(vocabulary, [*prompt], [*output], draw) for prompt, output in zip(prompts, outputs, strict=True)]
    return [*drawn[:-1], SamplingRequest()]


def _request(vocabulary: int, prompt: list[int], output: list[int], draw: random.Random) -> SamplingRequest:
    text, count = [*prompt, *output], max(1, vocabulary // 3)

    def some() -> tuple[int, ...]:
        return tuple(sorted({draw.randrange(vocabulary) for _ in range(count)} | {0}))

    def word() -> tuple[int, ...]:
        tail = text[-draw.randrange(1, len(text) + 1) :] if draw.random() < 0.7 else [draw.randrange(vocabulary)] * 20
        return (*tail, draw.randrange(vocabulary))

    singles = [(token,) for token in some()[:4]]
    longer = list(dict.fromkeys(word() for _ in range(6)))
    last = draw.randrange(vocabulary)
    longer += [(text[-1], last)] if (text[-1], last) not in longer else []
    return SamplingRequest(
        biases=tuple((ids, draw.choice((-100.0, -1.7, 0.3, 2.55, 7.0))) for ids in (*singles, *longer)),
        bad_words=(*((token,) for token in some()[:2]), *(word() for _ in range(4))),
        allowed=some(),
        min_tokens=draw.choice((0, len(output), len(output) + 1, 16)),
        stop_ids=some()[1:4] or (0,),
        grammar={number: packed(some()) for number in range(len(text) + 3)},
    )


def single(request: SamplingRequest) -> SamplingRequest:
    """The same with biases of one id alone, as servers take them."""
    return replace(request, biases=tuple((ids, bias) for ids, bias in request.biases if len(ids) == 1))


def text(
    prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], of_rows: Sequence[SamplingRequest]
) -> Text:
    """What the engine tells a kernel of logits [ROWS, 1, V]."""
    rows = torch.arange(len(prompts))[:, None]
    return replace(processors.text(prompts, outputs), sequences=rows, requests=tuple(of_rows))


def applied(names: Sequence[str]) -> dict[str, str]:
    """The values of `log_probs` for these."""
    return dict.fromkeys(names, "applied")


def one_nan(x: torch.Tensor) -> torch.Tensor:
    """x with one NaN in place of every one: infinity less infinity has a sign that torch's kernels for many and for few
    numbers do not share.
    """
    return x.masked_fill(x.isnan(), torch.nan)
