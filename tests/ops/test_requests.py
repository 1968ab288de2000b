"""What requests ask for by token ids: what no engine runs here, against an evaluation one number at a time.

What transformers and vLLM run is compared with them: tests/hf/test_processors.py, tests/real/test_vllm_sampler.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeparity.ops.attribute import RefusedError
from moeparity.ops.kernels.log_probs import log_probs, processed
from moeparity.ops.kernels.requests import packed, unpacked
from moeparity.ops.kernels.text import SamplingRequest, Text
from tests.ops import asked, processors
from tests.ops.log_probs import DEFAULTS
from tests.ops.plain import BF16, FP16, FP32, assert_bits, bits

F = np.float32
INFINITE = -math.inf


def at(*names: str, **values: Any) -> dict[str, Any]:
    return {**DEFAULTS, "form": "log_softmax", **asked.applied(names), **values}


def case(seed: int, vocabulary: int = 37) -> tuple[Tensor, list[list[int]], list[list[int]], list[SamplingRequest]]:
    """fp32 [ROWS, 1, V] with signed zeros, texts and requests."""
    prompts, outputs = processors.texts(vocabulary, seed)
    x = processors.logits(vocabulary, FP32, seed).nan_to_num(posinf=9.0, neginf=-9.0)
    x[:, ::7] = -0.0
    return x.unsqueeze(1), prompts, outputs, asked.requests(vocabulary, prompts, outputs, seed)


def ends(text: list[int], prefix: tuple[int, ...]) -> bool:
    return not prefix or tuple(text[-len(prefix) :]) == prefix


def left_out(
    names: tuple[str, ...], request: SamplingRequest, prompt: list[int], output: list[int], values: Any
) -> set[int]:
    """Ids that a request leaves out, but those of its grammar."""
    ids: set[int] = set()
    if "allowed_token_ids" in names and request.allowed:
        ids |= set(range(37)) - {*request.allowed}
    if "bad_words" in names:
        text = output if values["bad_words_tokens"] == "output" else [*prompt, *output]
        ids |= {word[-1] for word in request.bad_words if ends(text, word[:-1])}
    if "min_tokens" in names and len(output) < request.min_tokens:
        ids |= {*request.stop_ids}
    return ids


@pytest.mark.parametrize("tokens", ["text", "output"])
@pytest.mark.parametrize("form", ["filled", "added"])
@pytest.mark.parametrize("seed", range(4))
def test_ids_that_are_left_out(seed: int, form: str, tokens: str) -> None:
    names = ("allowed_token_ids", "bad_words", "min_tokens", "grammar")
    x, prompts, outputs, requests = case(seed)
    values = at(*names, bad_words_form=form, min_tokens_form=form, bad_words_tokens=tokens)
    computed = processed(x, values, asked.text(prompts, outputs, requests))
    for row, theirs, prompt, output, request in zip(x, computed, prompts, outputs, requests, strict=True):
        ids = left_out(names, request, prompt, output, values)
        if request.grammar:
            words = request.grammar[len(prompt) + len(output)].tolist()
            ids |= {i for i in range(37) if i // 32 >= len(words) or not words[i // 32] >> (i % 32) & 1}
        zeros = form == "added" and bool(request.bad_words or request.min_tokens)
        expected = [
            INFINITE if i in ids else value + 0.0 if zeros else value for i, value in enumerate(row[0].tolist())
        ]
        assert_bits(theirs[0], torch.tensor(expected))


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("form", ["named", "all"])
@pytest.mark.parametrize("seed", range(4))
def test_biases(seed: int, form: str, place: str) -> None:
    x, prompts, outputs, requests = case(seed)
    values = at("logit_bias", bias_form=form, bias_place=place, repetition_penalty=1.3)
    computed = processed(x, values, asked.text(prompts, outputs, requests))
    for row, theirs, prompt, output, request in zip(x, computed, prompts, outputs, requests, strict=True):
        text = [*prompt, *output]
        sums = biases_at_the_end_of(text, request)
        expected = []
        for i, value in enumerate(map(F, row[0].tolist())):
            changed = i in sums or (form == "all" and bool(request.biases))
            bias, repeats = sums.get(i, F(0)), i in text
            if place == "first":
                expected.append(penalized(F(value + bias) if changed else value, repeats=repeats))
            else:
                after = penalized(value, repeats=repeats)
                expected.append(F(after + bias) if changed else after)
        assert_bits(theirs[0], torch.tensor(np.array(expected)))


def biases_at_the_end_of(text: list[int], request: SamplingRequest) -> dict[int, F]:
    """By id the sum of its biases: those of one id first, then by length."""
    sums: dict[int, F] = {}
    lengths = list(dict.fromkeys(len(ids) for ids, _ in request.biases))
    for length in sorted(lengths, key=lambda n: n > 1):
        for (*prefix, last), bias in request.biases:
            if len(prefix) + 1 == length and ends(text, tuple(prefix)):
                sums[last] = F(sums.get(last, F(0)) + F(bias))
    return sums


def penalized(value: F, *, repeats: bool) -> F:
    return value if not repeats else F(value * F(1.3)) if value < 0 else F(value / F(1.3))


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16])
@pytest.mark.parametrize("cap", [30.0, 2.5])
def test_a_cap_is_three_steps_each_rounded(cap: float, dtype: torch.dtype) -> None:
    x = processors.logits(1003, FP32).unsqueeze(1)
    step = x.to(dtype).double()
    over = (step / cap).to(FP32).to(dtype)
    expected = (over.to(FP32).tanh().to(dtype).double() * cap).to(FP32).to(dtype)
    assert_bits(processed(x, at(form="unrounded", soft_cap=cap, capped=dtype)), expected)
    assert float(expected.abs().max()) <= cap


def test_a_cap_comes_before_everything() -> None:
    x, prompts, outputs, requests = case(0)
    names = {"soft_cap": 2.5, "capped": BF16, "temperature": 0.7, "top_k": 5}
    text = asked.text(prompts, outputs, requests)
    alone = processed(x, at(form="unrounded", soft_cap=2.5, capped=BF16))
    assert_bits(
        processed(x, at("logit_bias", **names), text),
        processed(alone, at("logit_bias", temperature=0.7, top_k=5), text),
    )


def test_a_row_of_another_sequence_is_not_touched() -> None:
    """Rows of padding, before which nothing stands, and requests of other sequences."""
    x = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[[1, 2, 3]] * 3] * 2)
    before = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [0, 0, 0], [0, 0, 0]]]).bool()
    text = Text(
        ids=ids,
        before=before,
        output=before,
        sequences=torch.tensor([[1, 1, 1], [0, 1, 1]]),
        requests=(SamplingRequest(), SamplingRequest(bad_words=((4,), (1, 2, 5)), biases=(((7,), 1.5),))),
    )
    computed = processed(x, at("bad_words", "logit_bias"), text)
    changed = (computed != x).nonzero().tolist()
    assert changed == [[0, t, i] for t in range(3) for i in (4, *((5,) if t == 1 else ()), 7)]


def test_a_grammar_says_what_may_come_next() -> None:
    x = torch.zeros(1, 3, 70)
    ids = torch.tensor([[[1, 2, 3]] * 3])
    before = torch.ones(3, 3).tril().bool()[None]
    text = Text(
        ids=ids,
        before=before,
        output=None,
        sequences=torch.zeros(1, 3, dtype=torch.int64),
        requests=(SamplingRequest(grammar={2: packed([0, 31, 32, 69]), 3: packed([5])}),),
    )
    computed = processed(x, at("grammar"), text)[0]
    assert [row.isfinite().nonzero().flatten().tolist() for row in computed] == [[*range(70)], [0, 31, 32, 69], [5]]


def test_bits_of_a_mask_are_xgrammars() -> None:
    """Bit i % 32 of word i // 32; ids without a bit are left out."""
    assert packed([0, 31]).tolist() == [1 - (1 << 31)]
    assert packed([33]).tolist() == [0, 2]
    assert unpacked(torch.tensor([-1], dtype=torch.int32), 40).nonzero().flatten().tolist() == [*range(32)]
    for seed in range(20):
        chosen = torch.randperm(200, generator=torch.Generator().manual_seed(seed))[: 1 + seed].sort().values.tolist()
        assert unpacked(packed(chosen), 250).nonzero().flatten().tolist() == chosen


