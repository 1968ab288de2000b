"""Whether weights fit into memory."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moeparity.inputs.model import open_model
from moeparity.inputs.weights import store
from moeparity.inputs.weights.formats import FORMATS
from moeparity.inputs.weights.quantise import quantise
from moeparity.numerics.bits import same_bits
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


def test_a_quantised_weight_is_multiplied_out_once_for_all_dtypes(qwen3_moe: Path, tmp_path: Path) -> None:
    """A pass reads each byte once, however many dtypes it makes, and each dtype is what it is by itself."""
    quantise(qwen3_moe, FORMATS["fp8-blocks"], tmp_path / "fp8", 32)
    model = open_model(tmp_path / "fp8", device="cpu", values=False)
    segments = {segment.name: weights for segment, weights in model.weights.segments(("bf16", "fp32"))}
    every = {name for node in model.graph.nodes for ref in node.weights.values() for name in ref.names}
    assert model.weights.checkpoint.handed_out == sum(model.weights.checkpoint.entries[name].bytes for name in every)
    for segment in model.graph.segments:
        for node in segment.nodes:
            for dtype in ("bf16", "fp32"):
                alone, loaded = model.weights.node(node, dtype), segments[segment.name]
                assert not [port for port in loaded[node.name, dtype] if port.endswith("_scales")]
                of_pass = loaded.of(node, dtype, ("scales",))
                assert alone.keys() == of_pass.keys()
                for port, weight in alone.items():
                    assert same_bits(weight.contiguous(), of_pass[port].contiguous())
