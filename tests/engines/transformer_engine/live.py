"""TransformerEngine's torch paths on CPU, from its repository, run by test_functions.py.

Its package loads a library on import, so that files are loaded by themselves: the unfused rotary embedding of
transformer_engine/pytorch, and the torch code of tests/pytorch to which its CUDA kernel
of routers is held.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import torch
from torch import Tensor

from tests.engines.absent import left_out
from tests.engines.live import FOLDER, answer

# The package as a whole is what is left out.
SOURCE = FOLDER / "transformer-engine-source"
sys.path.remove(str(SOURCE))


def file(path: str) -> Any:
    """A file of the repository as a module."""
    spec = spec_from_file_location(path.rpartition("/")[2].removesuffix(".py"), SOURCE / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    with left_out("transformer_engine", "transformer_engine_torch"):
        spec.loader.exec_module(module)
    return module


ROPE = file("transformer_engine/pytorch/attention/rope.py")
ROUTER = file("tests/pytorch/test_fused_router.py")


def rotary(x: Tensor, k: Tensor, rope: dict[str, Any], length: int, interleaved: bool, dim: int) -> dict[str, Tensor]:
    """x [T, H, D], k [T, G, D], of which `dim` columns are turned."""
    inverse = 1.0 / rope["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    freqs = torch.outer(torch.arange(len(x), dtype=torch.float32), inverse)
    freqs = torch.stack((freqs, freqs), -1).flatten(1) if interleaved else torch.cat((freqs, freqs), -1)
    freqs = freqs[:, None, None, :]
    q, turned = (ROPE.apply_rotary_pos_emb(y.unsqueeze(1), freqs, interleaved=interleaved).squeeze(1) for y in (x, k))
    return {"q": q, "k": turned}


def router(x: Tensor, bias: Tensor | None, p: dict[str, Any], timing: str) -> dict[str, Tensor]:
    """x: logits [T, E]."""
    grouped = {"num_groups": p["groups"], "group_topk": p["top_groups"]} if p["groups"] > 1 else {}
    scale = p["scale"] if p["scale"] != 1 else None
    how = {"use_pre_softmax": timing == "before_topk", "scaling_factor": scale, "score_function": p["score"]}
    weights, chosen = ROUTER.topk_score_function_pytorch(x, p["top_k"], expert_bias=bias, **how, **grouped)
    return {"map": chosen, "weights": weights}


if __name__ == "__main__":
    answer({f.__name__: f for f in (rotary, router)})
