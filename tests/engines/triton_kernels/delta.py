"""The gated delta rule of Qwen3-Next and Qwen3.5, prompts in chunks and decoding token by token, and the convolution
before it.

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
from moeparity.ops.kernels.short_conv import short_conv
from tests.engines.triton_kernels.case import Case, Outputs, Seen
from tests.ops.plain import BF16, FP32, random

HEADS, VALUE_HEADS = 1, 2
STORED = ("normalized", "inverse", "learnt", "new_values", "state_keys", "read_state", "changes", "pairs", "carried")
P = {"key_heads": HEADS, "value_heads": VALUE_HEADS, "eps": 1e-6, "channels": False, "bound": None}
IN_ORDER = {"squares_order": "sequential", "order": "sequential", "decay_sums": "sequential"}
OF_FOUR = "blocks(2, vector=2, back, fma) | blocks(2) | fold_hi"
OF_TWO = "blocks(2, fma) | fold_hi"
"""Four or two numbers of a thread, a product and a sum at a time, then a warp's threads."""
SUMS: dict[str, dict[str, Any]] = {
    "interpreter": {**IN_ORDER, "functions": "exact", "logistic": "exp", "contraction": "none"},
    "ptx": {"order": OF_FOUR, "functions": "triton", "logistic": "triton", "contraction": "fma"},
}
"""How sums are added, and which exp, by how the kernels are run."""
BLIND = {"interpreter": tuple(SUMS["interpreter"]), "ptx": ()}


def at_of(engine: str, form: str, how: str = "interpreter", width: int = 64, **chosen: Any) -> dict[str, Any]:
    """As the profiles `vllm-triton-gdn` and `sglang` have it."""
    is_vllm = engine == "vllm"
    plain: dict[str, Any] = {"inner": FP32, "decay": FP32, "output": BF16, "form": form, **SUMS[how]}
    plain |= {"beta": FP32 if is_vllm else BF16, "softplus": "log", "length": "divide"}
    plain |= {"squares_order": OF_FOUR if width > 64 else OF_TWO} if how == "ptx" else {}
    if form == "tokens":
        return plain | {"scale": "times", "normalized": UNROUNDED} | chosen
    plain |= dict.fromkeys(STORED, BF16) | {"system": UNROUNDED, "chunk": 64, "chunk_state": FP32, "scale": "behind"}
    plain |= {"solve": "blocks", "merge": "fp32", "decay_on": "result", "carry_on": "values"}
    if is_vllm:
        return plain | {"beta_on": "keys", "softplus": "folded", "length": "reciprocal"} | chosen
    return plain | {"beta_on": "decayed"} | chosen


def correctly_rounded(x: Tensor) -> Tensor:
    """Numbers near those of x of which torch's exp of -x is correctly rounded, as the interpreter's is."""
    candidates = random(4096, dtype=BF16, seed=17)
    exact = exponentials.exp(-candidates.float()) == torch.exp(-candidates.float())
    return candidates[exact][: x.numel()].view(x.shape)