@pytest.mark.parametrize("form", ["unrounded", "log_softmax", "log_of_softmax", "shifted", "minus_logsumexp"])
def test_kept_mass_is_1(form: str) -> None:
    x, prompts, outputs, requests = case(5)
    text = asked.text(prompts, outputs, requests)
    names = ("allowed_token_ids", "logit_bias", "min_tokens")
    scores = log_probs(x, w={}, p={}, at=at(*names, form=form, soft_cap=5.0), text=text).double()
    mass = (scores.log_softmax(-1) if form == "unrounded" else scores).exp().sum(-1)
    assert ((mass - 1).abs() < 77 * 2**-24).all()
    assert scores.isneginf().any()


@pytest.mark.parametrize("name", asked.NAMES)
def test_without_requests_nothing_is_applied(name: str) -> None:
    x, prompts, outputs, _ = case(0)
    for text in (None, processors.text(prompts, outputs)):
        with pytest.raises(RefusedError, match=f"{name}: what requests ask for is not known here"):
            log_probs(x, w={}, p={}, at=at(name), text=text)


@pytest.mark.parametrize(("name", "values"), [("min_tokens", {}), ("bad_words", {"bad_words_tokens": "output"})])
def test_without_prompts_no_output_is_known(name: str, values: dict[str, str]) -> None:
    x, prompts, outputs, requests = case(2)
    text = asked.text(prompts, outputs, requests)
    unknown = Text(ids=text.ids, before=text.before, output=None, sequences=text.sequences, requests=text.requests)
    with pytest.raises(RefusedError, match="which tokens are prompt is not known here"):
        processed(x, at(name, **values), unknown)


def test_ids_beyond_the_vocabulary_are_none() -> None:
    x = torch.randn(1, 1, 5, generator=torch.Generator().manual_seed(0))
    request = SamplingRequest(
        biases=(((9,), 1.0),), bad_words=((9,),), allowed=(0, 1, 2, 3, 4, 9), min_tokens=9, stop_ids=(9,)
    )
    computed = processed(
        x, at("logit_bias", "bad_words", "allowed_token_ids", "min_tokens"), asked.text([[1]], [[2]], [request])
    )
    assert torch.equal(bits(computed), bits(x))
