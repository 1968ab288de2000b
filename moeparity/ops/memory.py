"""How large values are, and what a kernel needs beside its inputs and outputs: upper bounds, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from moeparity.ops.attention import FIXED, KEYS
from moeparity.ops.norm.declaration import WELFORD
from moeparity.ops.norm.launches import WELFORD_THREADS
from moeparity.plan.graph import SOURCES, Graph, Node

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
_INTEGER = 8
_EXACT = 8
"""Bytes of an fp64 number, by way of which exponentials are rounded correctly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One kernel call on `tokens` tokens, in sequences of `length`.

    active: the attributes that take effect. dtype: what the node runs in. inputs, outputs: elements per token of each;
    input_bytes: bytes of one element of each input. heads: into how many the first input is cut. Of a value in partial
    sums all are counted.
    """

    node: Node
    tokens: int
    length: int
    active: Mapping[str, Any]
    dtype: str
    input_bytes: Sequence[int]
    inputs: Sequence[int]
    outputs: Sequence[int]
    heads: int

    @property
    def wide(self) -> int:
        """Bytes of the elements in which a step between dtypes is computed."""
        # Only these two take integers first.
        doubled = self.input_bytes[0] == BYTES["fp64"] and self.node.op.name not in {"embedding", "rotary"}
        return 8 if doubled or "fp64" in (self.dtype, *self.active.values()) else 4

    def bytes_of(self, site: str) -> int:
        """Bytes of one element at a site."""
        return BYTES[str(self.active.get(site, self.dtype))]

    def shape(self, port: str) -> tuple[int, ...]:
        """The shape of one tensor of a weight port."""
        return self.node.weights[port].shape

    def output_bytes(self) -> list[int]:
        """Bytes of one element of each output."""
        if self.node.op.name == "router":
            return [_INTEGER, self.bytes_of("weights")]
        if self.node.op.name == "split":
            return [self.input_bytes[0]] * len(self.outputs)
        # Partial sums have a site of their own; what passes by an all-reduce keeps its dtype.
        name = self.node.op.name
        if name == "all_reduce" and "output" not in self.active:
            return [self.input_bytes[0]]
        if name == "log_softmax" and "output" not in self.active:
            # The logits are handed on as they are, or over a temperature in fp64.
            return [0 if self.active.get("temperature") == 1 else BYTES["fp64"]]
        return [self.bytes_of("partial" if "partial" in self.active else "output")] * len(self.outputs)

    def scratch(self) -> int:
        """Bytes needed for a moment, beside inputs and outputs."""
        rule = _SCRATCH.get(self.node.op.name, _elementwise)
        return rule(self) + (self._cut() if self.node.op.pieces(self.active) > 1 else 0)

    def _cut(self) -> int:
        """What cutting an op into pieces copies: its weights, its inputs, and its result once more to gather it."""
        weights = sum(weight_bytes(ref.shape, ref.count, self.dtype) for ref in self.node.weights.values())
        values = sum(n * size for n, size in zip(self.inputs, self.input_bytes, strict=True))
        values += sum(n * size for n, size in zip(self.outputs, self.output_bytes(), strict=True))
        return 2 * weights + self.tokens * values


def widths(graph: Graph) -> tuple[dict[str, int], dict[str, int]]:
    """Elements per token of every value of a graph, and into how many heads they are cut."""
    found, heads = dict.fromkeys(SOURCES, 1), dict.fromkeys(SOURCES, 1)
    for node in graph.nodes:
        rule = _WIDTHS.get(node.op.name, _as_first)
        found |= zip(node.values, rule(node, [found[value] for value in node.inputs]), strict=True)
        cut = node.params.get("heads") or (heads[node.inputs[0]] if node.op.name not in _WHOLE else 1)
        heads |= dict.fromkeys(node.values, cut)
    return found, heads


def _as_first(node: Node, inputs: Sequence[int]) -> list[int]:
    return [inputs[0]] * len(node.outputs)


def _rows(node: Node, inputs: Sequence[int]) -> list[int]:
    return [node.weights["weight"].shape[0]]


_WIDTHS: dict[str, Callable[[Node, Sequence[int]], list[int]]] = {
    "embedding": lambda node, _: [node.weights["weight"].shape[1]],
    "rotary": lambda node, _: [node.params["dim"]] * 2,
    "linear": _rows,
    "gate": _rows,
    "lm_head": _rows,
    "rope": lambda _, inputs: list(inputs[:2]),
    "mla": lambda node, _: [node.params["heads"] * node.params["value_dim"]],
    "router": lambda node, _: [node.params["top_k"]] * 2,
    "experts": lambda _, inputs: [inputs[0] * inputs[1]],
    "combine": lambda _, inputs: [inputs[0] // inputs[2]],
    "sigmoid_gate": lambda _, inputs: [inputs[1]],
    "all_reduce": lambda _, inputs: [inputs[0]],
    "split": lambda node, inputs: [
        part * inputs[0] // sum(node.params["parts"].values()) for part in node.params["parts"].values()
    ],
}
"""Ops whose outputs are not as wide as their first input."""

_WHOLE = ("linear", "attention", "mla")
"""Ops whose outputs are not cut into heads as their first input is."""


def _elementwise(call: Call) -> int:
    return 4 * call.wide * call.tokens * max(*call.inputs, *call.outputs)


def _norm(call: Call) -> int:
    """With an order written out also the squares, what one step of the sum leaves, and what the other moment needs.

    With Welford's updates what each thread of a row holds.
    """
    statistic = call.active.get("statistic")
    own = call.active.get("order") == "native" and statistic == "mean_square"
    rows = call.tokens * call.inputs[0] // call.shape("weight")[0]
    threads = 10 * WELFORD_THREADS * call.wide * rows if statistic == WELFORD else 0
    return (1 if own else 2) * _elementwise(call) + threads


def _linear(call: Call) -> int:
    rows, columns = call.shape("weight")
    return _gemm(call, call.tokens, rows, columns, "inputs", "output")


def _gemm(call: Call, tokens: int, rows: int, columns: int, inputs: str, output: str) -> int:
    """Operands rounded to `inputs`, and everything in wide where the kernel is not that of `inputs`."""
    given, kept = call.bytes_of(inputs), BYTES[call.dtype]
    copies = rows * columns * given if given != kept else 0
    copies += tokens * columns * given
    # Rounding to TF32: the bits, what is finite, and the result, of one operand while the other's is there.
    copies += 4 * given * (rows * columns + tokens * columns) if call.active.get("tf32") == "yes" else 0
    if call.active.get(inputs) == call.active.get(output):
        return copies
    return copies + call.wide * (rows * columns + tokens * columns + tokens * rows)


def _attention(call: Call) -> int:
    heads = call.node.params.get("heads") or call.heads
    widest = max(sum(call.inputs[:2]), call.outputs[0])
    if call.active.get("projection") == "absorbed":
        # All heads' queries and outputs are as wide as the latent.
        widest = max(widest, heads * (call.inputs[2] + call.inputs[3]))
    operands = 6 * call.wide * call.tokens * widest
    masks = call.tokens * call.length * (2 + call.wide)
    if call.active.get("kv_b_tf32") == "yes":
        operands += 4 * call.wide * (prod(call.shape("kv_b")) + call.tokens * widest)
    # torch's fused kernel never holds all scores, unless values and keys differ in width.
    if call.active.get("implementation") == "sdpa" and call.node.op.name == "attention":
        return operands + masks
    if call.active.get("implementation") == "flash":
        return operands + masks + _flash(call, heads, widest)
    # The scores, their wide copy where they are not wide themselves, the softmax of it, and that rounded.
    stored = [size for size in (call.bytes_of("scores"), call.bytes_of("probabilities")) if size != call.wide]
    each = sum(stored) + 2 * call.wide
    # Written out, exponentials by way of fp64 and the steps of a sum; rounded to TF32, bits and what is finite.
    each += 6 * _EXACT if call.active.get("softmax", "native") != "native" else 0
    each += 4 * call.wide if call.active.get("tf32") == "yes" else 0
    # With the sink's column, and less the highest.
    each += 3 * call.wide if "sinks" in call.node.weights else 0
    return operands + masks + each * call.tokens * heads * (call.length + 1)


def _flash(call: Call, heads: int, widest: int) -> int:
    """Tiles of scores, exponentials by way of fp64 and the exact fma, and every run's output, beside its last two."""
    tile, splits = min(int(call.active["kv_block"]), call.length), call.active["splits"]
    if splits == FIXED:
        runs = -(-call.length // int(call.active["split_keys"]))
    else:
        runs = min(int(splits), call.length if call.active.get("split_by") == KEYS else -(-call.length // tile))
    each, outputs = 4 * call.wide + 6 * _EXACT, 4 + 2 * runs
    if call.active.get("tf32") == "yes":
        each, outputs = each + 4 * call.wide, outputs + 4
    # Of queries that are cut, all outputs are there once more when they are put together.
    outputs += 2 if "q_block" in call.active else 0
    return call.tokens * (heads * tile * each + outputs * call.wide * widest)


def _router(call: Call) -> int:
    return 6 * _INTEGER * call.tokens * call.inputs[0]


def _experts(call: Call) -> int:
    width, hidden = call.shape("gate")
    slots = call.tokens * call.inputs[1]
    grouped = call.active.get("implementation") == "grouped"
    # Every token may choose the same expert.
    rows = slots if grouped else call.tokens
    stacks = call.node.weights["gate"].count if grouped else 1
    values = rows * (hidden * call.bytes_of("projections") + 2 * width * call.wide * 2 + 3 * width * call.wide)
    values += rows * hidden * (call.bytes_of("output") + call.wide)
    if "gate_bias" in call.node.weights:
        # The rows' own biases, and the results before them.
        values += 2 * rows * (2 * width + hidden) * call.wide
    # Of the clamped form every step.
    values += 6 * rows * width * call.wide if "gain" in call.active else 0
    score_site = call.active.get("score_site", "combine")
    if score_site != "combine":
        # The fp32 result before its score, or what is scaled, and the products.
        values += 2 * rows * max(hidden, width) * call.wide
    if call.active.get("tf32") == "yes":
        values += 4 * call.wide * (2 * width * hidden * stacks + rows * max(hidden, width))
    sites = {call.active.get(site, call.dtype) for site in ("projections", "product", "scored", "output")}
    mixed = len(sites | {call.dtype}) > 1 or score_site == "epilogue"
    return values + 4 * _INTEGER * slots + (2 * width * hidden * stacks * 2 * call.wide if mixed else 0)


def _combine(call: Call) -> int:
    if call.active.get("shared") == "slot":
        whole = replace(call, active={**call.active, "shared": "add"})
        return 2 * call.tokens * call.inputs[0] * call.input_bytes[0] + 2 * _combine(whole)
    rows = call.tokens * call.inputs[0]
    if call.active.get("order") == "native" and call.active.get("accumulate") == "fp32":
        return rows * (2 * call.wide + 2 * max(call.bytes_of("weighted"), call.input_bytes[0]))
    return 6 * call.wide * call.tokens * call.outputs[0]


def _log_softmax(call: Call) -> int:
    """The logits as they are rounded and as ranks hold them, those less the maximum, their exponentials, and steps of a
    sum; over a temperature alone, the logits in fp64.
    """
    logits = call.tokens * call.inputs[0]
    if "output" in call.active:
        return 5 * call.wide * logits
    return 0 if call.active.get("temperature") == 1 else BYTES["fp64"] * logits


_SCRATCH: dict[str, Callable[[Call], int]] = {
    "rms_norm": _norm,
    "linear": _linear,
    "gate": _linear,
    "lm_head": _linear,
    "attention": _attention,
    "mla": _attention,
    "router": _router,
    "experts": _experts,
    "combine": _combine,
    "split": lambda _: 0,
    "log_softmax": _log_softmax,
    "all_reduce": lambda call: 2 * call.wide * call.tokens * call.inputs[0] if "output" in call.active else 0,
}


def weight_bytes(shape: Sequence[int], count: int, dtype: str) -> int:
    """Bytes of `count` tensors of a shape."""
    return prod(shape) * count * BYTES[dtype]
