"""The forward of a checkpoint as a list of steps, for one choice of attributes or for many. Free of moeparity.

A step is an op at a node with the values that it reads and writes, so that whoever runs the steps may share what is
equal. Node and attribute names are moeparity's, since cases name them; nothing else is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.planted import ops
from benchmarks.planted.ops import At

Run = Callable[..., tuple[Tensor, ...]]

_MODEL = "model"
BASE: dict[str, dict[str, Any]] = {
    "embedding": {"output": _MODEL},
    "rotary": {"output": _MODEL},
    "rms_norm": {"normalized": _MODEL, "output": _MODEL},
    "linear": {"inputs": _MODEL, "output": _MODEL},
    "rope": {"products": _MODEL, "output": _MODEL},
    "attention": {"scores": _MODEL, "probabilities": _MODEL, "output": _MODEL},
    "add": {"output": _MODEL},
    "router": {"scores": "fp32", "weights": _MODEL},
    "experts": {"projections": _MODEL, "activation": _MODEL, "product": _MODEL, "output": _MODEL},
    "combine": {
        "weighted": _MODEL,
        "accumulate": _MODEL,
        "leaves": "expert",
        "order": "sequential",
        "output": _MODEL,
    },
    "swiglu": {"activation": _MODEL, "output": _MODEL},
}
"""What transformers 5.23.0 does with eager attention and eager experts, by op; `model` is the variant's dtype."""

OWN: dict[str, dict[str, dict[str, Any]]] = {
    "mixtral": {"router": {"weights": "fp32"}},
    "glm4_moe": {
        "gate": {"inputs": "fp32", "output": "fp32"},
        "router": {"weights": "fp32", "slots": "unsorted", "renormalize_eps": 1e-20},
    },
}
"""And what it does for one family only."""

_DTYPED = frozenset(
    {"inputs", "output", "square", "weight", "normalized", "products", "scores", "probabilities", "weights", "total"}
    | {"quotient", "correction", "choice", "projections", "activation", "product", "weighted", "accumulate"}
)


@dataclass(frozen=True, slots=True)
class Step:
    """One op: `run(*inputs, at=...)` gives the values `writes`."""

    node: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    run: Run


