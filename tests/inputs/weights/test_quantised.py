"""gpt-oss as it lies on the hub, its experts in MXFP4: refused, and read once what the message says has been done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from moeparity.engine.forward import forward
from moeparity.errors import CheckpointError
from moeparity.inputs.model import open_model
from tests.checkpoint_factory import FILE, make_random
from tests.hf.compare import assert_is, tokens
from tests.hf.reference import reference
from tests.small_models import SMALL

# Of a shared exponent for each 32 values.
RUN = 32


def in_mxfp4(source: Path, folder: Path) -> Path:
    """Random four-bit experts in the hub's names and shapes, outputs before inputs; all else as in `source`."""
    generator, tensors = torch.Generator().manual_seed(0), {}
    for name, tensor in load_file(source / FILE).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        scales = (experts, outputs, inputs // RUN)
        tensors[f"{name}_blocks"] = torch.randint(256, (*scales, RUN // 2), generator=generator).byte()
        tensors[f"{name}_scales"] = torch.randint(120, 125, scales, generator=generator).byte()
    save_file(tensors, folder / FILE, metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text("utf-8"))
    unconverted = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"modules_to_not_convert": unconverted, "quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def test_the_message_helps(tmp_path: Path) -> None:
    source, hub, copy = (tmp_path / name for name in ("source", "hub", "copy"))
    hub.mkdir()
    make_random({**SMALL["gpt_oss"], "intermediate_size": 64, "num_hidden_layers": 1}, source)
    with pytest.raises(CheckpointError) as caught:
        open_model(in_mxfp4(source, hub), device="cpu")
    for step in ("Mxfp4Config(dequantize=True)", "save_pretrained(..., save_original_format=False)"):
        assert step in str(caught.value)
    model = AutoModelForCausalLM.from_pretrained(
        hub, dtype=torch.bfloat16, quantization_config=Mxfp4Config(dequantize=True)
    )
    model.save_pretrained(copy, save_original_format=False)
    ids = tokens(512, (2, 9))
    readable = open_model(copy, device="cpu")
    assert_is(readable, forward(readable, ids), reference(copy, "hf-eager", torch.bfloat16, ids))
