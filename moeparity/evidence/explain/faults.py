"""Faults as choices of a search: which are tried, what each is called, and the plan that has it.

A fault is a choice at a place of its own. The place belongs to the node: `fault expert-of-another-expert(expert=3,
other=5)` with the value `planted`. If the fault leaves a number open, the number is the value, as of `fault
expert-scaled(expert=3)`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Final

import torch

from moeparity.errors import SpecError
from moeparity.numerics.bits import int_view
from moeparity.ops.attribute import Value
from moeparity.plan.bound import Plan
from moeparity.plan.faults.apply import exchanged_experts, experts_of
from moeparity.plan.faults.fault import Fault, Planted, planted, written
from moeparity.plan.faults.plant import candidates, domain, rewritten, start
from moeparity.plan.faults.reader import shipped_faults
from moeparity.plan.graph import Graph, Node
from moeparity.plan.setting import Place

FAULT: Final = "fault "
PLANTED: Final = "planted"
ORDERED: Final = "experts-permuted"
"""The fault whose order is worked out, expert by expert."""
MOST: Final = 256
"""Of one fault at one node so many values are tried."""
SUSPECTS: Final = 2
"""Of so many experts, at most, it is tried what is said of one, beside the likeliest of several."""
NEAR: Final = 0.25
"""The share of nearer rows behind which a row is looked for that shows how far off rounding brings one."""
FAR_OFF: Final = 16.0
"""What is so many times as far off, in squares, as the row behind so many nearer ones is not so by rounding."""


def is_fault(place: Place) -> bool:
    """Whether a choice is a fault."""
    return place[1].startswith(FAULT)


def fault_places(
    graph: Graph,
    node: Node,
    suspects: Sequence[int],
    solved_for: Collection[Place] = (),
    widths: Collection[int] = (),
    checkpoints: Sequence[str] = (),
) -> Iterator[tuple[Place, float | None]]:
    """The faults that may be tried at a node, each with the number that it leaves open (None: it leaves none).

    suspects: the experts that may be the cause; a fault of one expert is tried for these. solved_for: numbers that are
    solved for as parameters; a fault that stands for one of these is not tried again. widths: of what was recorded.
    checkpoints: folders whose weights may be here.
    """
    for fault in candidates(graph, node):
        parameters = (free.parameter for free in fault.free.values() if free.parameter is not None)
        if not any((node.name, name.rpartition(".")[2]) in solved_for for name in parameters):
            yield from islice(_places(graph, node, fault, suspects, widths, checkpoints), MOST)


def _places(
    graph: Graph,
    node: Node,
    fault: Fault,
    suspects: Sequence[int],
    widths: Collection[int],
    checkpoints: Sequence[str],
) -> Iterator[tuple[Place, float | None]]:
    """A fault with all values to be tried of what it leaves open, numbers aside."""
    domains: dict[str, Sequence[Value]] = {}
    number: float | None = None
    for name, free in fault.free.items():
        options = domain(graph, node, free)
        if options is None:
            number = start(node, free)
        elif free.type == "expert" and name == _first_expert(fault):
            domains[name] = suspects
        elif free.type == "checkpoint":
            domains[name] = checkpoints
        else:
            domains[name] = tuple(dict.fromkeys((*options, *widths))) if free.type == "width" else options
    for values in (dict(zip(domains, each, strict=True)) for each in product(*domains.values())):
        pair = exchanged_experts(fault, values)
        # Two that have each other's weights are named once.
        if pair is None or pair[1] not in suspects[: suspects.index(pair[0]) + 1]:
            yield place_of(node, fault, values), number


def _first_expert(fault: Fault) -> str | None:
    """The first expert that a fault names, which is the one with the wrong rows."""
    return next((name for name, free in fault.free.items() if free.type == "expert"), None)


def place_of(node: Node, fault: Fault, values: Mapping[str, Value]) -> Place:
    """The place of a fault with these values at a node."""
    text = ", ".join(f"{name}={written(value)}" for name, value in values.items() if value != fault.free[name].default)
    return node.name, f"{FAULT}{fault.name}({text})" if text else f"{FAULT}{fault.name}"


def planted_at(place: Place, value: Value) -> Planted:
    """The fault that a choice stands for. Raises ValueError for values that do not fit it."""
    match = re.fullmatch(rf"{FAULT}([a-z0-9-]+)(?:\((.*)\))?", place[1])
    assert match is not None, "a fault's place is made by `place_of`"
    fault = shipped_faults()[match[1]]
    pairs = (pair.partition("=") for pair in (match[2] or "").split(", ") if pair)
    texts = {name: text for name, _, text in pairs}
    values: dict[str, Value] = {
        name: text if fault.free[name].type in {"order", "checkpoint", "part"} else int(text)
        for name, text in texts.items()
    }
    numbers = [name for name, free in fault.free.items() if free.type == "number"]
    return planted(fault, values | ({numbers[0]: value} if numbers else {}))


def with_faults(plan: Plan, faults: Mapping[Place, Value]) -> Plan:
    """A plan with these faults. Faults that take weights from elsewhere come first, so that the others change the
    weights that result.

    Raises SpecError if a fault can't stand there, or if an op refuses the result.
    """
    nodes = {node.name: node for node in plan.graph.nodes}
    plants = [(place, planted_at(place, value)) for place, value in faults.items()]
    for place, plant in sorted(plants, key=lambda pair: (not pair[1].takes_weights, *pair[0])):
        try:
            plan = rewritten(plan, nodes[place[0]], plant.fault, dict(plant.values))
        except (ValueError, IndexError) as error:
            raise SpecError(f"{place[0]}: {error}") from None
    return plan


def in_words(nodes: Sequence[Node], place: Place, value: Value) -> str | None:
    """What a choice means where it is a fault, or a number that a fault puts in place of a parameter; else None."""
    if is_fault(place):
        return planted_at(place, value).in_words
    node = next(node for node in nodes if node.name == place[0])
    for fault in shipped_faults().values():
        by_key = {name.rpartition(".")[2]: edit.value for name, edit in fault.spec.rewrite.params.items()}
        reference = by_key.get(place[1])
        if node.op.name in fault.spec.sits.op and isinstance(reference, str) and len(fault.free) == 1:
            return planted(fault, {reference[1:]: value}).in_words if _is_number(value) else None
    return None


def _is_number(value: Value) -> bool:
    return not isinstance(value, str)


def suspects_of(recorded: torch.Tensor, base: torch.Tensor, ids: torch.Tensor) -> tuple[int, ...]:
    """The experts that may be the cause if some tokens are much further off than others, the likeliest first. ids
    [B, T, K]; values [B, T, K, H], a row for each slot, or a row for each token.

    Much further off are those that rounding does not bring so far, and where some rows are equal also all others: a
    wrong expert that most tokens go to leaves few rows near.
    """
    is_comparable = recorded.shape == base.shape and recorded.numel() > 0
    if not is_comparable or recorded.shape[:-1] not in (ids.shape, ids.shape[:2]):
        return ()
    off = _how_far_off(recorded.double(), base.double())
    equal = [torch.zeros(())] if bool((off == 0).any()) else []
    bounds = (FAR_OFF * off.flatten().quantile(NEAR), *equal)
    return tuple(dict.fromkeys(expert for bound in bounds for expert in _suspects_behind(off, off > bound, ids)))


def _suspects_behind(off: torch.Tensor, far: torch.Tensor, ids: torch.Tensor) -> tuple[int, ...]:
    """The experts of which all tokens are far off. If some of these can alone be the cause of every such token, only
    they are suspected; else the likeliest, and those that have all such tokens that it has not.
    """
    if off.shape != ids.shape:
        off, far = (x[..., None].expand(ids.shape) for x in (off, far))
    experts = [e for e in sorted(_experts_in(ids)) if bool(far[ids == e].all())]
    touched = {e: int((far & (ids == e)).sum()) for e in experts}
    likeliest = sorted(experts, key=lambda e: (-touched[e], -float(off[ids == e].min())))
    alone = [e for e in likeliest if bool((ids == e).any(-1)[far.any(-1)].all())]
    if alone or not likeliest:
        return tuple(alone)[:SUSPECTS]
    others = far.any(-1) & ~(ids == likeliest[0]).any(-1)
    beside = [e for e in likeliest if bool((ids == e).any(-1)[others].all())]
    return (likeliest[0], *(beside or likeliest[1:])[:SUSPECTS])


def _how_far_off(recorded: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The squared distance of each row as a share of both rows; 2 where one is not finite."""
    distance = (recorded - base).square().sum(-1)
    share = distance / (recorded.square().sum(-1) + base.square().sum(-1)).clamp_min(torch.finfo(torch.float64).tiny)
    return share.nan_to_num(2.0, 2.0)


def _experts_in(ids: torch.Tensor) -> frozenset[int]:
    return frozenset(ids.flatten().tolist())


def order_of(recorded: torch.Tensor, by_expert: Mapping[int, torch.Tensor], ids: torch.Tensor) -> str | None:
    """The order of experts in which every row is that of the expert in its place; None if there is no such order.

    `by_expert`: the rows that would result if every expert had the weights of this one. Experts that no token goes to
    keep their place.
    """
    places: dict[int, int] = {}
    for expert in sorted(_experts_in(ids)):
        rows = ids == expert
        matches = (
            source for source, x in by_expert.items() if torch.equal(int_view(recorded[rows]), int_view(x[rows]))
        )
        source = next(matches, None)
        if source is None:
            return None
        places[expert] = source
    return " ".join(str(places.get(expert, expert)) for expert in sorted(by_expert))


def every_expert(node: Node, expert: int) -> Place:
    """The place of the fault that gives all experts of a node the weights of one."""
    return ordered(node, " ".join([str(expert)] * experts_of(node)))


def ordered(node: Node, order: str) -> Place:
    """The place of the fault that puts a node's experts in another order."""
    return place_of(node, shipped_faults()[ORDERED], {"order": order})
