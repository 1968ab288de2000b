"""Products with a weight, and rows of an embedding: which dtype their operands and results are in, engine by engine.

What an engine's own Python hands torch's GEMM, and what it does with the result, holds on a GPU as on a CPU: operands
are read, and results rounded, in the dtypes that it names. Each number here is one product, so that no kernel's order
of addition, tensor cores' adder among them, takes part, and some are smaller than fp16 holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from moeparity.numerics.dtypes import MODEL, UNROUNDED, torch_dtype
from moeparity.ops.attribute import Attribute
from moeparity.ops.kernels import elementwise, linear
from moeparity.ops.quantised import QUANTISED
from moeparity.ops.registry import OPS
from tests.engines import titan
from tests.engines.function import At, Case, Function, Outputs
from tests.engines.ours import GEMM
from tests.ops.plain import BF16, FP32, random

FP16, FP8 = torch.float16, torch.float8_e4m3fn
KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": linear.linear, "gate": linear.gate, "lm_head": linear.lm_head,
}  # fmt: skip
UNTOLD = tuple(name for name in GEMM if name != "tensor")
"""What products of one term do not show."""


def _as_run(choice: Attribute) -> Any:
    """A choice's usual value, as a kernel is given it."""
    if choice.kind != "rounding" or choice.default == UNROUNDED:
        return choice.default
    return BF16 if choice.default == MODEL else torch_dtype(str(choice.default))


GRIDS = dict.fromkeys(("weights", "activations"), UNROUNDED)
"""Of ops whose operands may lie on a grid of 8 bits: they do not."""
FURTHER = {choice.name: _as_run(choice) for choice in QUANTISED}
"""How they would, where a test sets a grid."""
CASES: Mapping[str, Case] = {
    f"{tokens}x{hidden}": {
        "x": random(tokens, hidden, dtype=BF16, seed=hidden),
        "weight": titan.one_term(300, hidden, seed=3).mul(1 + random(300, 1, dtype=FP32, seed=4) / 3).to(BF16) / 2**20,
    }
    for tokens, hidden in ((1, 64), (9, 256), (40, 96))
}
ROWS: Mapping[str, Case] = {
    str(tokens): {"x": random(300, 64, dtype=BF16, seed=1) / 2**20, "ids": torch.arange(tokens) * 7 % 300}
    for tokens in (1, 40)
}
"""x is the table."""


def product(op: str, name: str, file: str, *, output: torch.dtype = BF16, kind: str = "", **fields: Any) -> Function:
    """A function that stands for the node `op`, of operands in bf16; run by `kind`, by default the op's name."""
    declared = {a.name for a in OPS[op].attributes}

    def ours(case: Case, at: At) -> Outputs:
        products = KERNELS[op](case["x"][None], w={"weight": case["weight"]}, p={"heads": None}, at=FURTHER | at[op])
        return {"output": products[0]}

    others: list[dict[str, Any]] = [
        {f"{op}:inputs": FP16},
        {f"{op}:output": FP16},
        {f"{op}:output": FP32 if output == BF16 else BF16},
    ]
    if "weights" in declared:
        others.append({f"{op}:weights": FP8})
        others.append({f"{op}:activations": FP8, f"{op}:activation_scales": "token"})
    choices = {n: v for n, v in {**GEMM, **GRIDS, "inputs": BF16, "output": output}.items() if n in declared}
    return Function(kind or op, name, file, CASES, ours, lambda _: {op: choices}, tuple(others), blind=UNTOLD, **fields)


def embedding(name: str, file: str, **fields: Any) -> Function:
    """A function that looks rows of a table in bf16 up."""

    def ours(case: Case, at: At) -> Outputs:
        rows = elementwise.embedding(
            case["ids"][None], w={"weight": case["x"]}, p={}, at={"tensor": 1, **at["embedding"]}
        )
        return {"output": rows[0]}

    others = ({"embedding:output": FP16},)
    return Function("embedding", name, file, ROWS, ours, lambda _: {"embedding": {"output": BF16}}, others, **fields)
