"""A real vLLM on a CPU, in its own environment: what it says of each prompt, as `python vllm_cpu.py CASES ANSWERS`.

CASES holds `folder`, `prompts`, and `new`, how many tokens are drawn behind each. ANSWERS has for each prompt `logits`
[T, V] bf16, of every position; `prompt_logprobs` [T - 1] fp64, of its tokens from the second on; `tokens` [new] int64
and `logprobs` [new] fp64, of what was drawn. Prompts go one at a time. It imports nothing of this project.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from vllm import LLM, SamplingParams


def engine(folder: str) -> Any:
    """The engine in this process, eager, without a prefix cache."""
    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        dtype="bfloat16",
        max_num_seqs=4,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )


def main(cases_file: str, answers_file: str) -> None:
    cases = torch.load(cases_file)
    llm = engine(cases["folder"])
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    logits_calls: list[torch.Tensor] = []
    model.logits_processor.register_forward_hook(lambda _, __, logits: logits_calls.append(logits.clone()))
    sampling = SamplingParams(
        max_tokens=cases["new"], temperature=1.0, logprobs=0, prompt_logprobs=0, detokenize=False, ignore_eos=True
    )
    answers = []
    for prompt in cases["prompts"]:
        logits_calls.clear()
        (request,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        drawn = request.outputs[0]
        # The last position is asked for first, then all before it.
        before = logits_calls[1] if len(prompt) > 1 else logits_calls[0][:0]
        answers.append(
            {
                "logits": torch.cat((before, logits_calls[0])),
                "prompt_logprobs": _chosen(request.prompt_logprobs[1:], prompt[1:]),
                "tokens": torch.tensor(list(drawn.token_ids)),
                "logprobs": _chosen(drawn.logprobs, drawn.token_ids),
            }
        )
    torch.save(answers, answers_file)


def _chosen(of: Any, tokens: Any) -> torch.Tensor:
    """The log-probabilities of the tokens that came."""
    return torch.tensor([every[token].logprob for every, token in zip(of, tokens, strict=True)], dtype=torch.float64)


if __name__ == "__main__":
    main(*sys.argv[1:])
