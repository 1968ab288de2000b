"""A real vLLM on a CPU, in its own environment: what it says of each run, as `python vllm_cpu.py CASES ANSWERS`.

CASES holds `folder`, `engine` (arguments of LLM), `mended` (below) and `runs`. A run has `prompts`, `new`, how many
tokens are drawn behind each, `arrivals`, the step before which each request is added, and `prompt_logprobs`.
ANSWERS has for each run
    `requests`: of each prompt `tokens` [new] int64 and `logprobs` [new] fp64, of what was drawn, and `prompt_logprobs`
        [T - 1] fp64, of the prompt's tokens from the second on, or None;
    `steps`: of each step [request, first token, number of tokens] in the order of the worker's rows;
    `logits`: what the head gave, call by call, [rows, V] bf16.
`mended`: rotary embeddings are handed rows of heads side by side, which their kernel is written for, in place of the
three axes of multi-head latent attention, of which it takes the heads' stride for that of tokens.
It imports nothing of this project.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from vllm import LLM, SamplingParams
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding


def engine(folder: str, arguments: dict[str, Any]) -> Any:
    """The engine in this process, eager."""
    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        dtype="bfloat16",
        disable_log_stats=True,
        **arguments,
    )
    return llm.llm_engine


def mend(model: torch.nn.Module) -> None:
    """Hand every rotary embedding rows of heads side by side."""
    for module in model.modules():
        if isinstance(module, RotaryEmbedding):
            module._forward_method = _by_rows(module)


def _by_rows(module: Any) -> Any:
    def rotated(positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k = (x.reshape(len(positions), -1).contiguous() for x in (query, key))
        module.forward_cpu(positions, q, k)
        return q.view(query.shape), k.view(key.shape)

    return rotated


class Records:
    """What steps compute and what the head gives, written down as it goes by."""

    def __init__(self, runner: Any) -> None:
        self.steps: list[list[tuple[int, int, int]]] = []
        self.logits: list[torch.Tensor] = []
        self._runner, self._prepare = runner, runner._prepare_inputs
        runner._prepare_inputs = self._write_step
        runner.model.logits_processor.register_forward_hook(lambda _, __, logits: self.logits.append(logits.clone()))

    def _write_step(self, scheduled: Any, counts: Any, *rest: Any, **options: Any) -> Any:
        batch = self._runner.input_batch
        self.steps.append(
            [
                (_number(request), int(batch.num_computed_tokens_cpu[row]), int(counts[row]))
                for row, request in enumerate(batch.req_ids)
            ]
        )
        return self._prepare(scheduled, counts, *rest, **options)


def answer(engine: Any, records: Records, run: dict[str, Any]) -> dict[str, Any]:
    """What the engine says of one run."""
    records.steps, records.logits = [], []
    wanted = {"prompt_logprobs": 0} if run["prompt_logprobs"] else {}
    sampling = SamplingParams(
        max_tokens=run["new"], temperature=1.0, logprobs=0, detokenize=False, ignore_eos=True, **wanted
    )
    waiting = sorted(range(len(run["prompts"])), key=lambda number: (run["arrivals"][number], number))
    finished: dict[int, Any] = {}
    turn = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and run["arrivals"][waiting[0]] <= turn:
            number = waiting.pop(0)
            engine.add_request(str(number), {"prompt_token_ids": run["prompts"][number]}, sampling)
        finished |= {_number(output.request_id): output for output in engine.step() if output.finished}
        turn += 1
    requests = [_request(finished[number], prompt) for number, prompt in enumerate(run["prompts"])]
    return {"requests": requests, "steps": records.steps, "logits": records.logits}


def _number(request: str) -> int:
    """The number of a request, which the engine calls by that and something random."""
    return int(request.split("-", maxsplit=1)[0])


def _request(output: Any, prompt: list[int]) -> dict[str, torch.Tensor | None]:
    drawn, of_prompt = output.outputs[0], output.prompt_logprobs
    return {
        "tokens": torch.tensor(list(drawn.token_ids)),
        "logprobs": _chosen(drawn.logprobs, drawn.token_ids),
        "prompt_logprobs": None if of_prompt is None else _chosen(of_prompt[1:], prompt[1:]),
    }


def _chosen(of: Any, tokens: Any) -> torch.Tensor:
    """The log-probabilities of the tokens that came."""
    return torch.tensor([every[token].logprob for every, token in zip(of, tokens, strict=True)], dtype=torch.float64)


def main(cases_file: str, answers_file: str) -> None:
    cases = torch.load(cases_file)
    served = engine(cases["folder"], cases["engine"])
    runner = served.model_executor.driver_worker.worker.model_runner
    if cases["mended"]:
        mend(runner.model)
    records = Records(runner)
    torch.save([answer(served, records, run) for run in cases["runs"]], answers_file)


if __name__ == "__main__":
    main(*sys.argv[1:])
