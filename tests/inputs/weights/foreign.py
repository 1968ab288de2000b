"""What other programs make of quantised weights: compressed-tensors, AutoAWQ and GPTQModel, each by its own code.

The first is among the needs of the tests, the others are in a folder of tests/engines/live.py. Of AutoAWQ one file is
read. GPTQModel runs in a process of its own, since it changes transformers when it is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoint_factory import FILE
from tests.engines import live

Tensors = dict[str, Tensor]
QUANTISERS = "quantisers"


def parts(folder: Path, prefix: str) -> Tensors:
    """The tensors behind a name, by what follows it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in load_file(folder / FILE).items()
        if name.startswith(prefix)
    }


def by_compressed_tensors(folder: Path, module: str, group: str = "group_0") -> Tensor:
    """The weight of a module, as the decompressor of its format gives it."""
    pytest.importorskip("compressed_tensors")
    compressor: Any = importlib.import_module("compressed_tensors.compressors").BaseCompressor
    quantisation: Any = importlib.import_module("compressed_tensors.quantization").QuantizationConfig
    stated = json.loads((folder / "config.json").read_text("utf-8"))["quantization_config"]
    config = quantisation.model_validate(stated)
    scheme = config.config_groups[group]
    decompressor = compressor.get_value_from_registry(scheme.format or config.format)
    weight: Tensor = decompressor.decompress(parts(folder, f"{module}."), scheme)["weight"]
    return weight


def by_autoawq(folder: Path, module: str, group: int) -> Tensor:
    """The weight of a module [outputs, inputs]."""
    live.need((QUANTISERS,))
    path = live.FOLDER / QUANTISERS / "awq" / "utils" / "packing_utils.py"
    file = importlib.util.spec_from_file_location("awq_packing_utils", path)
    assert file is not None
    assert file.loader is not None
    module_of_file: Any = importlib.util.module_from_spec(file)
    file.loader.exec_module(module_of_file)
    stored = parts(folder, f"{module}.")
    weight: Tensor = module_of_file.dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"], 4, group)
    return weight.mT.contiguous()


_GPTQ = """
import sys, torch
from safetensors.torch import load_file, save_file
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
stored, bits, group = load_file(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4])
inputs, outputs = len(stored["g_idx"]), stored["scales"].shape[1]
linear = TorchLinear(
    bits=bits, group_size=group, sym=False, desc_act=True, in_features=inputs, out_features=outputs, bias=False,
    pack_dtype=torch.int32, register_buffers=True,
)
for name, tensor in stored.items():
    setattr(linear, name, tensor)
convert_gptq_v1_to_v2_format_module(linear, bits=bits, pack_dtype=torch.int32)
linear.optimized = True
linear.post_init()
save_file({"weight": linear.dequantize_weight().mT.contiguous()}, sys.argv[2])
"""


def by_gptqmodel(stored: Tensors, bits: int, group: int, folder: Path) -> Tensor:
    """The weight [outputs, inputs] that `qweight`, `qzeros`, `scales` and `g_idx` stand for."""
    stored_file, written, program = (folder / name for name in ("stored.safetensors", "written.safetensors", "gptq.py"))
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, stored_file)
    program.write_text(_GPTQ)
    live.run_beside((QUANTISERS,), program, [str(stored_file), str(written), str(bits), str(group)], {})
    return load_file(written)["weight"]


def same(ours: Tensor, theirs: Tensor) -> bool:
    """Whether dtype and bits are the same."""
    return ours.dtype == theirs.dtype and torch.equal(ours.view(torch.uint8), theirs.contiguous().view(torch.uint8))
