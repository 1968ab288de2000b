"""A LoRA adapter beside a weight: merged into it, or its own product; as peft 0.21.2 computes both
(tuners/lora/layer.py: `Linear`, `ParamWrapper`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from moeparity.numerics.addresses import placed
from moeparity.numerics.rounding import add, linear, rounded, working
from moeparity.ops.adapter import FOLDED, IN_B, UNMERGED, scaling

Weights = Mapping[str, torch.Tensor]
Settings = Mapping[str, Any]


class Adapter(NamedTuple):
    """A [r, K] and B [N, r] of one weight, or [E, r, K] and [E, N, r] of a stack, and what their product is multiplied
    by.
    """

    a: torch.Tensor
    b: torch.Tensor
    scaling: float


def adapter_of(w: Weights, p: Settings, weight: str) -> Adapter | None:
    """The adapter beside a weight, if there is one: `<weight>_a` and `<weight>_b`."""
    a, b = w.get(f"{weight}_a"), w.get(f"{weight}_b")
    if p.get("adapter") is None or a is None or b is None:
        return None
    # peft copies what it loads into memory of its own, whose address is a multiple of 64.
    return Adapter(a.clone(), b.clone(), scaling(p["adapter"], a.shape[0]))


def adapter_of_stack(w: Weights, p: Settings, weight: str) -> Adapter | None:
    """The same of experts, whose A [experts * r, K] and B [N, r * experts] lie as peft's ParamWrapper has them."""
    adapter = adapter_of(w, p, weight)
    if adapter is None:
        return None
    experts = w[weight].shape[0]
    a = adapter.a.reshape(experts, -1, adapter.a.shape[-1])
    b = adapter.b.reshape(adapter.b.shape[0], -1, experts).permute(2, 0, 1)
    return Adapter(a, b, scaling(p["adapter"], a.shape[1]))


def in_stacks(w: Weights, p: Settings, at: Settings) -> Weights:
    """The weights of experts with their adapters in them; beside them, as stacks, those that are not merged."""
    adapted = {name: stack for name, stack in w.items() if not name.endswith(("_a", "_b"))}
    for name in ("gate_up", "down"):
        lora = adapter_of_stack(w, p, name)
        if lora is not None:
            adapted[name] = in_weight(w[name], lora, p, at)
        if lora is not None and at["adapter"] == UNMERGED:
            adapted |= {f"{name}_a": lora.a, f"{name}_b": lora.b}
    return adapted


def of_expert(w: Mapping[str, Sequence[torch.Tensor]], name: str, p: Settings) -> Adapter | None:
    """The adapter of one expert that is not merged into its weight."""
    if f"{name}_a" not in w:
        return None
    a, b = w[f"{name}_a"][0], w[f"{name}_b"][0]
    return Adapter(a, b, scaling(p["adapter"], a.shape[0]))


def in_weight(weight: torch.Tensor, adapter: Adapter, p: Settings, at: Settings) -> torch.Tensor:
    """The weight that the node's GEMM multiplies by: W, or W with the adapter in it, as often as that is said."""
    if p["adapter"]["in_weight"]:
        weight = merged(weight, adapter, at)
    return weight if at["adapter"] == UNMERGED else merged(weight, adapter, at)


def merged(weight: torch.Tensor, adapter: Adapter, at: Settings) -> torch.Tensor:
    """W + scaling * B @ A, rounded to `adapter_sum`, at the address of W modulo 64 where peft writes it there."""
    a, b = (rounded(part, at["adapter_inputs"]) for part in (adapter.a, adapter.b))
    if at["adapter"] == FOLDED:
        step = weight.dtype if a.dtype == weight.dtype == at["adapter_sum"] else working(a.dtype, at["adapter_sum"])
        whole = torch.baddbmm(weight.to(step), b.to(step), a.to(step), alpha=adapter.scaling)
        return rounded(whole, at["adapter_sum"])
    product = rounded(_outer(b, a, at["adapter_product"]), at["adapter_product"])
    delta = _scaled(product, adapter.scaling, at["adapter_scaled"])
    return placed(add(weight, delta, at["adapter_sum"]), weight)


def _outer(b: torch.Tensor, a: torch.Tensor, output: torch.dtype) -> torch.Tensor:
    step = a.dtype if a.dtype == output else working(a.dtype, output)
    a, b = a.to(step), b.to(step)
    return b @ a if a.dim() == 2 else torch.einsum("o r e, e r i -> e o i", b.permute(1, 2, 0), a)


def _scaled(x: torch.Tensor, factor: float, output: torch.dtype) -> torch.Tensor:
    return rounded(x * factor if x.dtype == output else x.to(working(x.dtype, output)) * factor, output)


def beside(x: torch.Tensor, adapter: Adapter, at: Settings) -> torch.Tensor:
    """scaling * (x @ A.T) @ B.T for x [.., K] -> [.., N]."""
    inputs, factor, b = at["adapter_inputs"], adapter.scaling, adapter.b
    inner = linear(x, adapter.a, None, inputs=inputs, output=at["adapter_inner"])
    if at["adapter_scaling"] == IN_B:
        b, factor = _scaled(rounded(b, inputs), factor, at["adapter_scaled"]), 1.0
    product = linear(inner, b, None, inputs=inputs, output=at["adapter_product"])
    return product if factor == 1 else _scaled(product, factor, at["adapter_scaled"])
