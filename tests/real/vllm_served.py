"""A real vLLM on a CPU that serves requests, in its own environment, as `python vllm_served.py CASES ANSWERS`.

CASES holds `folder`; `path`, what is put in front of Python's path (the plugin, or nothing); `engine`, arguments of
`LLM`; `mended`, whether rotary embeddings are handed rows of heads (tests/real/vllm_cpu.py); `prompts`, and `new`, how
many tokens are drawn behind each, at `temperature` (1 if none is given); `rounds`, how often all are served. ANSWERS
holds of the last round `tokens` and `logprobs` (fp64) of each request, of every round the `seconds` of CPU of this
process and those of them in the plugin, and of all forwards of the model in this process positions and ids, and the
sha256 of what each gave. It imports nothing of this project.
"""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

import torch


def main(cases_file: str, answers_file: str) -> None:
    cases = torch.load(cases_file)
    sys.path[:0] = cases["path"]
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=cases["folder"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        disable_log_stats=True,
        **cases["engine"],
    )
    if cases.get("mended"):
        from vllm_cpu import mend

        llm.apply_model(mend)
    forwards, outputs = watched(llm)
    inside = timed()
    temperature = cases.get("temperature", 1.0)
    sampling = [
        SamplingParams(max_tokens=new, temperature=temperature, logprobs=0, detokenize=False, ignore_eos=True)
        for new in cases["new"]
    ]
    prompts = [{"prompt_token_ids": prompt} for prompt in cases["prompts"]]
    seconds, plugin_seconds = [], []
    for _ in range(cases["rounds"]):
        inside.clear()
        start = time.process_time()
        requests = llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.process_time() - start)
        plugin_seconds.append(sum(inside))
    drawn = [request.outputs[0] for request in requests]
    answers = {
        "tokens": [list(each.token_ids) for each in drawn],
        "logprobs": [
            [every[token].logprob for every, token in zip(each.logprobs, each.token_ids, strict=True)] for each in drawn
        ],
        "cached": [request.num_cached_tokens for request in requests],
        "seconds": seconds,
        "plugin_seconds": plugin_seconds,
        "forwards": forwards,
        "outputs": outputs,
    }
    torch.save(answers, answers_file)


def timed() -> list[float]:
    """The seconds of CPU of every call of the plugin to come, where there is one in this process."""
    inside: list[float] = []
    plugin: Any = sys.modules.get("moeparity.hooks.vllm")
    if plugin is not None:
        looked = plugin._looked

        def timed_look(*arguments: Any, **keywords: Any) -> None:
            start = time.process_time()
            looked(*arguments, **keywords)
            inside.append(time.process_time() - start)

        plugin._looked = timed_look
    return inside


def watched(llm: Any) -> tuple[list[tuple[list[int], list[int]]], list[str]]:
    """Positions and ids of every forward to come, and the hash of its output, where the model is in this process."""
    forwards: list[tuple[list[int], list[int]]] = []
    outputs: list[str] = []
    executor = getattr(llm.llm_engine, "model_executor", None)
    if executor is not None:

        def see(_: Any, arguments: Any, keywords: Any) -> None:
            forwards.append((keywords["positions"].tolist(), keywords["input_ids"].tolist()))

        model = executor.driver_worker.worker.model_runner.model
        model.register_forward_pre_hook(see, with_kwargs=True)
        model.register_forward_hook(lambda _, __, output: outputs.append(hashed(output)))
    return forwards, outputs


def hashed(output: torch.Tensor) -> str:
    """The sha256 of a tensor's bytes."""
    return hashlib.sha256(output.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
