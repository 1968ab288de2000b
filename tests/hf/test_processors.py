"""Sampling processors of `log_probs` against transformers': its processors, and the scores that `generate` returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation import logits_process

from moeparity.ops.kernels.log_probs import log_probs, processed
from moeparity.ops.kernels.requests import unpacked
from moeparity.ops.kernels.text import SamplingRequest, Text
from tests.numerics.scalar import FP64
from tests.ops import asked, processors
from tests.ops.log_probs import DEFAULTS
from tests.ops.plain import assert_bits
from tests.verified import record

AGAINST = f"transformers {transformers.__version__} on CPU"
SETTINGS: dict[str, Any] = {
    "form": "log_softmax",
    "bias_form": "all",
    "bias_place": "first",
    "bad_words_form": "added",
    "bad_words_tokens": "text",
    "min_tokens_form": "filled",
    "grammar_form": "forced",
    "repetition_form": "divide",
    "repetition_tokens": "text",
    "top_k_ties": "all",
    "sorted": "kept",
    "kept_mass": FP64,
    "min_p_place": "last",
    "min_p_form": "probabilities",
}
"""What the profile `hf-eager` states, but for the form: generate hands out logits."""
NAMES = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
MADE_BY: dict[str, Any] = {
    "repetition_penalty": logits_process.RepetitionPenaltyLogitsProcessor,
    "temperature": logits_process.TemperatureLogitsWarper,
    "top_k": logits_process.TopKLogitsWarper,
    "top_p": logits_process.TopPLogitsWarper,
    "min_p": logits_process.MinPLogitsWarper,
}
"""By parameter, in the order in which `generate` takes them."""


def theirs(x: Tensor, texts: list[list[int]], chosen: dict[str, Any]) -> Tensor:
    """Row by row, since texts have different lengths."""
    rows = []
    for row, ids in zip(x, texts, strict=True):
        scores = row[None].clone()
        for name in NAMES:
            if name in chosen:
                scores = MADE_BY[name](chosen[name])(torch.tensor([ids]), scores)
        rows.append(scores)
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [*processors.operands(), FP64])
def test_all_bits_of_processors(dtype: torch.dtype) -> None:
    for number, chosen in enumerate(processors.combinations(NAMES)):
        vocabulary = processors.VOCABULARIES[number % 4]
        prompts, outputs = processors.texts(vocabulary, number)
        x, values = processors.logits(vocabulary, dtype, number), processors.settings(chosen)
        at = {**DEFAULTS, **SETTINGS, "inputs": dtype, "scaled": dtype, **values}
        text = processors.text(prompts, outputs)
        expected = theirs(x, [[*p, *o] for p, o in zip(prompts, outputs, strict=True)], values)
        assert_bits(processed(x.unsqueeze(1), at, text).squeeze(1), expected)
        log_softmax = log_probs(x.unsqueeze(1), w={}, p={}, at=at, text=text).squeeze(1)
        assert_bits(log_softmax, expected.to(FP64 if dtype == FP64 else torch.float32).log_softmax(-1).float())
        record("log_probs", at, AGAINST, operands=dtype)


def changed_by(names: tuple[str, ...], request: SamplingRequest, prompt: int, at_token: int) -> list[tuple[str, Any]]:
    """transformers' processors for what a request asks for, by what they are, in the order in which `generate` has
    them; that of repetitions stands behind the biases.
    """
    changes: list[tuple[str, Any]] = []
    if "logit_bias" in names and request.biases:
        biases: list[list[list[int] | float]] = [[list(ids), bias] for ids, bias in request.biases]
        changes.append(("logit_bias", logits_process.SequenceBiasLogitsProcessor(biases)))
    if "bad_words" in names and request.bad_words:
        changes.append(
            ("bad_words", logits_process.NoBadWordsLogitsProcessor([list(ids) for ids in request.bad_words]))
        )
    if "min_tokens" in names and request.stop_ids:
        least, stops = request.min_tokens, list(request.stop_ids)
        changes.append(("min_tokens", logits_process.MinLengthLogitsProcessor(prompt + least, stops)))
        changes.append(("min_tokens", logits_process.MinNewTokensLengthLogitsProcessor(prompt, least, stops)))
    if "grammar" in names and request.grammar:
        allowed = unpacked(request.grammar[at_token], 2000).nonzero().flatten().tolist()
        fn = lambda batch, ids: allowed  # noqa: ARG005
        changes.append(("grammar", logits_process.PrefixConstrainedLogitsProcessor(fn, 1)))
    return changes


@pytest.mark.parametrize("dtype", [*processors.operands(), FP64])
def test_all_bits_of_what_requests_ask_for(dtype: torch.dtype) -> None:
    names_here = tuple(name for name in asked.NAMES if name != "allowed_token_ids")
    effective = set[str]()
    for number, (names, values) in enumerate(asked.combinations(NAMES)):
        if not {*names} <= {*names_here}:
            continue
        vocabulary = processors.VOCABULARIES[number % 4]
        prompts, outputs = processors.texts(vocabulary, number)
        x, requests = processors.logits(vocabulary, dtype, number), asked.requests(vocabulary, prompts, outputs, number)
        rows = []
        for row, (prompt, output, request) in enumerate(zip(prompts, outputs, requests, strict=True)):
            ids, scores = torch.tensor([[*prompt, *output]]), x[row][None].clone()
            changes = changed_by(names, request, len(prompt), len(prompt) + len(output))
            numbers = [(name, MADE_BY[name](values[name])) for name in NAMES if name in values]
            first = [made_of for made_of in changes if made_of[0] == "logit_bias"]
            repeated = [pair for pair in numbers if pair[0] == "repetition_penalty"]
            last = [pair for pair in numbers if pair[0] != "repetition_penalty"]
            others = [made_of for made_of in changes if made_of[0] != "logit_bias"]
            for name, processor in (*first, *repeated, *others, *last):
                before, scores = scores, processor(ids, scores)
                effective |= {name} if not torch.equal(before.nan_to_num(), scores.nan_to_num()) else set()
            rows.append(scores)
        at = {**DEFAULTS, **SETTINGS, "inputs": dtype, "scaled": dtype, **asked.applied(names), **values}
        computed = processed(x.unsqueeze(1), at, asked.text(prompts, outputs, requests)).squeeze(1)
        assert_bits(asked.one_nan(computed), asked.one_nan(torch.cat(rows)))
        record("log_probs", at, AGAINST, operands=dtype)
    assert {*names_here} <= effective


def test_suppressed_tokens_are_bad_words_of_one_id() -> None:
    x = processors.logits(37, torch.bfloat16, 3)
    prompts, outputs = processors.texts(37)
    requests = [SamplingRequest(bad_words=((2,), (3,), (36,)))] * len(prompts)
    at = {**DEFAULTS, **SETTINGS, "inputs": x.dtype, "bad_words": "applied", "bad_words_form": "filled"}
    theirs = logits_process.SuppressTokensLogitsProcessor([2, 3, 36])(torch.tensor([[1]]), x)
    assert_bits(processed(x.unsqueeze(1), at, asked.text(prompts, outputs, requests)).squeeze(1), theirs)


def test_scores_of_generate(qwen3_moe: Path) -> None:
    """Prompts of one length; `generate` makes fp32 of the logits first."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(qwen3_moe, dtype=torch.bfloat16)
    prompts = torch.randint(0, 64, (3, 5), generator=torch.Generator().manual_seed(0))
    chosen = {"repetition_penalty": 1.05, "temperature": 0.7, "top_k": 20, "top_p": 0.95, "min_p": 0.02}
    torch.manual_seed(0)
    output = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=6,
        do_sample=True,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        eos_token_id=None,
        **chosen,
    )
    at = {**DEFAULTS, **SETTINGS, **chosen}
    for step, (logits, scores) in enumerate(zip(output.logits, output.scores, strict=True)):
        ids = output.sequences[:, None, : 5 + step]
        text = Text(ids=ids, before=torch.ones_like(ids, dtype=torch.bool), output=None)
        assert_bits(processed(logits.unsqueeze(1), at, text).squeeze(1), scores)
        assert (scores == -torch.inf).any()


