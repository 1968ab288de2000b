"""Sampling processors of `log_probs` against vLLM 0.32.0's V1 sampler, in all its modes, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from moeparity.ops.kernels.log_probs import log_probs, processed
from moeparity.ops.kernels.text import SamplingRequest
from tests.engines.live import ROOT, run_in
from tests.ops import asked, processors
from tests.ops.log_probs import DEFAULTS
from tests.ops.plain import assert_bits
from tests.real.served import VARIABLES
from tests.verified import record

pytestmark = pytest.mark.live
AGAINST = "vLLM 0.32.0 on CPU"
SETTINGS: dict[str, Any] = {
    "form": "log_softmax",
    "bias_form": "named",
    "bias_place": "first",
    "bad_words_form": "filled",
    "bad_words_tokens": "output",
    "min_tokens_form": "filled",
    "grammar_form": "filled",
    "repetition_form": "reciprocal",
    "repetition_tokens": "text",
    "subtracted": "last",
    "top_k_ties": "all",
    "sorted": "all",
    "kept_mass": torch.float32,
    "min_p_place": "first",
    "min_p_form": "probabilities",
}
"""What the profile `vllm-cpu` states."""
Case = dict[str, Any]


def cases() -> list[Case]:
    """Every combination of up to three processors on every dtype; vocabularies take turns, and all meet each of up to
    two.
    """
    drawn = []
    for number, chosen in enumerate(processors.combinations(tuple(processors.PROCESSORS))):
        every = processors.VOCABULARIES if len(chosen) < 2 else processors.VOCABULARIES[number % 4 : number % 4 + 1]
        for vocabulary in every:
            prompts, outputs = processors.texts(vocabulary, number)
            dtype = processors.operands()[number % 3]
            x = processors.logits(vocabulary, dtype, number)
            drawn.append({
                "soft_cap": 0.0,
                "logits": x,
                "prompts": prompts,
                "outputs": outputs,
                "params": processors.settings(chosen),
                "names": (),
                "requests": [SamplingRequest()] * len(prompts),
            })  # fmt: skip
    return [with_asked(case) for case in (*drawn, *asked_cases())]


def asked_cases() -> Iterator[Case]:
    """Every combination of up to three processors of which one at least is asked for by token ids."""
    for number, (names, values) in enumerate(asked.combinations((*asked.PENALTIES, *asked.FURTHER))):
        # xgrammar 0.2.8 masks neighbours of a row of one logit, whose strides say nothing.
        vocabulary = processors.VOCABULARIES[number % 4 or int("grammar" in names)]
        prompts, outputs = processors.texts(vocabulary, number)
        yield {
            "soft_cap": (0.0, 2.5, 30.0)[number // 4 % 3],
            "logits": processors.logits(vocabulary, processors.operands()[number % 3], number),
            "prompts": prompts,
            "outputs": outputs,
            "params": values,
            "names": names,
            "requests": [asked.single(r) for r in asked.requests(vocabulary, prompts, outputs, number)],
        }


def with_asked(case: Case) -> Case:
    """The case with each request as vLLM is told of it: what the case's names apply."""
    lengths = [len(p) + len(o) for p, o in zip(case["prompts"], case["outputs"], strict=True)]
    of_rows = [by_name(request, length) for request, length in zip(case["requests"], lengths, strict=True)]
    return {**case, "asked": [{k: v for name in case["names"] for k, v in of_row[name].items()} for of_row in of_rows]}


def by_name(request: SamplingRequest, length: int) -> dict[str, dict[str, Any]]:
    return {
        "logit_bias": {"logit_bias": {ids[0]: bias for ids, bias in request.biases}},
        "bad_words": {"bad_words_token_ids": [list(ids) for ids in request.bad_words]},
        "allowed_token_ids": {"allowed_token_ids": list(request.allowed)},
        "min_tokens": {"min_tokens": request.min_tokens, "stop_token_ids": list(request.stop_ids)},
        "grammar": {"bitmask": request.grammar[length]} if request.grammar else {},
    }


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("sampler")
    files = [str(folder / name) for name in ("cases.pt", "answers.pt")]
    drawn = cases()
    torch.save([{k: v for k, v in case.items() if k not in {"names", "requests"}} for case in drawn], files[0])
    run_in("vllm-cpu", ROOT / "tests/real/vllm_sampler.py", files, VARIABLES)
    return list(zip(drawn, torch.load(files[1]), strict=True))


def ours(case: Case, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    x, text = case["logits"].unsqueeze(1), asked.text(case["prompts"], case["outputs"], case["requests"])
    at = {**DEFAULTS, **SETTINGS, **values}
    return {
        "processed_logprobs": log_probs(x, w={}, p={}, at=at, text=text).squeeze(1),
        "processed_logits": processed(x, at, text).squeeze(1),
    }


def test_all_bits_of_processed_ones(answered: list[tuple[Case, dict[str, torch.Tensor]]]) -> None:
    assert len(answered) > 800
    for case, theirs in answered:
        values = values_of(case)
        for mode, computed in ours(case, values).items():
            assert_bits(asked.one_nan(computed), asked.one_nan(theirs[mode]))
        record("log_probs", {**DEFAULTS, **SETTINGS, **values}, AGAINST, operands=case["logits"].dtype)


def of_model(case: Case) -> dict[str, Any]:
    return {"soft_cap": case["soft_cap"], "capped": case["logits"].dtype}


def values_of(case: Case) -> dict[str, Any]:
    return {**of_model(case), **asked.applied(case["names"]), **case["params"]}


def test_raw_ones_know_no_processor_but_the_grammar(answered: list[tuple[Case, dict[str, torch.Tensor]]]) -> None:
    """The model runner masks the logits by it before the sampler has them."""
    changed = 0
    for case, theirs in answered:
        grammar = asked.applied([name for name in case["names"] if name == "grammar"])
        raw = ours(case, {**of_model(case), **grammar})
        assert_bits(asked.one_nan(raw["processed_logprobs"]), asked.one_nan(theirs["raw_logprobs"]))
        assert_bits(asked.one_nan(raw["processed_logits"]), asked.one_nan(theirs["raw_logits"]))
        changed += bool((theirs["raw_logits"].isneginf() & ~case["logits"].isneginf()).any())
    assert changed > 50


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("soft_cap", 0),
        ("capped", torch.float64),
        ("bias_form", "all"),
        ("bias_place", "last"),
        ("bad_words_form", "added"),
        ("bad_words_tokens", "text"),
        ("min_tokens_form", "added"),
        ("grammar_form", "forced"),
        *((name, "ignored") for name in asked.NAMES),
        ("repetition_form", "divide"),
        ("repetition_tokens", "output"),
        ("subtracted", "first"),
        ("top_k_ties", "first"),
        ("sorted", "kept"),
        ("kept_mass", torch.float64),
        ("min_p_place", "last"),
        ("min_p_form", "logits"),
    ],
)
def test_other_choices_give_other_bits(
    attribute: str, value: object, answered: list[tuple[Case, dict[str, torch.Tensor]]]
) -> None:
    """Somewhere among the cases, so that the equality above tells them apart."""
    assert any(
        not torch.equal(
            ours(case, {**values_of(case), attribute: value})["processed_logits"].nan_to_num().view(torch.int32),
            theirs["processed_logits"].nan_to_num().view(torch.int32),
        )
        for case, theirs in answered
    )
