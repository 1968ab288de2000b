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
from moeparity.ops.kernels.text import Text
from tests.numerics.scalar import FP64
from tests.ops import processors
from tests.ops.log_probs import DEFAULTS
from tests.ops.plain import assert_bits
from tests.verified import record

AGAINST = f"transformers {transformers.__version__} on CPU"
SETTINGS: dict[str, Any] = {
    "form": "log_softmax",
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
