"""For kernels of flash-linear-attention: one of the tilings that they try, an H100, and exp and log by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import triton
import triton.language as tl

_autotune = triton.autotune


def widest(configs: list[Any], **_: Any) -> Any:
    """`triton.autotune` with the configuration that has the widest tiles alone."""
    chosen = max(configs, key=lambda config: (sum(config.kwargs.values()), config.num_warps == 4))
    return _autotune(configs=[chosen], key=[])


@contextmanager
def on_h100() -> Iterator[None]:
    """torch says that there is one, for the imports inside."""
    with (
        patch("torch.cuda.get_device_name", lambda *_: "NVIDIA H100 80GB HBM3"),
        patch("torch.cuda.get_device_capability", lambda *_: (9, 0)),
    ):
        yield


# The engines' files have other names of Triton's functions, which the interpreter does not know as such.
@triton.jit
def exp(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """tl.exp."""
    return tl.exp(x)


@triton.jit
def log(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """tl.log."""
    return tl.log(x)


@triton.jit
def safe_exp(x):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """SGLang's, of numbers up to 0; 0 for others."""
    return tl.exp(tl.where(x <= 0, x, float("-inf")))
