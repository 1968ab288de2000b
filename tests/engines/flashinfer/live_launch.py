"""FlashInfer's rule of one shot or two, and how much its workspace takes, run by test_launch_rules.py.

Its buffer is of the size that its constructor asks for, without a GPU's memory behind it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer

with left_out("tvm_ffi", "pynvml", "requests", "cuda"):
    from flashinfer.comm import trtllm_mnnvl_ar as mnnvl


class Buffer(Exception):  # noqa: N818
    """Carries the size that was asked for out of the constructor."""


def _workspace_bytes(ranks: int, tokens: int, hidden: int) -> int:
    """Bytes of one of the workspace's buffers."""

    def allocate(buf_size: int, **_: object) -> None:
        raise Buffer(buf_size)

    mapping = mnnvl.Mapping(world_size=ranks, rank=0, tp_size=ranks, gpus_per_node=8)
    mnnvl.McastGPUBuffer, torch.cuda.current_device = allocate, lambda: 0
    try:
        mnnvl.MNNVLAllReduceFusionWorkspace(mapping, tokens, hidden, torch.bfloat16, comm_backend=object())
    except Buffer as buffer:
        return int(buffer.args[0]) // mnnvl.MNNVLAllReduceFusionWorkspace.NUM_LAMPORT_BUFFERS
    raise AssertionError("no buffer was asked for")


def all_reduce(tokens: list[int], hidden: int, ranks: int, most: int) -> dict[str, Tensor]:
    """Of bf16 messages of so many tokens: one shot or not, and whether a workspace for `most` tokens takes them."""
    workspace = object.__new__(mnnvl.MNNVLAllReduceFusionWorkspace)
    workspace.buffer_size_bytes = _workspace_bytes(ranks, most, hidden)
    strategy = mnnvl.MNNVLAllreduceFusionStrategy
    once = [strategy.select_strategy(ranks, count, hidden, torch.bfloat16) == strategy.ONESHOT for count in tokens]
    fits = [workspace.is_buffer_size_sufficient(ranks, count, hidden, torch.bfloat16) for count in tokens]
    return {"one_shot": torch.tensor(once), "fits": torch.tensor(fits)}


if __name__ == "__main__":
    answer({"all_reduce": all_reduce})
