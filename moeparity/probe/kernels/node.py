"""A node of a plan with which a kernel is compared: the data for both, and how to compute the node on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from moeparity.errors import MoeparityError, listed
from moeparity.numerics.bits import int_view, ulps
from moeparity.ops.attribute import Value, holds
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.probe.kernels.launch import Kernel
from moeparity.probe.replay import zero_sum

Tensors = Mapping[str, torch.Tensor]
Drawn = tuple[dict[str, float], dict[str, torch.Tensor]]
"""Sizes and scalars by name, and tensors by name."""
_LEFT = 2.0**-17
_DRAWS, _ROWS = 8, 32
"""At most this many calls on cancelling data, and at least this many rows in all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One shape: sizes and scalars by name, and the tensors given to kernel and node."""

    sizes: Mapping[str, float]
    tensors: Tensors

    def __str__(self) -> str:
        return ", ".join(f"{name} {size:g}" for name, size in self.sizes.items())


@dataclass(frozen=True, slots=True)
class NodeRun:
    """A node of a plan, on one rank."""

    node: Node
    plan: Plan

    @property
    def choices(self) -> dict[str, Value]:
        """All values of the node, in effect or not, and the choices of other ops that it has to know."""
        return self.plan.choices(self.node)

    def active(self, choices: Mapping[str, Value]) -> dict[str, Value]:
        """The values in `choices` that take effect, and the choices of other ops that it has to know."""
        attributes = (
            a for a in self.node.attributes if a.needs in {"always", "no partials"} and holds(a.when, choices)
        )
        return {**self.plan.told_to(self.node), **{a.name: choices[a.name] for a in attributes}}

    def outputs(self, case: Case, choices: Mapping[str, Value]) -> Tensors:
        """The op's outputs for a case under some choices, by name. Raises SpecError if the op refuses them."""
        at = self.node.op.settings(self.active(choices))
        params = {**self.node.params, **{name: x for name, x in case.sizes.items() if name in self.node.params}}
        return _OPS[self.node.op.name].compute(self.node.op.load(), case.tensors, params, at)


def held_to(kernel: Kernel, plan: Plan, node: Node) -> NodeRun:
    """The node, if the kernel can be compared with it. Raises MoeparityError."""
    computes, name = kernel.file.computes, node.name
    if node.op.name != computes:
        raise MoeparityError(f"--against {name}: a node of op {node.op.name}, and {kernel.path} computes {computes}.")
    node_run = NodeRun(node, plan)
    if plan.dtype_of(name) != kernel.file.dtype:
        raise MoeparityError(
            f"--against {name}: runs in {plan.dtype_of(name)}, and {kernel.path} in {kernel.file.dtype}."
        )
    active = node_run.active(node_run.choices)
    if any(active.get(way, 1) != 1 for way in ("tensor", "expert")):
        raise MoeparityError(f"--against {name}: lies on several ranks in this plan. Name a plan without `placement`.")
    weighs = active.get("score_site") == "combine"
    if computes == "combine" and weighs != ("weights" in kernel.inputs):
        takes = "takes no weights" if weighs else "takes weights"
        raise MoeparityError(
            f"--against {name}: rows meet their weights in {active.get('score_site')} (experts:score_site), and "
            f"{kernel.path} {takes}."
        )
    if computes == "router" and ("bias" in node.weights) != ("bias" in kernel.inputs):
        has = "has a bias that no argument is" if "bias" in node.weights else "has no bias"
        raise MoeparityError(f"--against {name}: {has}, and {kernel.path} takes {listed(kernel.inputs)}.")
    if computes == "combine" and active.get("shared", "add") != "add":
        raise MoeparityError(f"--against {name}: its sum takes the shared expert's output too, which no argument is.")
    return node_run


