"""A real vLLM on a CPU, in its own environment, that serves checkpoints under a capture: `python engine.py JOBS`.

JOBS is a JSON file: `source`, the folder of this project; and `jobs`, each a checkpoint's `folder` and `runs`. A run
has `prompts`, `new`, `arrivals`; `top`, how many of the likeliest tokens are listed; `trace`, the folder that it is
captured in, if it is; and `answer`, the file that it is written to: of each request `tokens`, `logprobs` (fp64), and
`top`, what the engine says of the likeliest tokens. One process serves all of them; an answer that is there is not made
again.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from vllm import LLM, SamplingParams


def engine(folder: str) -> Any:
    """The engine in this process, eager."""
    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        dtype="bfloat16",
        disable_log_stats=True,
        max_num_seqs=32,
        enable_prefix_caching=False,
    ).llm_engine


def served(llm: Any, run: dict[str, Any]) -> dict[str, Any]:
    """What the engine says of a run's requests, each of which is added before the step of its arrival."""
    sampling = SamplingParams(
        max_tokens=run["new"], temperature=1.0, logprobs=run["top"], detokenize=False, ignore_eos=True
    )
    prompts, arrivals = run["prompts"], run["arrivals"]
    waiting = sorted(range(len(prompts)), key=lambda number: (arrivals[number], number))
    finished: dict[int, Any] = {}
    turn = 0
    while waiting or llm.has_unfinished_requests():
        while waiting and arrivals[waiting[0]] <= turn:
            number = waiting.pop(0)
            llm.add_request(str(number), {"prompt_token_ids": prompts[number]}, sampling)
        finished |= {int(o.request_id.split("-")[0]): o.outputs[0] for o in llm.step() if o.finished}
        turn += 1
    drawn = [finished[number] for number in range(len(prompts))]
    return {
        "tokens": [list(each.token_ids) for each in drawn],
        "logprobs": [
            [every[token].logprob for every, token in zip(each.logprobs, each.token_ids, strict=True)] for each in drawn
        ],
        "top": [[[(token, of.logprob) for token, of in every.items()] for every in each.logprobs] for each in drawn],
    }


def answered(llm: Any, run: dict[str, Any], capture: Any) -> None:
    """One run, captured where that is asked, and answered."""
    torch.manual_seed(0)
    llm.reset_prefix_cache()
    options = {"level": "op,module", "save": ["model*", "logits_processor"], "stacks": False, "stats": False}
    with capture(run["trace"], **options) if "trace" in run else nullcontext():
        answer = served(llm, run)
    Path(run["answer"]).write_text(json.dumps(answer), "utf-8")


def main(jobs_file: str) -> None:
    """Every job whose answers are not there."""
    document = json.loads(Path(jobs_file).read_text("utf-8"))
    sys.path.append(document["source"])
    from moeparity.evidence.capture.context import capture  # noqa: PLC0415  the path to it is part of what is asked

    for job in document["jobs"]:
        missing = [run for run in job["runs"] if not Path(run["answer"]).exists()]
        if not missing:
            continue
        llm = engine(job["folder"])
        for run in missing:
            try:
                answered(llm, run, capture)
            except Exception:  # noqa: BLE001  the others are served all the same
                Path(run["answer"]).with_suffix(".error").write_text(traceback.format_exc(), "utf-8")
        del llm
        gc.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
