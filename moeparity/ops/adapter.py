"""What an op with a LoRA adapter beside its weight leaves open; and the adapter of a node, as its parameter has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from moeparity.numerics.collectives.declaration import Evidence
from moeparity.ops.attribute import Attribute, Value, site
from moeparity.ops.declaration import Parameter, WeightPort

UNMERGED, MERGED, FOLDED = "unmerged", "merged", "folded"
"""Where an adapter meets its weight: in the results, in a weight made beforehand, or in one fused call."""

LAST, IN_B = "last", "in_b"
"""Where the scaling is multiplied in."""

PARAMETER: Final = Parameter(
    name="adapter",
    type=dict,
    required=False,
    says="the LoRA adapter's alpha; rslora: whether alpha is divided by sqrt(rank) and not by rank; times: how often "
    "the delta counts; in_weight: whether the weight already holds it. Set by a recipe's `adapter:` alone",
)

_OPTIMIZED: Final = "vLLM 0.33.0, lora/lora_weights.py, LoRALayerWeights.optimize"
_NATIVE: Final = "in the order of torch's own kernel, whatever `order` says"


def _beside(attribute: Attribute) -> Attribute:
    return replace(attribute, parameter=PARAMETER.name)


FORMS: Final = tuple(
    map(
        _beside,
        (
            Attribute(
                name="adapter",
                kind="form",
                default=UNMERGED,
                values=(UNMERGED, MERGED),
                says="how a LoRA adapter takes effect: the weight's own result, plus scaling * (x @ A.T) @ B.T "
                f"(its sums are added {_NATIVE}); or one GEMM with W + scaling * B @ A (peft's merge_and_unload)",
            ),
            Attribute(
                name="adapter_scaling",
                kind="form",
                default=LAST,
                values=(LAST, IN_B),
                when={"adapter": (UNMERGED,)},
                sources={IN_B: Evidence("read", _OPTIMIZED)},
                says=f"the scaling is multiplied into the product with B; or into B beforehand ({_OPTIMIZED})",
            ),
            site("adapter_inputs", "A and B, and the x that they meet, are rounded to this dtype"),
            site("adapter_inner", "x @ A.T is rounded to this dtype", when={"adapter": (UNMERGED,)}),
            site(
                "adapter_product",
                "the product with B, or B @ A, is rounded to this dtype",
                when={"adapter": (UNMERGED, MERGED)},
            ),
            site(
                "adapter_scaled",
                "this product times the scaling, or B times the scaling, is rounded to this dtype",
                when={"adapter": (UNMERGED, MERGED)},
            ),
            site("adapter_sum", "the sum of both results, or the merged weight, is rounded to this dtype"),
        ),
    )
)
"""The choices of an op whose weight an adapter may stand beside."""

FORMS_OF_EXPERTS: Final = (
    replace(
        FORMS[0],
        default=FOLDED,
        values=(FOLDED, MERGED, UNMERGED),
        says="how a LoRA adapter takes effect: W + scaling * B @ A in one call of torch.baddbmm at each forward "
        "(peft's ParamWrapper); a weight made so beforehand, step by step (its merge); or each row's own result, plus "
        f"scaling * (x @ A.T) @ B.T of its expert (its sums are added {_NATIVE})",
    ),
    *FORMS[1:],
)
"""The same of experts."""


def ports(weight: str, a: str, b: str) -> tuple[WeightPort, WeightPort]:
    """The ports of A and B beside a weight, of these shapes in words."""
    return _port(f"{weight}_a", a), _port(f"{weight}_b", b)


def _port(name: str, shape: str) -> WeightPort:
    return WeightPort(name=name, says=f"{shape}, of a LoRA adapter, fp32", required=False, initial=0.0, beside=True)


def scaling(adapter: Mapping[str, Any], rank: int) -> float:
    """What the delta is multiplied by: peft 0.21.2, tuners/lora/layer.py, `update_layer`."""
    by_rank: float = adapter["alpha"] / (math.sqrt(rank) if adapter["rslora"] else rank)
    return by_rank * float(adapter["times"])


def is_unmerged(values: Mapping[str, Value]) -> bool:
    """Whether an adapter's own GEMMs are called beside the weight's."""
    return values.get("adapter") == UNMERGED
