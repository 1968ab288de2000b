"""TransformerEngine 2.20.2's Triton permutation, run without a GPU (`backend`), launched by its own functions.

Given in place of what is not here: `device="cuda"` is the CPU; of the seven block sizes that its autotuner would time,
each of which computes the same, 256 is taken.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from tests.engines.triton_kernels import backend  # isort: skip
import torch
import triton
from torch import Tensor

from tests.engines.triton_kernels.alone import engine

FILES = ("transformer_engine.common.triton.permutation", "transformer_engine.pytorch.triton.permutation")


class _Sized:
    """A kernel that is launched with a block size."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        launch = self.kernel[grid]
        return lambda *args, **kwargs: launch(*args, **kwargs, BLOCK_SIZE=256)


def _on_cpu(make: Any) -> Any:
    def made_on_cpu(*args: Any, device: str, **kwargs: Any) -> Any:
        assert device == "cuda"
        return make(*args, **kwargs)

    return made_on_cpu


with engine(FILES, values={}, absent=()), patch.object(triton, "autotune", lambda **_: _Sized):
    from transformer_engine.pytorch.triton import permutation

permutation.torch = SimpleNamespace(
    **{name: getattr(torch, name) for name in ("Tensor", "int32", "float32", "dtype")},
    empty=_on_cpu(torch.empty),
    zeros=_on_cpu(torch.zeros),
)
Found = dict[str, Tensor]


def unpermute(x: Tensor, chosen: Tensor, rows: Tensor) -> Found:
    """x [N, H] permuted by a map [N, E]; and what experts make of it, `rows`, brought back and added up."""
    (tokens, hidden), experts = x.shape, chosen.shape[1]
    places = permutation.make_row_id_map(chosen, tokens, experts)
    permuted, _, _ = permutation.permute_with_mask_map(
        x, places, None, None, None, tokens, experts, len(rows), hidden, 0
    )
    output, _ = permutation.unpermute_with_mask_map(rows, places, None, None, None, tokens, experts, hidden)
    return {"permuted": permuted, "output": output}


if __name__ == "__main__":
    backend.answer({"unpermute": unpermute})