def case(
    engine: str, form: str, tokens: int, *, has_state: bool, how: str = "interpreter", width: int = 64, **changed: Any
) -> Case:
    """Of prompts one sequence, of decode steps as many. The kernels add up keys wider than 64 tile by tile."""
    channels = width * (2 * HEADS + VALUE_HEADS)
    qkv = random(tokens, channels, dtype=BF16, seed=tokens)
    a, b = (random(tokens, VALUE_HEADS, dtype=BF16, seed=seed) for seed in (2, 3))
    b = correctly_rounded(b)
    a_log, dt_bias = random(VALUE_HEADS, dtype=FP32, seed=4), random(VALUE_HEADS, dtype=BF16, seed=5)
    batch = tokens if form == "tokens" else 1
    state = 0.3 * random(batch, VALUE_HEADS, width, width, dtype=FP32, seed=6) * has_state
    arguments = {"qkv": qkv, "a": a, "b": b, "a_log": a_log, "dt_bias": dt_bias, "state": state, "width": width}

    def rule(**chosen: Any) -> Outputs:
        parts = qkv.split([HEADS * width, HEADS * width, VALUE_HEADS * width], -1)
        reads = (x.contiguous().view(batch, -1, x.shape[-1]) for x in (*parts, a, b))
        at = at_of(engine, form, how, width, **chosen)
        before, ends = state.transpose(-1, -2).contiguous(), (tokens // batch,)
        w = {"a_log": a_log, "dt_bias": dt_bias}
        out, after = gated_delta(*reads, w=w, p=P, at=at, state=before, ends=ends)
        return {"output": out.view(tokens, VALUE_HEADS, width), "state": after.transpose(-1, -2).contiguous()}

    return Case(
        program=f"live_{engine}_delta",
        kernel="chunk_gated_delta_rule" if form == "chunks" else "packed_decode",
        kind="prefill" if form == "chunks" else "decode",
        shapes=f"{tokens} tokens of {width}, {'a' if has_state else 'no'} state",
        arguments=arguments if form == "tokens" else {**arguments, "heads": HEADS},
        ours=rule,
        other_outputs=lambda: rule(**changed),
        says="gates, lengths and the rule itself; the state in fp32",
        recorded=(Seen(op="gated_delta", at=at_of(engine, form, how, width), blind=BLIND[how], p=P),),
        blind="the order of sums, exponentials",
    )


def conv_at(**chosen: Any) -> dict[str, Any]:
    """Products of bf16 numbers, added in fp32 from the oldest on."""
    return {"form": "taps", "product": BF16, "sum": FP32, "output": BF16, "logistic": "triton"} | chosen


def conv_case(engine: str, kind: str, tokens: int, how: str, **changed: Any) -> Case:
    """Of prompts one sequence, of decode steps as many."""
    channels, taps = 80, 4
    x, weight = random(tokens, channels, dtype=BF16, seed=7), random(channels, taps, dtype=BF16, seed=8)
    batch = tokens if kind == "conv_step" else 1
    window = random(batch, channels, taps - 1, dtype=BF16, seed=9)
    p = {"activation": "silu"}

    def convolved(**chosen: Any) -> Outputs:
        rows = x.view(batch, -1, channels)
        at = conv_at(**chosen) if how == "ptx" else conv_at(logistic="exp", **chosen)
        out, after = short_conv(
            rows, w={"weight": weight.unsqueeze(1)}, p=p, at=at, state=window, ends=(rows.shape[1],)
        )
        return {"output": out.reshape(tokens, channels), "window": after}

    return Case(
        program=f"live_{engine}_delta",
        kernel="causal_conv1d_fn" if kind == "conv" else "causal_conv1d_update",
        kind=kind,
        shapes=f"{tokens} x {channels}, {taps} taps",
        arguments={"x": x, "weight": weight, "window": window},
        ours=convolved,
        other_outputs=lambda: convolved(**changed),
        says="each product rounded to bf16, their sum in fp32, silu before it is rounded",
        recorded=(Seen(op="short_conv", at=conv_at(), blind=() if how == "ptx" else ("logistic",), p=p),),
        blind="" if how == "ptx" else "exp",
    )


def cases(how: str) -> Iterator[Case]:
    """Both engines; each control changes what the two do differently, or transformers."""
    if how == "ptx":
        # Its grid is made of tensors, which the interpreter takes for its own.
        yield conv_case("vllm", "conv", 33, how, product=UNROUNDED)
    for engine in ("vllm", "sglang"):
        yield conv_case(engine, "conv_step", 5, how, product=UNROUNDED)
        of_beta: dict[str, Any] = {"beta": BF16 if engine == "vllm" else FP32}
        if how == "ptx":
            yield case(engine, "tokens", 3, has_state=True, how=how, width=128, contraction="none", **of_beta)
            yield case(engine, "tokens", 5, has_state=True, how=how, order=OF_TWO, **of_beta)
            continue
        yield case(engine, "chunks", 1, has_state=False, normalized=UNROUNDED)
        yield case(engine, "chunks", 70, has_state=True, inverse=UNROUNDED)
        yield case(engine, "chunks", 150, has_state=True, carry_on="keys")
        yield case(engine, "tokens", 5, has_state=True, scale="behind", **of_beta)
