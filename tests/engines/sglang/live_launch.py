"""SGLang's launch rules: its own Python decides, run by test_launch_rules.py.

The platform answers as H100s (SM90); arguments are those that a rule reads.
"""

from __future__ import annotations

import os

os.environ |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

# It asks for torchvision, which below seems to be there.
import transformers.models.auto.processing_auto  # noqa: F401
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import answer
from tests.engines.sglang.left_out import LEFT_OUT

with left_out(*LEFT_OUT.split()):
    from sglang.srt.arg_groups import model_override_base, overrides
    from sglang.srt.distributed import utils as distributed_utils
    from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as config
    from sglang.srt.models.deepseek_common import attention_backend_handler as handler

H100 = SimpleNamespace(is_sm90=True, is_sm100=False, is_blackwell=False, is_hip=False)


def fused_all_reduce(
    architectures: list[str], ranks: int, nodes: int, attention_groups: int, backend: str
) -> dict[str, Tensor]:
    """Whether the all-reduce is fused with the norm, for each architecture."""

    def decided(name: str) -> bool:
        hf = SimpleNamespace(architectures=[name], model_type="", hidden_size=0)
        view = SimpleNamespace(
            flashinfer_allreduce_fusion_backend=None, tp_size=ranks, nnodes=nodes, moe_a2a_backend=backend,
            attn_cp_size=1, encoder_only=False, enable_pdmux=False, disable_custom_all_reduce=False,
        )  # fmt: skip
        of_model = SimpleNamespace(hf_config=hf, dtype=torch.bfloat16)
        with (
            patch.object(overrides, "model_config_of", lambda _: of_model),
            patch.object(overrides, "attn_dp_enabled_of", lambda _: attention_groups > 1),
            patch.object(overrides, "get_platform", lambda: H100),
        ):
            return bool(overrides._flashinfer_allreduce_fusion_auto_enable(view))

    return {"fused": torch.tensor([decided(name) for name in architectures])}


def moe_tile(tokens: list[int], experts: int, width: int, hidden: int, deterministic: bool) -> dict[str, Tensor]:
    """Rows of a tile of bf16 experts without a tuned configuration."""
    execution = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=deterministic))
    with patch.object(config, "get_exec", lambda: execution):
        configs = [config.get_default_config(n, experts, width, hidden, 8, None, False) for n in tokens]
    return {"rows": torch.tensor([of["BLOCK_SIZE_M"] for of in configs])}


ATTENTION = ("fa3", "flashinfer", "triton", "trtllm_mha", "fa4")


def attention_backend(latent: bool, sinks: bool, speculates: list[int]) -> dict[str, Tensor]:
    """Which of ATTENTION a model takes by default, for each number of drafts of a step (0: none are made)."""
    platform = SimpleNamespace(
        is_hopper_with_cuda_12_3=True, is_sm100=False, is_hip=False, has_flashinfer=True, is_sm120=False
    )
    model = SimpleNamespace(
        hf_config=SimpleNamespace(architectures=["Any"]), has_attention_sinks=sinks, has_asymmetric_kv=False
    )
    backends = []
    for drafts in speculates:
        arguments = SimpleNamespace(
            speculative_algorithm="EAGLE" if drafts else None,
            speculative_eagle_topk=drafts or None,
            page_size=None,
            tp_size=1,
        )
        with (
            patch.object(model_override_base, "get_platform", lambda: platform),
            patch.object(model_override_base, "resolving_view", lambda view: view),
            patch.object(model_override_base, "resolved_view", lambda view: view),
        ):
            backends.append(model_override_base.get_default_attn_backend(arguments, latent, model))
    return {"backend": torch.tensor([ATTENTION.index(name) for name in backends])}


def latent_attention(modes: list[str], prefixes: list[int], deterministic: bool, captured: bool) -> dict[str, Tensor]:
    """Whether FlashAttention 3 is given absorbed projections, for each kind of step and cached tokens of its prefix."""
    attention = SimpleNamespace(
        chunked_prefix_cache_threshold=8192, disable_chunked_prefix_cache=False, qk_rope_head_dim=64
    )
    execution = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=deterministic))

    def absorbed(mode: str, prefix: int) -> bool:
        extends: Any = lambda: mode == "extend"
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_extend_without_speculative=extends, is_decode=lambda: mode == "decode"),
            extend_prefix_lens_cpu=[prefix],
        )
        with (
            patch.object(handler, "get_exec", lambda: execution),
            patch.object(handler, "is_in_tc_piecewise_cuda_graph", lambda: captured),
            patch.object(handler, "is_in_breakable_cuda_graph", lambda: False),
            patch.object(handler, "is_cp_active", lambda _: False),
            patch.object(handler, "_support_mha_one_shot", lambda *_: False),
            patch.object(handler, "use_intel_amx_backend", lambda _: False),
        ):
            return handler.handle_attention_fa3(attention, batch) == handler.AttnForwardMethod.MLA

    return {"absorbed": torch.tensor([absorbed(mode, prefix) for mode, prefix in zip(modes, prefixes, strict=True)])}


def stages(layers: int, counts: list[int], partition: str | None) -> dict[str, Tensor]:
    """By number of stages, how many layers each has; `partition` is SGLANG_PP_LAYER_PARTITION."""
    with patch.dict(os.environ, {} if partition is None else {"SGLANG_PP_LAYER_PARTITION": partition}):
        ends = {n: [distributed_utils.get_pp_indices(layers, rank, n) for rank in range(n)] for n in counts}
    return {str(n): torch.tensor([end - first for first, end in pairs]) for n, pairs in ends.items()}


if __name__ == "__main__":
    answer({f.__name__: f for f in (fused_all_reduce, moe_tile, attention_backend, latent_attention, stages)})
