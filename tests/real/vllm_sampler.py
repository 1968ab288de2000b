"""vLLM's V1 sampler on logits: `python vllm_sampler.py CASES ANSWERS`.

CASES is a list of `logits` [N, V], of `prompts` and `outputs`, lists of N lists of token ids, of sampling `params` by
vLLM's names, and of what each of the N requests asks for besides: `logit_bias`, `bad_words_token_ids`,
`allowed_token_ids`, `min_tokens` and `stop_token_ids` by vLLM's names, and a `bitmask` int32 [W] of its grammar;
and the `soft_cap` of a model, 0 for none.
ANSWERS has, for each, log-probabilities or logits fp32 [N, V] by logprobs_mode. It imports nothing of this project.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import xgrammar
from torch import Tensor
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.utils.torch_utils import make_tensor_with_pad
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


def metadata(case: dict[str, Any]) -> SamplingMetadata:
    """What the model runner hands to the sampler for requests with these parameters."""
    rows, vocabulary = case["logits"].shape
    # SamplingParams checks and normalises what a request asks for.
    requests = [SamplingParams(**case["params"], **_of_parameters(request_fields)) for request_fields in case["asked"]]
    request = requests[0]
    top_k = vocabulary if request.top_k in (0, -1) else min(request.top_k, vocabulary)

    def each(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float32)

    builtin = (MinTokensLogitsProcessor, LogitBiasLogitsProcessor, MinPLogitsProcessor)
    processors = [kind(VllmConfig(), torch.device("cpu"), False) for kind in builtin]
    added = [(row, requests[row], case["prompts"][row], case["outputs"][row]) for row in range(rows)]
    for processor in processors:
        processor.update_state(BatchUpdate(batch_size=rows, removed=[], added=added, moved=[]))
    penalties = (request.repetition_penalty - 1, request.frequency_penalty, request.presence_penalty)
    greedy = request.temperature == 0
    return SamplingMetadata(
        temperature=None if greedy else each(request.temperature),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=None if request.top_p == 1 else each(request.top_p),
        top_k=None if top_k == vocabulary else torch.full((rows,), top_k, dtype=torch.int32),
        generators={},
        max_num_logprobs=-1,
        no_penalties=not any(penalties),
        prompt_token_ids=make_tensor_with_pad(
            case["prompts"], pad=vocabulary, device="cpu", dtype=torch.int64, pin_memory=False
        ),
        frequency_penalties=each(request.frequency_penalty),
        presence_penalties=each(request.presence_penalty),
        repetition_penalties=each(request.repetition_penalty),
        output_token_ids=case["outputs"],
        allowed_token_ids_mask=_not_allowed(case["asked"], vocabulary),
        bad_words_token_ids={
            row: request_fields["bad_words_token_ids"]
            for row, request_fields in enumerate(case["asked"])
            if request_fields.get("bad_words_token_ids")
        },
        logitsprocs=LogitsProcessors(processors),
    )


def _of_parameters(request_fields: dict[str, Any]) -> dict[str, Any]:
    """What SamplingParams takes; the runner keeps the rest beside it."""
    return {key: request_fields[key] for key in ("logit_bias", "min_tokens", "stop_token_ids") if key in request_fields}


def _not_allowed(requests: list[dict[str, Any]], vocabulary: int) -> Tensor | None:
    """True at ids that are masked, as the runner's batch has them; None where no request allows some ids alone."""
    if not any(request_fields.get("allowed_token_ids") for request_fields in requests):
        return None
    mask = torch.zeros(len(requests), vocabulary, dtype=torch.bool)
    for row, request_fields in enumerate(requests):
        if request_fields.get("allowed_token_ids"):
            mask[row] = True
            mask[row, request_fields["allowed_token_ids"]] = False
    return mask


def _capped(case: dict[str, Any]) -> Tensor:
    """The logits as a model of Gemma's kind has them, whose layer caps them in their dtype."""
    if not case.get("soft_cap"):
        return case["logits"].clone()
    with set_current_vllm_config(VllmConfig()):
        layer = LogitsProcessor(case["logits"].shape[1], logits_as_input=True, soft_cap=case["soft_cap"])
    return layer(None, case["logits"].clone())


def _by_grammar(case: dict[str, Any]) -> Tensor:
    """The logits as the model runner hands them to the sampler: apply_grammar_bitmask of v1/structured_output/utils.py
    on a CPU.
    """
    logits = _capped(case)
    words = (logits.shape[1] + 31) // 32
    for row, request_fields in enumerate(case["asked"]):
        if "bitmask" in request_fields:
            of_row = logits[row : row + 1].to(torch.float32)
            mask = torch.zeros(1, words, dtype=torch.int32)
            mask[0, : len(request_fields["bitmask"])] = request_fields["bitmask"]
            xgrammar.apply_token_bitmask_inplace(of_row, mask)
            logits[row] = of_row[0].to(logits.dtype)
    return logits


def main(cases_file: str, answers_file: str) -> None:
    current_platform.import_kernels()
    answers = []
    for case in torch.load(cases_file):
        of_case = {}
        for mode in MODES:
            output = Sampler(logprobs_mode=mode)(_by_grammar(case), metadata(case))
            of_case[mode] = output.logprobs_tensors.logprobs.clone()
        answers.append(of_case)
    torch.save(answers, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
