"""Triton kernels as Triton compiles them for sm_90, run through their PTX: no GPU, no driver.

Imported ahead of an engine's kernels, in a process of its own. A launch is Triton's own up to the binary: it binds the
arguments, specialises them (a number that 16 divides, a number that is 1, an aligned address), compiles with the warps
and stages that the engine's function asks for; then `moeparity.ptx` runs what ptxas would be given.
"""

from __future__ import annotations

import os

from tests.engines.live import FOLDER

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TRITON_CACHE_DIR": str(FOLDER / "triton-cache")}

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from moeparity import ptx

ASSUMED: set[str] = set()
"""Approximate instructions that were met, of which it is not known what a GPU computes."""
CONTRACTIBLE: dict[str, int] = {}
"""How many products and sums ptxas may still make one fma, of the kernels that were met."""

target = GPUTarget("cuda", 90, 32)
driver.set_active(
    SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("cpu"),
        launcher_cls=None,
        utils=None,
    )
)
_compiled = JITFunction.run


def _launched(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    kernel = _compiled(self, *args, grid=None, warmup=True, **kwargs)
    binder = self.device_caches[0][4]
    bound, _, _ = binder(*args, **kwargs)
    extents = grid(bound) if callable(grid) else grid
    launched(kernel, extents, [bound[name] for name, kind in kernel.src.signature.items() if kind != "constexpr"])


def launched(kernel: Any, extents: Any, arguments: Sequence[Any]) -> None:
    """A compiled kernel with what its signature takes, run through its PTX over so many blocks."""
    values = [_argument(value) for value in arguments]
    module = _loaded(kernel.asm["ptx"])
    name = kernel.metadata.name
    scratch = len(module.parameters(name)) - len(values)
    run = module.launch(name, extents, 32 * kernel.metadata.num_warps, [*values, *[0] * scratch],
                        shared=kernel.metadata.shared)  # fmt: skip
    ASSUMED.update(run.assumed)
    CONTRACTIBLE[name] = len(module.contractible(name))


def _argument(value: Any) -> Any:
    """A view of what lies behind a tensor's first element, whatever its strides."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return int(value) if isinstance(value, bool) else value
    length = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
    return value.as_strided((length,), (1,))


@cache
def _loaded(text: str) -> ptx.Module:
    return ptx.load(text)


JITFunction.run = _launched


@triton.jit  # type: ignore[untyped-decorator]
def _log_kernel(x, y, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.log(tl.load(x + at, mask=at < count, other=1.0)), mask=at < count)


def logarithm(x: torch.Tensor) -> torch.Tensor:
    """`tl.log` of fp32 numbers, as Triton compiles it."""
    y = torch.empty_like(x)
    _log_kernel[(triton.cdiv(x.numel(), 128),)](x, y, x.numel(), BLOCK=128)
    return y
