"""vLLM 0.33.0's own models, built here without its kernels: their modules' names, and a forward that is captured.

Run by tests/engines/live.py's `ask` in a process of its own. What takes a GPU or vLLM's compiled kernels is replaced by
plain torch: its custom ops run their own `forward_native`, attention is torch's sdpa over one sequence, and the experts
are a loop over them.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from moeparity.evidence.capture.context import capture
from tests.engines.live import answer
from tests.engines.live_vllm_hidden_states import write


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Packages that models import and do not call here."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002  of the protocol
        is_absent = name.partition(".")[0] == "einops"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock(name=name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        """Nothing to run."""


sys.meta_path.append(_Absent())
os.environ |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "CRITICAL"}


@contextmanager
def _of(folder: str) -> Iterator[tuple[Any, Any]]:
    """The class of a checkpoint's model, and vLLM's configuration of it, which holds in the context."""
    import vllm.platforms
    from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.model_executor.models import registry
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    registry._run_in_subprocess = lambda function: function()
    settings = {"skip_tokenizer_init": True, "dtype": "bfloat16", "enforce_eager": True}
    model = ModelConfig(model=folder, tokenizer=folder, **settings)
    config = VllmConfig(model_config=model)
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            place = f"file://{Path(folder).parent / 'rendezvous'}-{os.getpid()}"
            parallel_state.init_distributed_environment(1, 0, place, 0, "gloo")
            parallel_state.ensure_model_parallel_initialized(1, 1)
        kind, _ = model.registry.resolve_model_cls(model.architectures, model)
        yield kind, config


def names(folder: str) -> dict[str, Tensor]:
    """The paths of all modules of a checkpoint's model, as keys."""
    with _of(folder) as (kind, config), torch.device("meta"):
        return {name or "model itself": torch.zeros(0) for name, _ in kind(vllm_config=config).named_modules()}


def forward(folder: str, trace: str, ids: Tensor) -> dict[str, Tensor]:
    """A forward over one sequence of ids [T], captured with its modules."""
    with _of(folder) as (kind, config):
        _on_cpu()
        torch.set_default_dtype(torch.bfloat16)
        model = kind(vllm_config=config)
        torch.set_default_dtype(torch.float32)
        model.load_weights(iter(load_file(Path(folder) / "model.safetensors").items()))
        for module in model.modules():
            module.cpu_linear = F.linear
        _chosen[:] = [config.model_config.hf_config.num_experts_per_tok]
        with capture(trace, level="module", save="*"):
            hidden = model(ids, torch.arange(len(ids)))
            logits = model.logits_processor(model.lm_head, hidden)
    return {"logits": logits}


def loaded(folder: str, rank: int, ranks: int, experts: bool) -> dict[str, Tensor]:
    """The parameters that one of so many tensor-parallel ranks has of a checkpoint, as its own loaders cut it; whole
    experts where they lie on the ranks (`experts`). No rank talks to another while it loads.
    """
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as unquantized

    # On a CPU it has no kernel for experts that lie on ranks; what a rank loads does not go by the kernel.
    unquantized.select_unquantized_moe_backend = lambda moe_config: (unquantized.UnquantizedMoeBackend.TRITON, None)  # noqa: ARG005
    with _of(folder) as (kind, config):
        groups = (parallel_state._TP, parallel_state._EP)
        config.parallel_config.tensor_parallel_size = ranks
        config.parallel_config.enable_expert_parallel = experts
        for group in groups:
            group.rank_in_group, group.world_size = rank, ranks
        try:
            torch.set_default_dtype(torch.bfloat16)
            model = kind(vllm_config=config)
            model.load_weights(iter(load_file(Path(folder) / "model.safetensors").items()))
        finally:
            torch.set_default_dtype(torch.float32)
            for group in groups:
                group.rank_in_group, group.world_size = 0, 1
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


_chosen: list[int] = []


def _on_cpu() -> None:
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    CustomOp.dispatch_forward = lambda self, **_: self.forward_native
    Attention.forward = _attention
    MoERunner.forward = _experts


def _attention(self: Any, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
    q, k, v = (x.unflatten(-1, (n, -1)).transpose(0, 1)[None] for x, n in zip((query, key, value), heads, strict=True))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


def _experts(self: Any, hidden_states: Tensor, router_logits: Tensor, **_: Any) -> Tensor:
    # As moe_runner.py: a runner that has the router's gate is given hidden states in place of logits.
    router_logits = router_logits if self.gate is None else self.gate(hidden_states)[0]
    gates, downs = self.routed_experts.w13_weight, self.routed_experts.w2_weight
    weights, chosen = router_logits.float().softmax(-1).topk(_chosen[0])
    weights = (weights / weights.sum(-1, keepdim=True)).to(hidden_states.dtype)
    out = torch.zeros_like(hidden_states)
    for expert, (gate_up, down) in enumerate(zip(gates, downs, strict=True)):
        token, slot = (chosen == expert).nonzero(as_tuple=True)
        gate, up = F.linear(hidden_states[token], gate_up).chunk(2, -1)
        out.index_add_(0, token, F.linear(F.silu(gate) * up, down) * weights[token, slot].unsqueeze(-1))
    return out


if __name__ == "__main__":
    answer({"names": names, "forward": forward, "loaded": loaded, "write": write})
