"""The gated delta rule of Qwen3-Next and Qwen3.5: prompts in chunks, and decoding token by token.

Sums within a tile go from left to right in the interpreter, and here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from moeparity.numerics.dtypes import UNROUNDED
from moeparity.ops.kernels import exponentials
from moeparity.ops.kernels.gated_delta import gated_delta
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

HEADS, VALUE_HEADS, WIDTH = 1, 2, 64
"""Keys as wide as a tile: the kernels add up wider ones tile by tile."""
ORDERS = {"squares_order": "sequential", "order": "sequential", "decay_sums": "sequential"}
TREES = (*ORDERS, "functions", "logistic")
"""What a GPU computes otherwise than the interpreter."""
STORED = ("normalized", "inverse", "learnt", "new_values", "state_keys", "read_state", "changes", "pairs", "carried")
P = {"key_heads": HEADS, "value_heads": VALUE_HEADS, "eps": 1e-6, "channels": False, "bound": None}


def at_of(engine: str, form: str, **chosen: Any) -> dict[str, Any]:
    """As the profiles `vllm-triton-gdn` and `sglang` have it."""
    is_vllm = engine == "vllm"
    plain = {"inner": FP32, "decay": FP32, "output": BF16, "functions": "exact", "logistic": "exp", **ORDERS}
    plain |= {"beta": FP32 if is_vllm else BF16, "softplus": "log", "length": "divide", "form": form}
    if form == "tokens":
        return plain | {"scale": "times", "normalized": UNROUNDED} | chosen
    plain |= dict.fromkeys(STORED, BF16) | {"system": UNROUNDED, "chunk": 64, "chunk_state": FP32, "scale": "behind"}
    plain |= {"solve": "blocks", "decay_on": "result", "carry_on": "values"}
    if is_vllm:
        plain |= {"beta_on": "keys", "merge": "fp32", "softplus": "folded", "length": "reciprocal"}
    else:
        plain |= {"beta_on": "decayed", "merge": "fp32"}
    return plain | chosen


def correctly_rounded(x: Tensor) -> Tensor:
    """Numbers near those of x of which torch's exp of -x is correctly rounded, as the interpreter's is."""
    candidates = random(4096, dtype=BF16, seed=17)
    exact = exponentials.exp(-candidates.float()) == torch.exp(-candidates.float())
    return candidates[exact][: x.numel()].view(x.shape)


def case(engine: str, form: str, tokens: int, has_state: bool, **changed: Any) -> Case:
    """Of prompts one sequence, of decode steps as many."""
    channels = WIDTH * (2 * HEADS + VALUE_HEADS)
    qkv = random(tokens, channels, dtype=BF16, seed=tokens)
    a, b = (random(tokens, VALUE_HEADS, dtype=BF16, seed=seed) for seed in (2, 3))
    b = correctly_rounded(b)
    a_log, dt_bias = random(VALUE_HEADS, dtype=FP32, seed=4), random(VALUE_HEADS, dtype=BF16, seed=5)
    batch = tokens if form == "tokens" else 1
    state = 0.3 * random(batch, VALUE_HEADS, WIDTH, WIDTH, dtype=FP32, seed=6) * has_state
    arguments = {"qkv": qkv, "a": a, "b": b, "a_log": a_log, "dt_bias": dt_bias, "state": state, "width": WIDTH}

    def rule(**chosen: Any) -> Outputs:
        parts = qkv.split([HEADS * WIDTH, HEADS * WIDTH, VALUE_HEADS * WIDTH], -1)
        reads = (x.contiguous().view(batch, -1, x.shape[-1]) for x in (*parts, a, b))
        at = at_of(engine, form, **chosen)
        before, ends = state.transpose(-1, -2).contiguous(), (tokens // batch,)
        w = {"a_log": a_log, "dt_bias": dt_bias}
        out, after = gated_delta(*reads, w=w, p=P, at=at, state=before, ends=ends)
        return {"output": out.view(tokens, VALUE_HEADS, WIDTH), "state": after.transpose(-1, -2).contiguous()}

    return Case(
        program=f"live_{engine}_delta",
        kernel="chunk_gated_delta_rule" if form == "chunks" else "packed_decode",
        kind="prefill" if form == "chunks" else "decode",
        shapes=f"{tokens} tokens, {'a' if has_state else 'no'} state",
        arguments=arguments if form == "tokens" else {**arguments, "heads": HEADS},
        ours=rule,
        other_outputs=lambda: rule(**changed),
        says="gates, lengths and the rule itself; the state in fp32",
        recorded=(Seen(op="gated_delta", at=at_of(engine, form), blind=TREES, p=P),),
        blind="the order of sums, exponentials",
    )


def cases() -> Iterator[Case]:
    """Both engines; each control changes what the two do differently, or transformers."""
    for engine in ("vllm", "sglang"):
        yield case(engine, "chunks", 1, has_state=False, normalized=UNROUNDED)
        yield case(engine, "chunks", 70, has_state=True, inverse=UNROUNDED)
        yield case(engine, "chunks", 150, has_state=True, carry_on="keys")
        yield case(engine, "tokens", 5, has_state=True, scale="behind", beta=BF16 if engine == "vllm" else FP32)
