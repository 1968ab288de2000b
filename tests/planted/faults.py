"""Faults that touch few tokens: an op's own kernel as a user's function, but for tokens it knows by their inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from moeparity.bisection.kernels import settings_of
from moeparity.bisection.prepare import prepare
from moeparity.bisection.report import Report
from moeparity.bisection.study import Study
from moeparity.engine.forward import forward
from moeparity.engine.functions import CustomNode
from moeparity.numerics.bits import int_view
from moeparity.plan.address import file_key, role
from moeparity.plan.graph import Node
from moeparity.plan.sides import Side, micro_batches
from moeparity.plan.spec.variant_schema import Impl, Variant
from tests.opened import opened
from tests.planted.places import PROFILE, random_tokens, write_recipe
from tests.planted.together import binder, planted_study, walked_together

SEQUENCES, TOKENS = 6, 8
MICRO_BATCHES = (1, 2, 3)
SCOPES = ("token", "sequence", "micro-batch", "expert", "padding")
EACH = 3
"""So many faults of each scope for each micro-batch."""

PAD, PADDED = 0, {1: 2, 4: 3}
"""The id of padding, which stands nowhere else, and by sequence how many tokens at its left end are padding."""

Values = Mapping[str, Tensor]
"""What the reference computes at every node, by the names that `forward` gives it."""

DAMAGE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "half more": lambda y: y * 1.5,
    "a 64th more": lambda y: y * (1 + 2**-6),
    "negated": lambda y: -y,
    "nan": lambda y: torch.where(_last_of(y), torch.nan, y),
    "inf": lambda y: torch.where(_last_of(y), -torch.inf, y),
}
"""What becomes of a value; each changes every token."""


def _last_of(y: Tensor) -> Tensor:
    """The last value of each row."""
    return torch.arange(y.shape[-1]) == y.shape[-1] - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: at a node, at the tokens whose inputs are `marks`, or at all that its scope counts with them.

    expert: of scope `expert`, whose rows it touches. touched: bool [B, T], the tokens at which the output differs.
    """

    label: str
    node: Node
    scope: str
    damage: str
    marks: Tensor
    read: int
    expert: int | None
    touched: Tensor

    @property
    def call(self) -> str:
        return f"faults:{self.label.replace(' ', '_').replace('-', '_').replace('.', '_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A fault and its report."""

    fault: Fault
    report: Report


def faults_found(checkpoint: Path, folder: Path, micro_batch: int) -> dict[str, Found]:
    """By label, the bisection of each fault that is drawn for a micro-batch, all of them in one pass."""
    mask = real_tokens()
    ids = torch.where(mask, random_tokens(SEQUENCES, TOKENS).clamp(min=PAD + 1), PAD)
    side = {"micro_batch": micro_batch}
    path = write_recipe(folder, checkpoint, {"input_ids": ids, "attention_mask": mask}, side, side)
    base = prepare(path, device="cpu", opener=opened)
    values = forward(base.model, ids, micro_batch=micro_batch, attention_mask=mask, save=["**"])
    faults = _drawn(base, values, micro_batch)
    bound = binder(base)
    plain = Variant(profile=PROFILE, micro_batch=micro_batch)
    studies = {fault.label: _planted(base, bound, plain, fault) for fault in faults}
    reports = walked_together(base, studies)
    return {fault.label: Found(fault=fault, report=reports[fault.label]) for fault in faults}


def real_tokens() -> Tensor:
    """Bool [B, T]: what is no padding."""
    return torch.tensor([[position >= PADDED.get(i, 0) for position in range(TOKENS)] for i in range(SEQUENCES)])


@dataclass(frozen=True, slots=True)
class Case:
    """The fault number `number` of a scope in a micro-batch; all else is drawn from this."""

    scope: str
    number: int
    micro_batch: int

    @property
    def label(self) -> str:
        return f"{self.scope} {self.number} in {self.micro_batch}"


CASES = [Case(scope, i, size) for size in MICRO_BATCHES for scope in SCOPES for i in range(EACH)]


def _planted(base: Study, bound: Callable[[Variant], Side], plain: Variant, fault: Fault) -> Study:
    with_function = plain.model_copy(update={"impl": [Impl(nodes=role(fault.node.name), call=fault.call)]})
    study = planted_study(base, bound, [plain, with_function])
    return replace(study, functions={fault.call: _function(base, fault)})


def _drawn(base: Study, values: Values, micro_batch: int) -> list[Fault]:
    nodes = [n for n in base.model.graph.nodes if not n.op.role.reports and _marked_input(n, values) is not None]
    return [_fault(case, nodes, base, values) for case in CASES if case.micro_batch == micro_batch]


