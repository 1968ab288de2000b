"""Whether weights fit into memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moeparity.graph.config import Config
from moeparity.graph.expand import expand
from moeparity.weights import capacity
from tests.checkpoint_factory import FILE

CPU = torch.device("cpu")


def test_the_size_is_that_of_every_tensor_in_every_dtype(deepseek_v3: Path) -> None:
    graph = expand(Config(deepseek_v3 / "config.json"))
    tensors = load_file(deepseek_v3 / FILE).values()
    elements = {dtype: sum(t.numel() for t in tensors if t.dtype == dtype) for dtype in (torch.bfloat16, torch.float32)}
    kept = 4 * elements[torch.float32]
    assert kept > 0
    assert capacity.weight_bytes(graph, ["bf16"]) == 2 * elements[torch.bfloat16] + kept
    assert capacity.weight_bytes(graph, ["bf16", "fp32"]) == 6 * elements[torch.bfloat16] + 2 * kept


@pytest.mark.parametrize(("free", "expected"), [(2.01, True), (1.99, False), (None, False)])
def test_half_of_the_free_memory_is_used(
    qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch, free: float | None, expected: bool
) -> None:
    graph = expand(Config(qwen3_moe / "config.json"))
    size = capacity.weight_bytes(graph, ["bf16"])
    monkeypatch.setattr(capacity, "free_bytes", lambda _: None if free is None else int(free * size))
    assert capacity.fits(graph, ["bf16"], CPU) is expected


def test_free_memory_of_the_host_is_read_where_linux_tells_it() -> None:
    free = capacity.free_bytes(CPU)
    assert free is None if not Path("/proc/meminfo").exists() else free is not None and free > 2**20
