"""What linear layers of a vLLM for CPUs are given and give: `python vllm_cpu_quantised.py FOLDERS ANSWERS`.

FOLDERS is a list of checkpoints. ANSWERS has for each, by the module's name, a list of calls: x [M, K] and its product
[M, N], bf16. It imports nothing of this project.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.linear import LinearBase

Calls = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]
PROMPT = list(range(3, 20))


def answer(folder: str) -> Calls:
    """A prompt of 17 tokens and two more, one by one."""
    llm = LLM(
        model=folder, skip_tokenizer_init=True, enforce_eager=True, distributed_executor_backend="uni",
        dtype="bfloat16", disable_log_stats=True, max_num_seqs=4, max_model_len=64, enable_prefix_caching=False,
    )  # fmt: skip
    calls: Calls = {}
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            module.register_forward_hook(_written(calls.setdefault(name, [])))
    sampling = SamplingParams(max_tokens=3, temperature=0.0, detokenize=False, ignore_eos=True)
    llm.generate([{"prompt_token_ids": PROMPT}], sampling)
    return calls


def _written(calls: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
    def write(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...], result: Any) -> None:
        product = result[0] if isinstance(result, tuple) else result
        calls.append((arguments[0].clone(), product.clone()))

    return write


def main(folders_file: str, answers_file: str) -> None:
    answers = []
    for folder in torch.load(folders_file):
        answers.append(answer(folder))
        gc.collect()
    torch.save(answers, answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