def test_scores_are_those_of_requests(qwen3_moe: Path) -> None:
    """What a live `generate` makes of biases, bad words, a least length and suppressed tokens."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(qwen3_moe, dtype=torch.bfloat16)
    prompts = torch.randint(0, 64, (2, 5), generator=torch.Generator().manual_seed(1))
    start = prompts[0, -2:].tolist()
    output = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=6,
        do_sample=False,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        eos_token_id=[3, 9],
        sequence_bias=[[[5], 2.5], [[*start, 7], -1.25]],
        bad_words_ids=[[11], [*start, 13]],
        min_new_tokens=4,
        repetition_penalty=1.2,
    )
    request = SamplingRequest(
        biases=(((5,), 2.5), ((*start, 7), -1.25)),
        bad_words=((11,), (*start, 13)),
        min_tokens=4,
        stop_ids=(3, 9),
    )
    applied = asked.applied(("logit_bias", "bad_words", "min_tokens"))
    at = {**DEFAULTS, **SETTINGS, **applied, "repetition_penalty": 1.2}
    for step, (logits, scores) in enumerate(zip(output.logits, output.scores, strict=True)):
        ids = output.sequences[:, None, : 5 + step]
        text = Text(
            ids=ids,
            before=torch.ones_like(ids, dtype=torch.bool),
            output=(torch.arange(5 + step) >= 5).expand(ids.shape),
            sequences=torch.tensor([[0], [1]]),
            requests=(request, request),
        )
        assert_bits(processed(logits.unsqueeze(1), at, text).squeeze(1), scores)
        assert scores[:, [3, 9]].isneginf().all() == (step < 4)
        assert scores[:, 11].isneginf().all()
