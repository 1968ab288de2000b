"""vLLM's launch rules: its own Python decides over a grid of shapes, run by test_launch_rules.py.

The platform answers as H100s on one node with NVSwitch (capability 9.0), tensors are torch's fake ones on CUDA, and
each kernel that could be chosen notes that it was. FlashInfer's workspace fits whatever vLLM's limits allow, which is
asked of FlashInfer in its own live_launch.py. The custom kernels' limit is the default of their constructor, held to
vLLM's table as the constructor does.
"""

from __future__ import annotations

import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import ast
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.engines.absent import left_out
from tests.engines.live import answer
from tests.engines.vllm.left_out import LEFT_OUT

with left_out(*LEFT_OUT.split()):
    from vllm.config import CompilationConfig, CompilationMode, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import utils as distributed_utils
    from vllm.distributed.device_communicators import all_reduce_utils, cuda_communicator, flashinfer_all_reduce
    from vllm.distributed.device_communicators.custom_all_reduce import CustomAllreduce
    from vllm.distributed.device_communicators.symm_mem import SymmMemCommunicator
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm.model_executor.layers.fused_moe.router import grouped_topk_router
    from vllm.model_executor.layers.rotary_embedding import deepseek_scaling_rope
    from vllm.platforms.interface import DeviceCapability

# Its kernels in C, which it loads on import.
with left_out(*LEFT_OUT.split(), "vllm._C_stable_libtorch"):
    from vllm.platforms.cuda import CudaPlatformBase


def _limits() -> dict[int, dict[int, float]]:
    """MiB up to which FlashInfer is taken, by capability and ranks: a table in a file that imports its kernels in C."""
    path = Path(all_reduce_utils.__file__).parents[2] / "compilation/passes/fusion/allreduce_rms_fusion.py"
    for statement in ast.parse(path.read_text("utf-8")).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "FI_ALLREDUCE_FUSION_MAX_SIZE_MB":
            assert statement.value is not None
            return ast.literal_eval(statement.value)
    raise AssertionError(f"no table in {path}")


BACKENDS = ("flashinfer", "custom", "symm_mem", "multimem", "nccl")
H100 = SimpleNamespace(
    is_cuda=lambda: True,
    is_cuda_alike=lambda: True,
    is_rocm=lambda: False,
    is_xpu=lambda: False,
    is_cpu=lambda: False,
    is_out_of_tree=lambda: False,
    get_device_capability=lambda *_: DeviceCapability(9, 0),
    has_device_capability=lambda capability, *_: capability <= 90,
)


def _communicator(ranks: int, chosen: list[str]) -> Any:
    """vLLM's communicator of one rank, whose kernels note that they were chosen."""

    def note(name: str) -> Any:
        def kernel(x: Tensor) -> Tensor:
            chosen.append(name)
            return x

        return kernel

    flash: Any = object.__new__(flashinfer_all_reduce.FlashInferAllReduce)
    most = _limits()[90].get(ranks)
    flash.__dict__ |= {"disabled": not most, "world_size": ranks, "rank": 0, "group": None, "max_num_tokens": 0}
    flash.max_workspace_size = int((most or 0) * all_reduce_utils.MiB)
    flash.all_reduce = note("flashinfer")
    custom: Any = object.__new__(CustomAllreduce)
    default = inspect.signature(CustomAllreduce.__init__).parameters["max_size"].default
    limit = min(all_reduce_utils.CUSTOM_ALL_REDUCE_MAX_SIZES["9.0"][ranks], default)
    custom.__dict__ |= {"disabled": False, "world_size": ranks, "fully_connected": True, "max_size": limit}
    custom.batch_invariant, custom.custom_all_reduce = False, note("custom")
    symm: Any = object.__new__(SymmMemCommunicator)
    symm.__dict__ |= {"disabled": False, "dtype": torch.bfloat16}
    symm.max_size = all_reduce_utils.SYMM_MEM_ALL_REDUCE_MAX_SIZES["9.0"][ranks]
    multimem = ranks in SymmMemCommunicator._WORLD_SIZES_MULTIMEM["9.0"]
    symm.all_reduce = note("multimem" if multimem else "symm_mem")
    nccl = SimpleNamespace(disabled=False, world_size=ranks, all_reduce=note("nccl"))
    absent = dict.fromkeys(("qr_comm", "fi_pcie_ipc_ar_comm", "aiter_ar_comm", "use_aiter_allreduce", "device_group"))
    return SimpleNamespace(fi_ar_comm=flash, ca_comm=custom, symm_mem_comm=symm, pynccl_comm=nccl, **absent)


