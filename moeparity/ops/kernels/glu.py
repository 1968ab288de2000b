"""Gate and up combined: SwiGLU, gpt-oss's clamped form, and the squared ReLU of experts without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.numerics.cuda import fast_product
from moeparity.numerics.dtypes import TowardZero
from moeparity.numerics.joined_steps import Apply, call
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.rounding import product, rounded, working
from moeparity.ops.kernels.exponentials import CUDA_FAST, sigmoid, silu

Settings = Mapping[str, Any]


def clamped(gate: torch.Tensor, up: torch.Tensor, p: Settings, at: Settings, apply: Apply) -> torch.Tensor:
    """(up + 1) * gate * sigmoid(alpha * gate), every step rounded; transformers 5.23.0, GptOssExperts._apply_gate."""
    gate, up = gate.clamp(max=p["limit"]), up.clamp(-p["limit"], p["limit"])
    gain = rounded(_computed_for(at["gain"], gate) * p["alpha"], at["gain"])
    share = rounded(sigmoid(_computed_for(at["sigmoid"], gain), at.get("logistic", NATIVE), apply), at["sigmoid"])
    shifted = rounded(_computed_for(at["shifted"], up) + 1, at["shifted"])
    return product(shifted, product(gate, share, at["activation"]), at["product"])


def _computed_for(output: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """x in the dtype in which a function of it is computed; its own dtype if `output` is the same."""
    return x if x.dtype == output else x.to(working(x.dtype, output))


def relu2(x: torch.Tensor, output: torch.dtype | TowardZero) -> torch.Tensor:
    """The square of what of x is above 0, rounded to `output`."""
    positive = torch.relu(x)
    return product(positive, positive, output)


def swiglu(
    gate: torch.Tensor,
    up: torch.Tensor,
    *,
    activation: torch.dtype,
    output: torch.dtype,
    logistic: str,
    apply: Apply = call,
) -> torch.Tensor:
    """silu(gate) in the form `logistic`, rounded to `activation`, times up, rounded to `output`."""
    activated = rounded(silu(_computed_for(activation, gate), logistic, apply), activation)
    if logistic == CUDA_FAST and activated.dtype == torch.float32:
        return rounded(fast_product(activated, up.float()), output)
    # In memory as up: what Jamba's scan gives has the tokens of a channel side by side, and torch's fp32 GEMM takes a
    # single sequence so.
    return product(up, activated, output)