class Program:
    """A checkpoint read into memory, its steps, and the attributes of a node under some settings."""

    def __init__(self, folder: Path, dtype: str) -> None:
        """`dtype` is the one a whole variant runs in: bf16 or fp32."""
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        self.weights = load_file(folder / "model.safetensors")
        self.dtype = dtype
        self.steps: list[Step] = list(_steps(self))

    def at(self, step: Step, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of a step's node; `settings` maps `selector:attribute` to values, later ones count."""
        family = OWN.get(self.config["model_type"], {})
        kind = step.op if step.op in BASE else {"gate": "linear", "lm_head": "linear"}.get(step.op, "swiglu")
        values: dict[str, Any] = {**BASE.get(kind, {}), **family.get(step.op, {})}
        for key, value in settings.items():
            selector, _, attribute = key.rpartition(":")
            if matches(selector, step.node):
                values[attribute] = value
        return {name: self._typed(name, value) for name, value in values.items()}

    def _typed(self, name: str, value: Any) -> Any:
        if name not in _DTYPED:
            return value
        return ops.DTYPES[self.dtype if value == _MODEL else value]

    def logits(self, ids: Tensor, settings: Mapping[str, Any]) -> Tensor:
        """[B, T, V] of one choice of attributes."""
        values: dict[str, Tensor] = {"tokens": ids}
        for step in self.steps:
            out = step.run(*(values[name] for name in step.reads), at=self.at(step, settings))
            values.update(zip(step.writes, out, strict=True))
        return values["lm_head"]


def matches(selector: str, node: str) -> bool:
    """Whether `layers[*].moe.gate`, or a name without a star, names a node."""
    return re.fullmatch(re.escape(selector).replace(r"\[\*\]", r"\[\d+\]"), node) is not None


def sample(program: Program, settings: Mapping[str, Any], *, sequences: int, tokens: int, seed: int) -> Tensor:
    """int64 [sequences, tokens]: one random token each, continued at temperature 1."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, program.config["vocab_size"], (sequences, 1), generator=generator)
    while ids.shape[1] < tokens:
        chances = program.logits(ids, settings)[:, -1].double().softmax(-1)
        ids = torch.cat((ids, torch.multinomial(chances, 1, generator=generator)), 1)
    return ids


def _single(function: Callable[..., Tensor]) -> Run:
    return lambda *inputs, at: (function(*inputs, at=at),)


def _steps(program: Program) -> Iterable[Step]:
    config, weights = program.config, program.weights
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    parameters = config["rope_parameters"]
    width = int(head_dim * parameters.get("partial_rotary_factor", 1))

    def turned(ids: Tensor, at: At) -> tuple[Tensor, ...]:
        return ops.rotary(ids.shape[1], width, parameters["rope_theta"], at)

    table = weights["model.embed_tokens.weight"]
    yield Step("rotary", "rotary", ("tokens",), ("cos", "sin"), turned)
    yield Step("embed", "embedding", ("tokens",), ("embed",), _single(lambda ids, at: table[ids].to(at["output"])))
    x = "embed"
    for layer in range(config["num_hidden_layers"]):
        build = _Layer(program, layer)
        yield from build.attention(x, heads)
        yield from build.moe(f"layers[{layer}].attention.residual")
        x = f"layers[{layer}].moe.residual"
    yield _norm("norm", x, weights["model.norm.weight"], config)
    yield _linear("lm_head", "lm_head", "norm", weights["lm_head.weight"])


def _norm(node: str, x: str, weight: Tensor, config: Mapping[str, Any]) -> Step:
    eps = config["rms_norm_eps"]
    return Step(node, "rms_norm", (x,), (node,), _single(lambda x, at: ops.rms_norm(x, weight, eps, at)))


def _linear(node: str, op: str, x: str, weight: Tensor, bias: Tensor | None = None, heads: int | None = None) -> Step:
    def run(x: Tensor, at: At) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]) if op == "gate" else x
        out = ops.gemm(flat, weight, bias, at)
        out = out.view(*x.shape[:-1], -1)
        return out if heads is None else out.view(*out.shape[:-1], heads, -1)

    return Step(node, op, (x,), (node,), _single(run))


def _add(node: str, a: str, b: str) -> Step:
    return Step(node, "add", (a, b), (node,), _single(lambda a, b, at: ops.plus(a, b, at["output"])))


@dataclass(frozen=True, slots=True)
class _Layer:
    """The steps of one layer."""

    program: Program
    number: int

    @property
    def config(self) -> dict[str, Any]:
        return self.program.config

    def weight(self, name: str) -> Tensor:
        return self.program.weights[f"model.layers.{self.number}.{name}.weight"]

    def attention(self, x: str, heads: int) -> Iterable[Step]:
        at, groups = f"layers[{self.number}].attention", self.config["num_key_value_heads"]
        yield _norm(f"{at}.norm", x, self.weight("input_layernorm"), self.config)
        names = {}
        for letter, count in (("q", heads), ("k", groups), ("v", groups)):
            bias = self.program.weights.get(f"model.layers.{self.number}.self_attn.{letter}_proj.bias")
            weight = self.weight(f"self_attn.{letter}_proj")
            yield _linear(f"{at}.{letter}_proj", "linear", f"{at}.norm", weight, bias, count)
            names[letter] = f"{at}.{letter}_proj"
            if letter != "v" and f"model.layers.{self.number}.self_attn.{letter}_norm.weight" in self.program.weights:
                yield _norm(f"{at}.{letter}_norm", names[letter], self.weight(f"self_attn.{letter}_norm"), self.config)
                names[letter] = f"{at}.{letter}_norm"
        rotated = (f"{at}.rope.q", f"{at}.rope.k")

        def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, at: At) -> tuple[Tensor, ...]:
            return ops.rope(q, cos, sin, at), ops.rope(k, cos, sin, at)

        yield Step(f"{at}.rope", "rope", (names["q"], names["k"], "cos", "sin"), rotated, rope)
        yield Step(f"{at}.attend", "attention", (*rotated, names["v"]), (f"{at}.attend",), _single(ops.attention))
        yield _linear(f"{at}.o_proj", "linear", f"{at}.attend", self.weight("self_attn.o_proj"))
        yield _add(f"{at}.residual", x, f"{at}.o_proj")

    def moe(self, x: str) -> Iterable[Step]:
        at = f"layers[{self.number}].moe"
        block = "block_sparse_moe" if self.config["model_type"] == "mixtral" else "mlp"
        routed = (f"{at}.router.ids", f"{at}.router.weights")
        yield _norm(f"{at}.norm", x, self.weight("post_attention_layernorm"), self.config)
        yield _linear(f"{at}.gate", "gate", f"{at}.norm", self.weight(f"{block}.gate"))
        bias = self.program.weights.get(f"model.layers.{self.number}.mlp.gate.e_score_correction_bias")
        yield Step(f"{at}.router", "router", (f"{at}.gate",), routed, partial(_route, bias, routing(self.config)))
        gate_up, down = self._stacks(block)

        def run(x: Tensor, ids: Tensor, at: At) -> Tensor:
            return ops.experts(x, ids, gate_up, down, at)

        yield Step(f"{at}.experts", "experts", (f"{at}.norm", routed[0]), (f"{at}.experts",), _single(run))
        reads = (f"{at}.experts", *routed)
        yield Step(f"{at}.combine", "combine", reads, (f"{at}.combine",), _single(ops.combine))
        yield from self._shared(at)
        last = "combine" if self.config["model_type"] in {"qwen3_moe", "mixtral"} else "shared_add"
        yield _add(f"{at}.residual", x, f"{at}.{last}")

    def _stacks(self, block: str) -> tuple[Tensor, Tensor]:
        names = ("w1", "w3", "w2") if block == "block_sparse_moe" else ("gate_proj", "up_proj", "down_proj")
        count = routing(self.config)["experts"]
        each = [[self.weight(f"{block}.experts.{e}.{name}") for e in range(count)] for name in names]
        gate_up = torch.stack([torch.cat(pair) for pair in zip(each[0], each[1], strict=True)])
        return gate_up, torch.stack(each[2])

    def _shared(self, at: str) -> Iterable[Step]:
        kind = self.config["model_type"]
        if kind in {"qwen3_moe", "mixtral"}:
            return
        block = "mlp.shared_expert" if kind == "qwen2_moe" else "mlp.shared_experts"
        for part in ("gate", "up"):
            yield _linear(f"{at}.shared_{part}_proj", "linear", f"{at}.norm", self.weight(f"{block}.{part}_proj"))
        reads = (f"{at}.shared_gate_proj", f"{at}.shared_up_proj")
        run = _single(lambda gate, up, at: ops.swiglu(gate, up, at["activation"], at["output"]))
        yield Step(f"{at}.shared_swiglu", "swiglu", reads, (f"{at}.shared_swiglu",), run)
        down = self.weight(f"{block}.down_proj")
        yield _linear(f"{at}.shared_down_proj", "linear", f"{at}.shared_swiglu", down)
        out = f"{at}.shared_down_proj"
        if kind == "qwen2_moe":
            yield _linear(f"{at}.shared_gate", "linear", f"{at}.norm", self.weight("mlp.shared_expert_gate"))
            reads, gated = (f"{at}.shared_gate", out), _single(ops.sigmoid_gate)
            yield Step(f"{at}.shared", "sigmoid_gate", reads, (f"{at}.shared",), gated)
            out = f"{at}.shared"
        yield _add(f"{at}.shared_add", f"{at}.combine", out)


def _route(bias: Tensor | None, config: Mapping[str, Any], logits: Tensor, at: At) -> tuple[Tensor, ...]:
    return ops.router(logits, bias, config, at)


def routing(config: Mapping[str, Any]) -> dict[str, Any]:
    """How a family chooses experts."""
    kind = config["model_type"]
    return {
        "experts": config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"],
        "top_k": config["num_experts_per_tok"],
        "score": "sigmoid" if kind == "glm4_moe" else "softmax",
        "renormalize": kind == "mixtral" or config["norm_topk_prob"],
        "groups": config.get("n_group", 1),
        "top_groups": config.get("topk_group", 1),
        "scale": config.get("routed_scaling_factor", 1.0),
    }
