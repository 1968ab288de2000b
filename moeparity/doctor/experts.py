"""Experts whose tokens have most of a difference: where one expert is wrong, it shows at the tokens that it gets."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from moeparity.doctor.hypotheses import OF_WEIGHTS, STALE_EXPERT, Hypothesis, Plant, can_have, stale_expert
from moeparity.doctor.numbers import FACTORS, Family
from moeparity.engine.view import NodeView
from moeparity.ops.attribute import Value
from moeparity.plan.faults.apply import experts_of
from moeparity.plan.faults.plant import domain
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node

SUSPECTS = 4
"""This many experts are looked at: an error goes on to later layers and tokens, so the right one need not lead."""
_OF_ANOTHER, _SCALED, _EXCHANGED = "expert-of-another-expert", "expert-scaled", "experts-exchanged"
_FAULTS = ("expert-zeroed", "expert-gate-and-up-exchanged", _OF_ANOTHER, "expert-of-another-layer")
_OF_ALL, _DOWN, _GATE_AND_UP = "", "down", "gate and up"
_PENALTY = 5.0
"""Tokens: an expert that gets fewer is hardly a suspect."""
_MOST = 32
"""This many experts are tried in another's place, and this many layers."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An expert of a node."""

    node: Node
    expert: int

    @property
    def name(self) -> str:
        """As in `expert 3 of layers[1].moe.experts`."""
        return f"expert {self.expert} of {self.node.name}"


@dataclass(slots=True)
class Chosen:
    """An observer: the experts that a walker's routers pick, int64 [waves of [n, T, top_k]] by the router's name."""

    walker: Hashable
    ids: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    def see(self, view: NodeView) -> None:
        """Called by the engine once per node and wave."""
        if view.node.op.role.routes and view.ran(self.walker):
            self.ids.setdefault(view.node.name, {})[view.wave[0]] = view.tensor(self.walker).cpu()

    def of(self, router: str) -> Tensor:
        """int64 [B, T, top_k]."""
        waves = self.ids[router]
        return torch.cat([waves[first] for first in sorted(waves)])


def suspects(graph: Graph, chosen: Chosen, d: Tensor, scored: tuple[Tensor, Tensor]) -> list[Suspect]:
    """The experts at whose tokens a difference d, fp64 [N] in nats, is larger than at other tokens; those first whose
    tokens are more off than the other experts of these tokens explain. scored: the sequence and the position of each of
    the N tokens, int64.

    The ranks of |d| are fitted, with a penalty, by which experts each token gets: in ranks a token that is far off
    counts as one, and an expert that is often chosen beside a wrong one does not pass for it.
    """
    if not bool(d.any()):
        return []
    sequence, position = scored
    every: list[Suspect] = []
    columns: list[Tensor] = []
    for router, node in _routed(graph):
        # A token is predicted by the position before it.
        ids = chosen.of(router)[sequence, position - 1]
        columns.append(torch.nn.functional.one_hot(ids, experts_of(node)).sum(1).clamp(max=1).double())
        every += [Suspect(node, expert) for expert in range(experts_of(node))]
    if not every:
        return []
    rank = torch.unique(d.abs(), return_inverse=True)[1].double()
    above = _fitted(torch.cat(columns, 1), rank / rank.max()).tolist()
    order = sorted(range(len(every)), key=lambda index: -above[index])
    return [every[index] for index in order[:SUSPECTS] if above[index] > 0]


def _fitted(x: Tensor, y: Tensor) -> Tensor:
    """Ridge regression of y [N] on the columns of x [N, K], both without their means: fp64 [K]."""
    x, y = x - x.mean(0), y - y.mean()
    if x.shape[1] > x.shape[0]:
        return x.T @ _solved(x @ x.T, y)
    return _solved(x.T @ x, x.T @ y)


def _solved(gram: Tensor, y: Tensor) -> Tensor:
    solution: Tensor = torch.linalg.solve(gram + _PENALTY * torch.eye(len(gram), dtype=gram.dtype), y)
    return solution


def _routed(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Each router with the experts that it sends tokens to."""
    router_of = {value: node.name for node in graph.nodes if node.op.role.routes for value in node.values}
    for node in graph.nodes:
        router = next((router_of[value] for value in node.inputs if value in router_of), None)
        if router is not None and experts_of(node):
            yield router, node


def mistakes(graph: Graph, of: list[Suspect], previous: Path | None) -> Iterator[Hypothesis]:
    """What may be wrong with each of these experts, but for a number. previous: the checkpoint before the update."""
    for suspect in of:
        if previous is not None and can_have(graph, suspect.node, STALE_EXPERT):
            yield stale_expert(suspect.node, suspect.expert, previous)
        for name in _FAULTS:
            for values in _values(graph, suspect, name):
                yield _planted(name, suspect.node, {"expert": suspect.expert, **values})
    for first, second in combinations(of, 2):
        if first.node is second.node:
            yield from _exchanged(first.node, first.expert, second.expert)


def exchanges(of: Hypothesis, node: Node) -> Iterator[Hypothesis]:
    """Where an expert seems to have another one's weights, both may be exchanged: the other may have few tokens."""
    (plant,) = of.plants
    if plant.fault.name == _OF_ANOTHER:
        values = dict(plant.values)
        yield from _exchanged(node, int(values["expert"]), int(values["other"]))


def _exchanged(node: Node, *experts: int) -> Iterator[Hypothesis]:
    low, high = sorted(experts)
    for part in (_OF_ALL, _DOWN):
        yield _planted(_EXCHANGED, node, {"expert": low, "other": high, **_part(part)})


def scaled(of: list[Suspect]) -> Iterator[Family]:
    """A part of each of these experts multiplied by a number; up alone comes to the same as down."""
    for suspect in of:
        for part in (_DOWN, _GATE_AND_UP):
            yield Family(
                fault=shipped_faults()[_SCALED],
                nodes=(suspect.node.name,),
                free="factor",
                nominal=1.0,
                grid=FACTORS,
                of=f"{part} of {suspect.name}",
                set_values=(("expert", suspect.expert), *_part(part).items()),
            )


def _part(part: str) -> dict[str, Value]:
    return {"part": part} if part else {}


def _values(graph: Graph, suspect: Suspect, name: str) -> Iterator[Mapping[str, Value]]:
    """What is open in a fault beside the expert: nothing, another expert, another layer; the nearest first."""
    fault = shipped_faults()[name]
    value = next((value for value in fault.free if value in {"other", "layer"}), None)
    if value is None:
        yield {}
        return
    itself = suspect.expert if value == "other" else suspect.node.layer
    choices = [int(choice) for choice in domain(graph, suspect.node, fault.free[value]) or () if choice != itself]
    nearest = sorted(choices, key=lambda choice: abs(choice - (itself or 0)))
    yield from ({value: choice} for choice in nearest[:_MOST])


def _planted(name: str, node: Node, values: dict[str, Value]) -> Hypothesis:
    fault = shipped_faults()[name]
    defaults = {value: free.default for value, free in fault.free.items()}
    says = fault.spec.says.format_map({**defaults, **values})
    stated = ", ".join(f"{key}={value}" for key, value in values.items())
    return Hypothesis(
        name=f"{name}({stated}) of {node.name}",
        says=f"computes as if {says}, at {node.name}",
        change=OF_WEIGHTS,
        plants=(Plant(node=node.name, fault=fault, values=tuple(values.items())),),
        plainness=1,
    )
