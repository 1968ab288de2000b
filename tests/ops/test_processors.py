"""Sampling processors: kept mass, and what no engine runs here against an evaluation one number at a time.

What transformers and vLLM run is compared with them: tests/hf/test_processors.py, tests/real/test_vllm_sampler.py.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.log_probs import log_probs, processed
from moeparity.ops.kernels.text import Text
from tests.ops import processors
from tests.ops.log_probs import DEFAULTS
from tests.ops.plain import BF16, FP16, FP32, assert_bits

F = np.float32


def rows(vocabulary: int, seed: int = 0) -> Tensor:
    """fp32 [ROWS, 1, V], finite."""
    return processors.logits(vocabulary, FP32, seed).nan_to_num(posinf=9.0, neginf=-9.0).unsqueeze(1)


def at(**values: Any) -> dict[str, Any]:
    return {**DEFAULTS, "form": "log_softmax", **values}


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("form", ["log_softmax", "log_of_softmax", "minus_logsumexp", "shifted"])
def test_kept_mass_is_1(form: str, dtype: torch.dtype) -> None:
    """Within the rounding of V fp32 terms and their log; rounding each log-probability to `output` moves it by half an
    ulp of at most 16 nats.
    """
    for number, chosen in enumerate(processors.combinations(("temperature", "top_k", "top_p", "min_p"))):
        vocabulary = processors.VOCABULARIES[number % 4]
        values = at(form=form, output=dtype, **processors.settings(chosen))
        scores = log_probs(rows(vocabulary, number), w={}, p={}, at=values).double()
        bound = (vocabulary + 40) * 2**-24 + (0 if dtype == FP32 else 16 * torch.finfo(dtype).eps)
        assert ((scores.exp().sum(-1) - 1).abs() <= bound).all()
        assert not scores.isnan().any()


def test_the_likeliest_token_is_always_kept() -> None:
    for number, chosen in enumerate(processors.combinations(("top_k", "top_p", "min_p"))):
        x = rows(processors.VOCABULARIES[number % 4], number)
        for form in ("probabilities", "logits"):
            computed = processed(x, at(min_p_form=form, **processors.settings(chosen)))
            assert_bits(computed.amax(-1), x.amax(-1))


@pytest.mark.parametrize("k", [1, 3, 5, 20, 36, 37, 40])
def test_of_equal_logits_the_first_are_kept(k: int) -> None:
    x = rows(37)
    computed = processed(x, at(top_k=k, top_k_ties="first"))
    for row, theirs in zip(x.flatten(0, 1).tolist(), computed.flatten(0, 1).tolist(), strict=True):
        by_rank = sorted(range(37), key=lambda i: (-row[i], i))
        assert theirs == [value if i in by_rank[:k] else -math.inf for i, value in enumerate(row)]


@pytest.mark.parametrize("min_p", [0.02, 0.3, 1.0])
def test_min_p_on_logits(min_p: float) -> None:
    x = rows(37)
    computed = processed(x, at(min_p=min_p, min_p_form="logits"))
    log = F(torch.tensor(min_p).log().item())
    for row, theirs in zip(x.flatten(0, 1).numpy(), computed.flatten(0, 1).numpy(), strict=True):
        bound = F(row.max() + log)
        assert theirs.tolist() == [-math.inf if value < bound else value for value in row.tolist()]


@pytest.mark.parametrize("subtracted", ["first", "last"])
@pytest.mark.parametrize("tokens", ["text", "output"])
@pytest.mark.parametrize("form", ["divide", "reciprocal"])
def test_penalties(form: str, tokens: str, subtracted: str) -> None:
    repetition, presence, frequency = F(1.3), F(0.5), F(0.2)
    x, (prompts, outputs) = rows(37), processors.texts(37)
    names = {"repetition_form": form, "repetition_tokens": tokens, "subtracted": subtracted}
    values = at(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, **names)
    computed = processed(x, values, processors.text(prompts, outputs))

    def repeated(value: F, occurs: bool) -> F:
        if not occurs:
            return value
        if form == "divide":
            return F(value * repetition) if value < 0 else F(value / repetition)
        return F(value * F(F(1) / repetition)) if value > 0 else F(value * repetition)

    def less(value: F, count: int) -> F:
        return F(F(value - F(frequency * F(count))) - F(presence * F(count > 0)))

    for row, theirs, prompt, output in zip(x[:, 0].numpy(), computed[:, 0].numpy(), prompts, outputs, strict=True):
        counts, repeats = Counter(output), {*output, *(prompt if tokens == "text" else ())}
        for token, value in enumerate(row):
            if subtracted == "first":
                expected = repeated(less(value, counts[token]), token in repeats)
            else:
                expected = less(repeated(value, token in repeats), counts[token])
            assert theirs[token] == expected


@pytest.mark.parametrize("form", ["unrounded", "log_softmax"])
def test_without_a_text_there_is_no_penalty(form: str) -> None:
    with pytest.raises(RefusedError, match="the tokens before are not known here"):
        log_probs(rows(37), w={}, p={}, at=at(form=form, repetition_penalty=1.3))


def test_without_prompts_nothing_of_the_output_alone_is_known() -> None:
    text = processors.text(*processors.texts(37))
    unknown = Text(ids=text.ids, before=text.before, output=None)
    for name in ("presence_penalty", "frequency_penalty"):
        with pytest.raises(RefusedError, match=f"{name}: which tokens are prompt is not known here"):
            log_probs(rows(37), w={}, p={}, at=at(**{name: 0.5}), text=unknown)
    processed(rows(37), at(repetition_penalty=1.3), unknown)