def cases_of(kernel: Kernel, node: Node, tokens: Sequence[int], width: int) -> list[Case]:
    """Seeded data for each number of tokens; `width` is used if the node does not give the width of a row.

    The last case tells most. A norm that gets its eps as an argument has one more case, in which nearly all of the mean
    is subtracted again.
    """
    computes, cases = kernel.file.computes, []
    for count in sorted(tokens):
        draw = torch.Generator().manual_seed(1000 * count + width)
        cases.append(_case(kernel, _OPS[computes].draw(node, count, width, draw)))
    if computes == "rms_norm" and kernel.reads("eps"):
        count = max(tokens)
        draws = range(min(_DRAWS, -(-_ROWS // count)))
        cases += [_case(kernel, _residues(node, count, kernel.dtype, seed)) for seed in draws]
    return cases


def _case(kernel: Kernel, drawn: Drawn) -> Case:
    sizes, tensors = drawn
    dtypes = kernel.input_dtypes
    if "gate_up" in dtypes:
        tensors["gate_up"] = torch.cat([tensors["gate"], tensors["up"]], dim=-1)
    return Case(
        sizes=sizes,
        tensors={
            name: x.to(dtypes.get(name, kernel.dtype)) if x.is_floating_point() else x for name, x in tensors.items()
        },
    )


def _norm(node: Node, tokens: int, width: int, draw: torch.Generator) -> Drawn:
    """Rows of different magnitudes; every other one has a few large numbers, beside which small ones are lost."""
    hidden = node.weights["weight"].shape[-1]
    x = torch.randn(tokens, hidden, generator=draw) * 3 * torch.rand(tokens, 1, generator=draw)
    x[1::2] *= 2.0 ** torch.randint(-3, 4, x[1::2].shape, generator=draw)
    weight = 1 + 0.1 * torch.randn(hidden, generator=draw)
    return {"tokens": tokens, "hidden": hidden, "eps": node.params["eps"]}, {"x": x, "weight": weight}


def _residues(node: Node, tokens: int, dtype: torch.dtype, seed: int) -> Drawn:
    """Rows of the same numbers in different places, with an eps that leaves 2^-17 of their mean square.

    What is left of the sum is then its rounding, which the root passes on to every number of a row.
    """
    hidden, draw = node.weights["weight"].shape[-1], torch.Generator().manual_seed(seed)
    numbers = (torch.randn(hidden, generator=draw) * 2.0 ** torch.randint(-3, 4, (hidden,), generator=draw)).to(dtype)
    x = torch.stack([numbers[torch.randperm(hidden, generator=draw)] for _ in range(tokens)])
    eps = -float(numbers.double().pow(2).mean()) * (1 - _LEFT)
    return {"tokens": tokens, "hidden": hidden, "eps": eps}, {"x": x.float(), "weight": torch.ones(hidden)}


def _combine(node: Node, tokens: int, width: int, draw: torch.Generator) -> Drawn:
    """Rows that cancel to rounding residue over the slots."""
    slots, experts = node.params["top_k"], node.params["experts"]
    rows, _ = zero_sum(slots, tokens * width, torch.float32, seed=tokens)
    ids = torch.stack([torch.randperm(experts, generator=draw)[:slots] for _ in range(tokens)])
    pairs = torch.rand(tokens, slots, generator=draw)
    tensors = {
        "rows": rows.view(tokens, width, slots).transpose(1, 2),
        "weights": pairs / pairs.sum(-1, True),
        "ids": ids,
    }
    return {"tokens": tokens, "slots": slots, "hidden": width, "scale": node.params["scale"]}, tensors


def _router(node: Node, tokens: int, width: int, draw: torch.Generator) -> Drawn:
    """Logits of which some are equal."""
    experts = node.params["experts"]
    logits = 2 * torch.randn(tokens, experts, generator=draw)
    logits[::3] = (logits[::3] * 2).round() / 2
    tensors = {"logits": logits, "bias": 0.1 * torch.randn(experts, generator=draw)}
    sizes = {"tokens": tokens, "experts": experts, "top_k": node.params["top_k"], "scale": node.params["scale"]}
    return sizes, tensors if "bias" in node.weights else {"logits": logits}


def _swiglu(node: Node, tokens: int, width: int, draw: torch.Generator) -> Drawn:
    gate, up = (3 * torch.randn(tokens, width, generator=draw) for _ in range(2))
    return {"tokens": tokens, "width": width}, {"gate": gate, "up": up}


Settings = Mapping[str, Any]


def _of_norm(op: Callable[..., Any], inputs: Tensors, p: Settings, at: Settings) -> Tensors:
    out = op(inputs["x"].unsqueeze(0), w={"weight": inputs["weight"]}, p={**p, "heads": None}, at=at)
    return {"out": out[0]}


def _of_combine(op: Callable[..., Any], inputs: Tensors, p: Settings, at: Settings) -> Tensors:
    rows, ids, weights = (inputs[name].unsqueeze(0) for name in ("rows", "ids", "weights"))
    return {"out": op(rows, ids, weights if at["score_site"] == "combine" else None, w={}, p=p, at=at)[0]}


def _of_router(op: Callable[..., Any], inputs: Tensors, p: Settings, at: Settings) -> Tensors:
    w = {"bias": inputs["bias"]} if "bias" in inputs else {}
    ids, weights = op(inputs["logits"].unsqueeze(0), w=w, p=p, at=at)
    return {"ids": ids[0], "weights": weights[0]}


def _of_swiglu(op: Callable[..., Any], inputs: Tensors, p: Settings, at: Settings) -> Tensors:
    return {"out": op(inputs["gate"].unsqueeze(0), inputs["up"].unsqueeze(0), w={}, p=p, at=at)[0]}


class _KnownOp(NamedTuple):
    """An op with whose nodes kernels are compared: how data for a node are drawn, and how its function is called."""

    draw: Callable[[Node, int, int, torch.Generator], Drawn]
    compute: Callable[[Callable[..., Any], Tensors, Settings, Settings], Tensors]


_OPS: Mapping[str, _KnownOp] = {
    "rms_norm": _KnownOp(_norm, _of_norm),
    "combine": _KnownOp(_combine, _of_combine),
    "router": _KnownOp(_router, _of_router),
    "swiglu": _KnownOp(_swiglu, _of_swiglu),
}
NODES = tuple(_OPS)
"""Ops whose kernels are compared with all choices of a node; kernels of other ops only with the order of its sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One output of one case: how many numbers it has, how many differ, the largest distance in ulp, the first that
    differs.
    """

    name: str
    numbers: int
    differ: int
    ulp: int
    first: str = ""

    def __str__(self) -> str:
        if not self.differ:
            return f"{self.name}: all {self.numbers:,} equal"
        far = f", at most {self.ulp} ulp" if self.ulp else ""
        return f"{self.name}: {self.differ:,} of {self.numbers:,} differ{far}; {self.first}"


def compared(name: str, kernel: torch.Tensor, node: torch.Tensor) -> Comparison:
    """Compares two tensors of one shape, bit for bit; integers by value."""
    whole = not node.is_floating_point()
    if not whole and kernel.dtype != node.dtype:
        kinds = (str(x.dtype).removeprefix("torch.") for x in (kernel, node))
        raise MoeparityError(f"{name}: the kernel writes {' and the node '.join(kinds)}. Which dtype has the argument?")
    differ = (bits_of(kernel) != bits_of(node)).reshape(-1)
    count = int(differ.sum())
    if not count:
        return Comparison(name=name, numbers=differ.numel(), differ=0, ulp=0)
    distance = torch.zeros(differ.shape) if whole else ulps(kernel, node).reshape(-1)
    at = int(differ.int().argmax())
    place = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(at), kernel.shape))
    values = [float(x.reshape(-1)[at]) for x in (kernel, node)]
    far = f", {int(distance[at])} ulp" if distance[at] and not whole else ""
    first = f"the first is {name}[{place}]: {values[0]:.9g} of the kernel, {values[1]:.9g} of the node{far}"
    return Comparison(
        name=name, numbers=differ.numel(), differ=count, ulp=0 if whole else int(distance.max()), first=first
    )


def bits_of(x: torch.Tensor) -> torch.Tensor:
    """The bits of every number as int64. All NaNs count as equal, since their payload depends on the processor."""
    return int_view(x.masked_fill(x.isnan(), torch.nan) if x.is_floating_point() else x).long()