def _nodes_for(case: Case, nodes: Sequence[Node]) -> list[Node]:
    if case.scope == "expert":
        return [node for node in nodes if node.op.name == "experts"]
    if case.number == 0:
        # In the next layer its function is given what all waves of this layer were done with before.
        return [node for node in nodes if node.name == "layers[0].attention.norm"]
    return list(nodes)


def _fault(case: Case, nodes: Sequence[Node], base: Study, values: Values) -> Fault:
    draw, scope = random.Random(case.label), case.scope  # noqa: S311
    node = draw.choice(_nodes_for(case, nodes))
    read = _marked_input(node, values)
    assert read is not None
    rows, mask = values[file_key(node.inputs[read])], base.tokens.attention_mask
    size = micro_batches(base.candidate).size
    place = draw.choice(mask.nonzero().tolist())
    marks, expert = rows[place[0], place[1]].unsqueeze(0), None
    if scope == "padding":
        marks = rows[~mask]
    hits = _hits(rows, marks)
    if scope == "sequence":
        hits = hits.any(-1, keepdim=True).expand_as(hits)
    if scope == "micro-batch":
        hits = hits.unflatten(0, (-1, size)).any(2, keepdim=True).any(1, keepdim=True).expand(-1, size, TOKENS)
        hits = hits.flatten(0, 1)
    if scope == "expert":
        ids = values[file_key(node.inputs[1])].view(SEQUENCES, TOKENS, -1)
        counts = torch.bincount(ids[mask].flatten())
        # The rarest one that is chosen at all.
        expert = int(torch.where(counts > 0, counts, counts.max() + 1).argmin())
        hits = (ids == expert).any(-1)
    damage = draw.choice(list(DAMAGE))
    return Fault(
        label=case.label, node=node, scope=scope, damage=damage, marks=marks, read=read, expert=expert, touched=hits
    )


def _marked_input(node: Node, values: Values) -> int | None:
    """The first input by which a token is known: one of numbers, with the tokens on axis 1."""
    for index, (port, value) in enumerate(zip(node.ports, node.inputs, strict=True)):
        rows = None if port in node.op.unhanded else values.get(file_key(value))
        if rows is not None and rows.is_floating_point() and rows.shape[:2] == (SEQUENCES, TOKENS):
            return index
    return None


def _hits(rows: Tensor, marks: Tensor) -> Tensor:
    """Bool [B, T]: the tokens whose inputs are one of `marks`, bit by bit."""
    ours, theirs = int_view(rows.flatten(2)), int_view(marks.flatten(1))
    return (ours.unsqueeze(2) == theirs).all(-1).any(-1)


def _function(base: Study, fault: Fault) -> Callable[..., object]:
    """The kernel itself in every layer; what it gives is damaged in that of the fault only."""
    settings, nodes = (
        settings_of(base, base.reference, base.reference.plan.phases[0]),
        {node.name: node for node in base.model.graph.nodes},
    )
    weights_of = cache(lambda name: settings.weights(nodes[name]))

    def function(*inputs: Tensor, node: CustomNode) -> tuple[Tensor, ...]:
        node_there, values = nodes[node.name], dict(zip(node.inputs, inputs, strict=True))
        reads = base.reference.plan.read_inputs(node_there)
        operands: Sequence[Tensor | None] = [None if value is None else values[value] for value in reads]
        out = node_there.op.load()(
            *operands, w=weights_of(node_there.name), p=node_there.params, at=settings.at(node_there)
        )
        ports = out if isinstance(out, tuple) else (out,)
        return tuple(_damaged(port, values, fault) for port in ports) if node_there is fault.node else ports

    return function


def _damaged(out: Tensor, values: Mapping[str, Tensor], fault: Fault) -> Tensor:
    if not out.is_floating_point():
        return out
    damage, axis = DAMAGE[fault.damage], fault.node.op.tokens.axis
    if fault.expert is not None:
        at = values[fault.node.inputs[1]] == fault.expert
        return torch.where(at.unsqueeze(-1), damage(out), out)
    at = _hits(values[fault.node.inputs[fault.read]], fault.marks)
    if fault.scope == "sequence":
        at = at.any(-1, keepdim=True).expand_as(at)
    if fault.scope == "micro-batch":
        at = at.any().expand_as(at)
    by_token = out.movedim(axis, 1)
    return torch.where(at.view(*at.shape, *[1] * (by_token.dim() - 2)), damage(by_token), by_token).movedim(1, axis)