def all_reduce(tokens: list[int], hidden: int, ranks: int) -> dict[str, Tensor]:
    """Which of BACKENDS CudaCommunicator.all_reduce takes for bf16 messages of so many tokens."""
    chosen: list[str] = []
    workspace = SimpleNamespace(is_buffer_size_sufficient=lambda **_: True)
    with FakeTensorMode(), patch.object(flashinfer_all_reduce, "get_fi_ar_workspace", lambda **_: workspace):
        communicator = _communicator(ranks, chosen)
        for count in tokens:
            x = torch.empty(count, hidden, device="cuda", dtype=torch.bfloat16)
            cuda_communicator.CudaCommunicator.all_reduce(communicator, x)
    return {"chosen": torch.tensor([BACKENDS.index(name) for name in chosen])}


def table_dtype(eager: bool, head: int) -> dict[str, Tensor]:
    """Whether cos and sin of DeepSeek's rotary embedding stay in fp32, in a bf16 model with FlashInfer installed."""
    config = VllmConfig(device_config=DeviceConfig(device="cpu"))
    config.compilation_config = CompilationConfig(custom_ops=["all" if eager else "none"])
    with (
        set_current_vllm_config(config),
        patch.object(deepseek_scaling_rope, "current_platform", H100),
        patch.object(deepseek_scaling_rope, "has_flashinfer", lambda: True),
    ):
        module = deepseek_scaling_rope.DeepseekScalingRotaryEmbedding(
            head, head, 64, 10000.0, False, 40.0, torch.bfloat16, mscale=1.0, mscale_all_dim=1.0
        )
    return {"fp32": torch.tensor(module.cos_sin_cache.dtype == torch.float32)}


def norm_in_c(eager: bool) -> dict[str, Tensor]:
    """Whether norms, with and without an addition, are the kernels in C; else they are compiled."""
    mode, backend = (CompilationMode.NONE, "eager") if eager else (CompilationMode.VLLM_COMPILE, "inductor")
    config = SimpleNamespace(compilation_config=SimpleNamespace(backend=backend, mode=mode))
    priority = CudaPlatformBase.get_default_ir_op_priority(config)
    first = (priority.rms_norm[0], priority.fused_add_rms_norm[0])
    assert {*first} <= {"vllm_c", "native"}
    return {"in_c": torch.tensor([name == "vllm_c" for name in first])}


def moe_tile(tokens: list[int], experts: int, width: int, hidden: int, invariant: bool) -> dict[str, Tensor]:
    """Rows of a tile, and splits of K, of bf16 experts without a tuned configuration."""
    with patch.object(fused_moe.envs, "VLLM_BATCH_INVARIANT", invariant, create=True):
        configs = [fused_moe.get_default_config(count, experts, width, hidden, 8, None) for count in tokens]
    rows, splits = ([config.get(name, 1) for config in configs] for name in ("BLOCK_SIZE_M", "SPLIT_K"))
    return {"rows": torch.tensor(rows), "splits": torch.tensor(splits)}


def fused_router(groups: list[int], top_k: list[int], biased: bool) -> dict[str, Tensor]:
    """Whether grouped_topk goes to its kernel in C, for all pairs of groups and experts per token."""
    called: list[bool] = []

    def kernel(**_: Any) -> tuple[Tensor, Tensor]:
        called.append(True)
        return torch.empty(0), torch.empty(0)

    is_fused = []
    with (
        patch.object(grouped_topk_router, "current_platform", H100),
        patch.object(grouped_topk_router, "fused_grouped_topk", kernel),
    ):
        for group in groups:
            for k in top_k:
                called.clear()
                x, bias = torch.zeros(1, 256), torch.zeros(256) if biased else None
                grouped_topk_router.grouped_topk(x, x, k, True, group, 1, "sigmoid", 1.0, bias)
                is_fused.append(bool(called))
    return {"fused": torch.tensor(is_fused)}


def stages(layers: int, counts: list[int], partition: str | None) -> dict[str, Tensor]:
    """By number of stages, how many layers each has; `partition` is VLLM_PP_LAYER_PARTITION."""
    with patch.object(distributed_utils.envs, "VLLM_PP_LAYER_PARTITION", partition, create=True):
        ends = {n: [distributed_utils.get_pp_indices(layers, rank, n) for rank in range(n)] for n in counts}
    return {str(n): torch.tensor([end - first for first, end in pairs]) for n, pairs in ends.items()}


if __name__ == "__main__":
    answer({f.__name__: f for f in (all_reduce, table_dtype, norm_in_c, moe_tile, fused_router, stages)})
