"""Whether weights fit into memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moeparity.inputs.weights import store
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.checkpoint_factory import FILE

CPU = torch.device("cpu")


def test_the_size_is_that_of_every_tensor_in_every_dtype(deepseek_v3: Path) -> None:
    graph = expand(Config(deepseek_v3 / "config.json"))
    stored = load_file(deepseek_v3 / FILE)
    # Latents are expanded by one node and absorbed by another.
    tensors = [*stored.values(), *(tensor for name, tensor in stored.items() if "kv_b_proj" in name)]
    elements = {dtype: sum(t.numel() for t in tensors if t.dtype == dtype) for dtype in (torch.bfloat16, torch.float32)}
    fp32_bytes = 4 * elements[torch.float32]
    assert fp32_bytes > 0
    assert store.resident_bytes(graph, ["bf16"]) == 2 * elements[torch.bfloat16] + fp32_bytes
    assert store.resident_bytes(graph, ["bf16", "fp32"]) == 6 * elements[torch.bfloat16] + 2 * fp32_bytes


@pytest.mark.parametrize(("free", "expected"), [(2.01, True), (1.99, False), (None, False)])
def test_half_of_the_free_memory_is_used(
    qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch, free: float | None, expected: bool
) -> None:
    graph = expand(Config(qwen3_moe / "config.json"))
    size = store.resident_bytes(graph, ["bf16"])
    monkeypatch.setattr(store, "available_bytes", lambda _: None if free is None else int(free * size))
    assert store.fits(graph, ["bf16"], CPU) is expected
    assert store.fits(graph, ["bf16"], CPU, math.inf) is expected
    assert not store.fits(graph, ["bf16"], CPU, 1.99 * size)
