"""The reward model under torch's own `parallelize_module`: `python -m tests.hf.live_rewards FOLDER WORLD...`.

FOLDER holds the checkpoint `reward`. For each WORLD one gloo group runs every plan and dtype, and rank 0 writes the
scores [B, 1] to FOLDER/WORLD.safetensors.
"""

from __future__ import annotations

import copy
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from transformers import AutoModelForSequenceClassification

from tests.hf import live_tensor_parallel as live
from tests.hf.compare import DTYPES as DTYPE
from tests.hf.compare import tokens

PLANS = ("row", "score", "column")
"""o_proj and down_proj row-wise, the score head whole; the head row-wise too; everything column-wise, the head too."""
DTYPES = ("bf16", "fp32")


def ids() -> Tensor:
    """Ids [6, 21] without pads."""
    return tokens(255, (6, 21)) + 1


def styles(plan: str) -> dict[str, ParallelStyle]:
    """As tests/hf/live_tensor_parallel.py has them, with the head of scores in place of the language model's."""
    plan_styles = live.styles("stable" if plan == "column" else "default")
    del plan_styles["lm_head"]
    if plan == "score":
        plan_styles["score"] = RowwiseParallel(input_layouts=Replicate())
    if plan == "column":
        plan_styles["score"] = ColwiseParallel(output_layouts=Replicate())
    return plan_styles


def opened(folder: Path) -> Any:
    """A model for each plan and dtype, made before any rank is forked."""
    models: dict[tuple[str, str], Any] = {}
    for dtype in DTYPES:
        model = AutoModelForSequenceClassification.from_pretrained(folder / "reward", dtype=DTYPE[dtype]).eval()
        models |= {(plan, dtype): copy.deepcopy(model) for plan in PLANS}
    return models


def run(models: Any, world: int) -> dict[str, Tensor]:
    """This rank's scores of every case."""
    mesh = init_device_mesh("cpu", (world,))
    scores = {}
    for plan, dtype in product(PLANS, DTYPES):
        model: Any = parallelize_module(models[plan, dtype], mesh, styles(plan), src_data_rank=None)
        with torch.no_grad():
            output = model(ids(), attention_mask=torch.ones_like(ids()), use_cache=False)
        scores[f"{plan}-{dtype}"] = output.logits.clone()
    return scores


def main() -> int:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    models = opened(folder)
    # The groups, the store and the file are those of the language models.
    live.run = run
    return 0 if all(live.group(int(world), folder, models) for world in sys.argv[2:]) else 1


if __name__ == "__main__":
    sys.exit(main())
