"""Qwen3 under torch's own `parallelize_module`: `python -m tests.hf.live_tensor_parallel FOLDER WORLD...`.

FOLDER holds a checkpoint under each name in `CHECKPOINTS`. For each WORLD one gloo group of that many forked ranks runs
every case on loopback, and rank 0 writes the logits to FOLDER/WORLD.safetensors under the cases' names.
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import AutoModelForCausalLM, PreTrainedModel

from tests.hf.compare import DTYPES, tokens

Plan = Literal["default", "stable", "sequence"]
Models = Mapping[tuple[str, str, Plan], PreTrainedModel]
"""By checkpoint, dtype and plan."""

PLANS: tuple[Plan, ...] = ("default", "stable", "sequence")
LIMIT = timedelta(seconds=60)
MOST = 8
"""The largest number of ranks."""

_NARROW: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 72,
    "intermediate_size": 104,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "vocab_size": 296,
}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    # As many key/value heads as heads; with eight ranks no shard has rows of whole 64 bytes.
    "narrow": _NARROW,
    # Query groups, biases (a row-wise cut projection too has one), a vocabulary that no number of ranks divides.
    "grouped": {
        **_NARROW,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "attention_bias": True,
        "vocab_size": 301,
    },
    # Rows as long as those of real models.
    "wide": {
        **_NARROW,
        "hidden_size": 2048,
        "intermediate_size": 1024,
        "num_attention_heads": 16,
        "head_dim": 128,
        "vocab_size": 512,
    },
}
# The sequence-parallel plan leaves some ranks without a token in 1x1, and with fewer than the others in 3x21.
SHAPES = {"narrow": ((1, 1), (3, 21)), "grouped": ((2, 7),), "wide": ((2, 9),)}


@dataclass(frozen=True)
class Case:
    checkpoint: str
    plan: Plan
    dtype: str
    attention: str
    shape: tuple[int, int]

    def __str__(self) -> str:
        sequences, length = self.shape
        return f"{self.checkpoint}-{self.plan}-{self.dtype}-{self.attention}-{sequences}x{length}"

    def ids(self) -> torch.Tensor:
        """Token ids [B, T] int64."""
        return tokens(CHECKPOINTS[self.checkpoint]["vocab_size"], self.shape)


def cases(world: int) -> list[Case]:
    """All plans, but the sequence-parallel one for "wide", in both dtypes.

    Every rank attends to its own heads, whatever the plan and the dtype: of the attention implementations the second is
    there once, and tests/hf/test_bit_equality.py has both in every shape.
    """
    # Eight processes on two cores are most of what this costs. What eight ranks add to four are shards whose rows are
    # no whole cache lines and ranks without a token, and "narrow" has both; groups, biases and long rows are cut over
    # two and four ranks by the same code.
    checkpoints = ["narrow"] if world == MOST else [*CHECKPOINTS]
    return [
        Case(name, plan, dtype, attention, shape)
        for name, plan, dtype in product(checkpoints, PLANS, ("bf16", "fp32"))
        for attention in (("eager", "sdpa") if (name, plan) == ("grouped", "default") else ("sdpa",))
        for shape in SHAPES[name]
        if not (name == "wide" and plan == "sequence")
    ]


def styles(plan: Plan) -> dict[str, ParallelStyle]:
    """The plan as NeMo-RL has it for Qwen3 (nemo_rl/models/dtensor/parallelize.py), but for the logits: gathered."""
    inside: dict[str, ParallelStyle] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    inside |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    inside |= {name: _closing(plan) for name in ("self_attn.o_proj", "mlp.down_proj")}
    outside: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    if plan == "sequence":
        inside |= _gathered_again()
        outside = {
            "model.embed_tokens": RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False
            ),
            "model.norm": SequenceParallel(),
            "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        }
    return outside | {f"model.layers.*.{name}": style for name, style in inside.items()}


def _closing(plan: Plan) -> ParallelStyle:
    """Of the projections that lead back to the residual stream."""
    if plan == "stable":
        return ColwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())
    if plan == "sequence":
        return RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    return RowwiseParallel()


def _gathered_again() -> dict[str, ParallelStyle]:
    """Sequence parallel: norms on each rank's tokens, then all tokens to attention and to the MLP."""
    attention = PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": Shard(1)},
        desired_input_kwarg_layouts={"hidden_states": Replicate()},
        use_local_output=True,
    )
    mlp = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True)
    norms = {f"{name}_layernorm": SequenceParallel() for name in ("input", "post_attention")}
    return {"self_attn": attention, "mlp": mlp, **norms}


def opened(folder: Path) -> Models:
    """A model for each plan, made before any rank is forked; those of a checkpoint and dtype share their parameters
    until a rank cuts them.
    """
    models: dict[tuple[str, str, Plan], PreTrainedModel] = {}
    for name, dtype in product(CHECKPOINTS, ("bf16", "fp32")):
        model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=DTYPES[dtype]).eval()
        shared = {id(parameter): parameter for parameter in model.parameters()}
        models |= {(name, dtype, plan): copy.deepcopy(model, dict(shared)) for plan in PLANS}
    return models


def run(models: Models, world: int) -> dict[str, torch.Tensor]:
    """This rank's logits [B, T, V] of every case, all of them whole."""
    mesh = init_device_mesh("cpu", (world,))
    parallel_models: dict[tuple[str, str, Plan], Any] = {}
    logits = {}
    for case in cases(world):
        key = (case.checkpoint, case.dtype, case.plan)
        if key not in parallel_models:
            placed = parallelize_module(models[key], mesh, styles(case.plan), src_data_rank=None)
            parallel_models = {key: placed}
        parallel_models[key].set_attn_implementation(case.attention)
        ids = case.ids()
        with torch.no_grad():
            output = parallel_models[key](ids, attention_mask=torch.ones_like(ids), use_cache=False)
        # A copy is a plain tensor, whereas what was gathered may still be on its way.
        logits[str(case)] = output.logits.clone()
    return logits


def work(rank: int, world: int, folder: Path, models: Models) -> None:
    store = f"file://{folder}/store-{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=LIMIT)
    logits = run(models, world)
    if rank == 0:
        save_file(logits, folder / f"{world}.safetensors")
    dist.barrier()
    dist.destroy_process_group()


def start(rank: int, world: int, folder: Path, models: Models) -> int:
    """The process id of a forked rank, which never returns from here."""
    child = os.fork()
    if child:
        return child
    try:
        work(rank, world, folder, models)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def group(world: int, folder: Path, models: Models) -> bool:
    """Whether every rank of one group came to its end; the first that does not ends the others."""
    running = {start(rank, world, folder, models) for rank in range(world)}
    fine = True
    while running:
        child, status = os.wait()
        running.discard(child)
        if status and fine:
            fine = False
            for child_pid in running:
                os.kill(child_pid, signal.SIGKILL)
    return fine


def main() -> int:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    models = opened(folder)
    return 0 if all(group(int(world), folder, models) for world in sys.argv[2:]) else 1


if __name__ == "__main__":
    sys.exit(main())
