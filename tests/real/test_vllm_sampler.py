"""Sampling processors of `log_probs` against vLLM 0.32.0's V1 sampler, in all its modes, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeparity.ops.kernels.log_probs import log_probs, processed
from tests.engines.live import ROOT, run_in
from tests.ops import processors
from tests.ops.log_probs import DEFAULTS
from tests.ops.plain import assert_bits
from tests.real.served import VARIABLES
from tests.verified import record

pytestmark = pytest.mark.live
AGAINST = "vLLM 0.32.0 on CPU"
SETTINGS: dict[str, Any] = {
    "form": "log_softmax",
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
            drawn.append({"logits": x, "prompts": prompts, "outputs": outputs, "params": processors.settings(chosen)})
    return drawn


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, dict[str, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("sampler")
    files = [str(folder / name) for name in ("cases.pt", "answers.pt")]
    drawn = cases()
    torch.save(drawn, files[0])
    run_in("vllm-cpu", ROOT / "tests/real/vllm_sampler.py", files, VARIABLES)
    return list(zip(drawn, torch.load(files[1]), strict=True))


def ours(case: Case, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    x, text = case["logits"].unsqueeze(1), processors.text(case["prompts"], case["outputs"])
    at = {**DEFAULTS, **SETTINGS, **values}
    return {
        "processed_logprobs": log_probs(x, w={}, p={}, at=at, text=text).squeeze(1),
        "processed_logits": processed(x, at, text).squeeze(1),
    }


def test_all_bits_of_processed_ones(answered: list[tuple[Case, dict[str, torch.Tensor]]]) -> None:
    assert len(answered) > 500
    for case, theirs in answered:
        for mode, computed in ours(case, case["params"]).items():
            assert_bits(computed, theirs[mode])
        record("log_probs", {**DEFAULTS, **SETTINGS, **case["params"]}, AGAINST, operands=case["logits"].dtype)


def test_raw_ones_know_no_processor(answered: list[tuple[Case, dict[str, torch.Tensor]]]) -> None:
    for case, theirs in answered:
        raw = ours(case, {})
        assert_bits(raw["processed_logprobs"], theirs["raw_logprobs"])
        assert_bits(raw["processed_logits"], theirs["raw_logits"])


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
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
            ours(case, {**case["params"], attribute: value})["processed_logits"].nan_to_num(),
            theirs["processed_logits"].nan_to_num(),
        )
        for case, theirs in answered
    )
