"""How much memory the kernels of `attention` and `mla` need beside their inputs and outputs, and how many turns of
loops they take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from moeparity.numerics.gemm_forms import ALL
from moeparity.numerics.orders import NATIVE
from moeparity.numerics.tensor_core.gemm_orders import tensor_core_order
from moeparity.ops.attention_forms import FIXED, FLASH, KEYS, L2, SDPA, SHARED
from moeparity.ops.attribute import Value
from moeparity.ops.declaration import in_pieces
from moeparity.ops.linear import in_8_bits
from moeparity.ops.memory import EXACT, Call, Shapes, on_tensor_cores


def head_widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    """As many heads as queries have, each as wide as a value."""
    queries, keys, values = inputs[:3]
    return [queries * values // keys]


def scratch(call: Call) -> int:
    """Attention to projected heads: torch's fused kernel never holds all scores."""
    widest = max(sum(call.inputs[:2]), call.outputs[0])
    if call.active.get("implementation") == SDPA:
        return _operands_and_masks(call, widest)
    return _with_scores(call, call.heads, widest)


def latent_widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    """The width of what all heads make from a latent."""
    return [params["heads"] * params["value_dim"]]


def expanded_widths(weights: Shapes, params: Mapping[str, Any], inputs: Sequence[int]) -> Sequence[int]:
    """Keys and values of every head, into which a latent is expanded."""
    return weights["kv_b"][:1]


def expanded_bytes(call: Call) -> Sequence[int]:
    """They are rounded to `kv_b`."""
    return [call.bytes_of("kv_b")]


def expanded_scratch(call: Call) -> int:
    """The GEMM that expands a latent: its operands, rounded, and rounded to TF32."""
    rows, columns = call.weights["kv_b"]
    operands = rows * columns + call.tokens * columns
    copies = 1 if call.active.get("kv_b_tf32") != "yes" else 5
    scratch = on_tensor_cores(call, "kv_b_order", rows, columns, call.tokens)
    return copies * call.bytes_of("kv_b") * operands + scratch + in_8_bits(call, rows, columns, call.tokens)


def latent_scratch(call: Call) -> int:
    """Attention to a latent, whose values and keys differ in width: torch's fused kernel holds all scores too."""
    heads, widest = call.params["heads"], max(sum(call.inputs[:2]), call.outputs[0])
    if call.active.get("projection") == "absorbed":
        # All heads' queries and outputs are as wide as the latent.
        widest = max(widest, heads * (call.inputs[2] + call.inputs[3]))
    if call.active.get("projection") == "context":
        widest = max(widest, call.inputs[5])
    rounded = call.active.get("kv_b_tf32") == "yes"
    expanded = 4 * call.wide * (prod(call.weights["kv_b"]) + call.tokens * widest) if rounded else 0
    rows, columns = call.weights["kv_b"]
    expanded += on_tensor_cores(call, "kv_b_order", rows, columns, call.tokens)
    expanded += in_8_bits(call, rows, columns, max(call.tokens, call.length))
    return expanded + _with_scores(call, heads, widest)


def _operands_and_masks(call: Call, widest: int) -> int:
    return 6 * call.wide * call.tokens * widest + call.tokens * call.length * (2 + call.wide)


def _with_scores(call: Call, heads: int, widest: int) -> int:
    if call.active.get("implementation") == FLASH:
        return _operands_and_masks(call, widest) + _flash(call, heads, widest)
    # The scores; a wider copy if they are narrow; its softmax; and the rounded softmax.
    narrow = [size for size in (call.bytes_of("scores"), call.bytes_of("probabilities")) if size != call.wide]
    score = sum(narrow) + 2 * call.wide
    # Written out: exponentials through fp64, and the steps of a sum. Rounded to TF32: the bits, and which are finite.
    score += 6 * EXACT if call.active.get("softmax", "native") != "native" else 0
    score += 4 * call.wide if call.rounds_to_tf32 else 0
    # With the sink's column, and less the highest.
    score += 3 * call.wide if "sinks" in call.weights else 0
    return _operands_and_masks(call, widest) + score * call.tokens * heads * (call.length + 1)


def _flash(call: Call, heads: int, widest: int) -> int:
    """Tiles of scores, exponentials computed through fp64 and the exact fma, and the output of every run, beside those
    of the last two.
    """
    block, splits = call.active["kv_block"], call.active["splits"]
    tile = call.length if block == L2 else min(int(block), call.length)
    if splits == FIXED:
        runs = -(-call.length // int(call.active["split_keys"]))
    elif splits == SHARED:
        runs = 2
    else:
        runs = min(int(splits), call.length if call.active.get("split_by") == KEYS else -(-call.length // tile))
    score, outputs = 4 * call.wide + 6 * EXACT, 4 + 2 * runs
    if call.rounds_to_tf32:
        score, outputs = score + 4 * call.wide, outputs + 4
    # If queries are cut into blocks, all outputs exist twice when they are put together.
    outputs += 2 if "q_block" in call.active else 0
    return call.tokens * (heads * tile * score + outputs * call.wide * widest)


WIDTH: Final = 64
"""Channels of a head, for what a sum over them takes: heads have 64 or 128."""
STEP: Final = 2.0
"""What an addition over all scores takes, in turns of a loop."""


def turns(values: Mapping[str, Value], rows: int, length: int) -> float:
    """`turns` of attention: an online softmax also loops over its tiles of keys, and a product whose order is written
    out over what it adds up.
    """
    return in_pieces(values, rows, length) * _tiles(values, rows, length) * _additions(values, length)


def _additions(values: Mapping[str, Value], length: int) -> float:
    """How many additions a tile makes one after the other, beside those of torch's own kernels."""
    orders = {name: str(values.get(name, NATIVE)) for name in ("scores_order", "values_order")}
    written = {name for name, order in orders.items() if order != NATIVE and tensor_core_order(order) is None}
    block = values.get("kv_block", length)
    keys = length if isinstance(block, str) else min(block, length)
    additions = (WIDTH if "scores_order" in written else 0) + (keys if "values_order" in written else 0)
    return 1.0 + STEP * additions


def _tiles(values: Mapping[str, Value], rows: int, length: int) -> float:
    """How many tiles of keys an online softmax computes one after the other. If queries are computed block by block,
    only the tiles that they see: half of them.
    """
    if values.get("implementation") != FLASH:
        return 1.0
    if values["kv_block"] == L2:
        return 1.0
    tiles = max(1.0, length / min(int(values["kv_block"]), int(values.get("split_keys", length))))
    if values.get("rows", ALL) != ALL:
        return rows / length * math.ceil(length / int(values["rows"])) * max(1.0, tiles / 2)
    return math.ceil(length / int(values["q_block"])) * max(1.0, tiles / 2) if "q_block" in values else tiles
