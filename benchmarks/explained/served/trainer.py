"""A real TRL trainer on a CPU that scores sequences with checkpoints under a capture: `python trainer.py JOBS`.

JOBS is as engine.py has it. A run's `prompts` are scored by `GRPOTrainer` as it scores completions before a step; its
`answer` has `logprobs`, [B, T - 1] fp32, of what stands behind the first token.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer


def trainer(folder: str) -> Any:
    """The trainer of a checkpoint in bf16, as it is before its first step."""
    from tests.real.trl_run import reward, tokenizer  # noqa: PLC0415  the path to it is part of what is asked

    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, bf16=False,
        per_device_train_batch_size=4, num_generations=2, model_init_kwargs={"dtype": "bfloat16"},
    )  # fmt: skip
    dataset = Dataset.from_dict({"prompt": ["x"]})
    return GRPOTrainer(
        model=folder, reward_funcs=reward, args=arguments, train_dataset=dataset, processing_class=tokenizer()
    )


def answered(of: Any, run: dict[str, Any], capture: Any) -> None:
    """One run, captured where that is asked, and answered."""
    width = max(map(len, run["prompts"]))
    rows = [row + [0] * (width - len(row)) for row in run["prompts"]]
    mask = [[1] * len(row) + [0] * (width - len(row)) for row in run["prompts"]]
    ids, real = torch.tensor(rows), torch.tensor(mask)
    options = {"level": "op,module", "save": ["*"], "stacks": False, "stats": False}
    with capture(run["trace"], **options) if "trace" in run else nullcontext(), torch.no_grad():
        logprobs, *_ = of._get_per_token_logps_and_entropies(of.model, ids, real, width - 1, len(rows))  # noqa: SLF001
    Path(run["answer"]).write_text(json.dumps({"logprobs": logprobs.tolist()}), "utf-8")


def main(jobs_file: str) -> None:
    """Every job whose answers are not there."""
    document = json.loads(Path(jobs_file).read_text("utf-8"))
    sys.path.append(document["source"])
    from moeparity.evidence.capture.context import capture  # noqa: PLC0415  TRL is imported first

    torch.set_num_threads(1)
    for job in document["jobs"]:
        of = trainer(job["folder"])
        for run in job["runs"]:
            answered(of, run, capture)


if __name__ == "__main__":
    main(*sys.argv[1:])
