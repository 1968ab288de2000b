"""A real vLLM on a CPU whose weights change while it serves, as `python vllm_updated.py CASE ANSWER`.

CASE holds `folder`, `path`, what is put in front of Python's path (the plugin), `engine`, arguments of `LLM`, and
`turns`: before each step of the engine what happens, a list of
    ["add", name, prompt, new]: a request, of which so many tokens are drawn greedily;
    ["update", version, factor]: one norm's weights are multiplied, and the engine is told the version;
    ["forget"]: the prefix cache is emptied.
After the last the engine goes on until nothing waits. ANSWER holds of each request by name `tokens`, `logprobs` (fp64),
`cached`, tokens found in the cache, and `versions`, spans [version, first, last + 1] of what was drawn. It imports
nothing of this project.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

NORM = "model.layers.1.post_attention_layernorm.weight"


def act(engine: Any, action: str, *arguments: Any) -> None:
    """One thing that happens between two steps."""
    from vllm import SamplingParams

    if action == "add":
        name, prompt, new = arguments
        greedy = SamplingParams(max_tokens=new, temperature=0.0, logprobs=0, detokenize=False, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": prompt}, greedy)
    elif action == "update":
        version, factor = arguments
        model = engine.model_executor.driver_worker.worker.model_runner.model
        with torch.no_grad():
            dict(model.named_parameters())[NORM].mul_(factor)
        engine.set_weight_version(version)
    else:
        engine.reset_prefix_cache()


def answer(output: Any) -> dict[str, Any]:
    """What the engine says of a request that is over."""
    drawn = output.outputs[0]
    return {
        "tokens": list(drawn.token_ids),
        "logprobs": [every[token].logprob for every, token in zip(drawn.logprobs, drawn.token_ids, strict=True)],
        "cached": output.num_cached_tokens,
        "versions": [[span.version, span.start, span.end] for span in drawn.weight_versions],
    }


def main(case_file: str, answer_file: str) -> None:
    case = torch.load(case_file)
    sys.path[:0] = case["path"]
    from vllm import LLM

    engine = LLM(
        model=case["folder"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        disable_log_stats=True,
        **case["engine"],
    ).llm_engine
    turns, answers = list(case["turns"]), {}
    while turns or engine.has_unfinished_requests():
        for action in turns.pop(0) if turns else ():
            act(engine, *action)
        for output in engine.step():
            if output.finished:
                answers[output.request_id.split("-")[0]] = answer(output)
    torch.save(answers, answer_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
