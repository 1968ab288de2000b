"""vLLM's V1 sampler on logits: `python vllm_sampler.py CASES ANSWERS`.

CASES is a list of `logits` [N, V], of `prompts` and `outputs`, lists of N lists of token ids, and of sampling `params`
by vLLM's names. ANSWERS has, for each, log-probabilities or logits fp32 [N, V] by logprobs_mode. It imports nothing of
this project.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.utils.torch_utils import make_tensor_with_pad
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import MinPLogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

MODES = ("raw_logprobs", "raw_logits", "processed_logprobs", "processed_logits")


def metadata(case: dict[str, Any]) -> SamplingMetadata:
    """What the model runner hands to the sampler for requests with these parameters."""
    rows, vocabulary = case["logits"].shape
    # SamplingParams checks and normalises what a request asks for.
    request = SamplingParams(**case["params"])
    top_k = vocabulary if request.top_k in (0, -1) else min(request.top_k, vocabulary)

    def each(value: float) -> Tensor:
        return torch.full((rows,), value, dtype=torch.float32)

    min_p = MinPLogitsProcessor(VllmConfig(), torch.device("cpu"), False)
    added = [(row, request, case["prompts"][row], case["outputs"][row]) for row in range(rows)]
    min_p.update_state(BatchUpdate(batch_size=rows, removed=[], added=added, moved=[]))
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
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors([min_p]),
    )


def main(cases_file: str, answers_file: str) -> None:
    current_platform.import_kernels()
    answers = []
    for case in torch.load(cases_file):
        of_case = {}
        for mode in MODES:
            output = Sampler(logprobs_mode=mode)(case["logits"].clone(), metadata(case))
            of_case[mode] = output.logprobs_tensors.logprobs.clone()
        answers.append(of_case)
    torch.save(answers, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
