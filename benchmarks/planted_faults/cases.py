"""Cases by seed: which model, tokens and micro-batches, what is planted where, and what benign goes on around it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.planted_faults import catalogue
from benchmarks.planted_faults.catalogue import FAULTS, FUNCTIONS, NOISE, OPS, REGIONS, REGIONS_OF, SEMANTICS, Fault
from benchmarks.planted_faults.conditions import Scene

BATCHES = ((8, 4, 4), (9, 3, 3), (12, 3, 3), (10, 2, 2), (7, 2, 2), (11, 4, 4), (12, 2, 3), (12, 3, 2), (10, 4, 2))
"""Sequences, and the micro-batches of the reference and of the candidate: 2 to 6 of them."""
SHORT = ((7, 2, 2), (11, 4, 4), (10, 4, 4), (8, 3, 3))
"""Those whose last micro-batch is smaller."""
EQUAL = tuple(batches for batches in BATCHES if batches[1] == batches[2])


SEMANTIC_WORDS = frozenset({"eps", "offset", "renormalize_eps", "temperature"})


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function on the candidate's side: the nodes it replaces, and Python text that makes it.

    answers: the choices that give its bits, as `node:attribute=value`, all of them together; none where no word does.
    faulty: False for a function that computes what its node does.
    """

    nodes: tuple[str, ...]
    text: str
    answers: tuple[str, ...] = ()
    faulty: bool = True

    @property
    def node(self) -> str:
        """The node that it closes."""
        return self.nodes[-1]

    @property
    def is_another(self) -> bool:
        """Whether it computes another function than its nodes, and not the same with other roundings or orders."""
        words = {word.rpartition(":")[2].partition("=")[0] for word in self.answers}
        return self.faulty and (not words or bool(words & SEMANTIC_WORDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One case, and what is true of it by its planting.

    benign: settings of the candidate that nobody is to blame for; semantic: settings that make another model of it.
    offset: two nodes whose faults cancel. unsteady: a node whose function is not deterministic. poisoned: whether NaN
    or an infinity is planted. padded: whether padded tokens only are touched.
    """

    seed: int
    kind: str
    model: str
    sequences: int
    length: int
    batches: tuple[int, int]
    padding: str
    functions: tuple[Function, ...] = ()
    benign: Mapping[str, Any] = field(default_factory=dict)
    semantic: Mapping[str, Any] = field(default_factory=dict)
    offset: tuple[str, str] | None = None
    unsteady: str = ""
    poisoned: bool = False
    padded: bool = False

    @property
    def planted(self) -> frozenset[str]:
        """The nodes at which anything differs by intent."""
        settings = {address.partition(":")[0] for address in (*self.benign, *self.semantic)}
        return frozenset(settings | {function.node for function in self.functions if function.faulty})


@dataclass(slots=True)
class Draft:
    """What a kind of case draws from: random numbers, a scene, and what it has planted so far."""

    rng: random.Random
    scene: Scene
    functions: list[Function] = field(default_factory=list)
    semantic: dict[str, Any] = field(default_factory=dict)
    legal: dict[str, Any] = field(default_factory=dict)
    offset: tuple[str, str] | None = None
    unsteady: str = ""

    @property
    def model(self) -> str:
        """The small checkpoint's name."""
        return self.scene.model

    def nodes(self, *ops: str) -> list[tuple[str, str]]:
        """Nodes of these ops that nothing replaces yet, each with its op, in the graph's order."""
        used_nodes = {node for function in self.functions for node in function.nodes}
        return [(name, op) for name, op in self.scene.nodes if op in ops and name not in used_nodes]

    def fault(self, sort: catalogue.Sort, ops: Sequence[str] = ()) -> tuple[str, str, Fault]:
        """A node that a fault of this sort fits, its op, and the fault with its numbers."""
        fitting: dict[str, list[Fault]] = {}
        for op, faults in FAULTS[sort].items():
            fitting_faults = [fault for fault in faults if not fault.models or self.model in fault.models]
            if fitting_faults and op in OPS[self.model] and (not ops or op in ops) and self.nodes(op):
                fitting[op] = fitting_faults
        op = self.rng.choice([*fitting])
        fault = catalogue.filled(self.rng.choice(fitting[op]), catalogue.numbers(self.rng))
        return self.rng.choice(self.nodes(op))[0], op, fault

    def plant(self, sort: catalogue.Sort, ops: Sequence[str] = ()) -> None:
        """One node whose function has a fault of this sort; sometimes clean functions run in its other layers."""
        name, op, fault = self.fault(sort, ops)
        self.functions.append(Function((name,), call(FUNCTIONS[op], fault.keywords), words(name, fault)))
        self.beside(name, op)

    def beside(self, name: str, op: str) -> None:
        """In every second case clean functions in place of the same node of other layers."""
        if self.rng.random() < 0.5:
            others = [node for node, _ in self.nodes(op) if _role(node) == _role(name) and node != name]
            self.functions += [Function((node,), call(FUNCTIONS[op], {}), faulty=False) for node in others]

    def region(self, sorts: Sequence[catalogue.Sort]) -> None:
        """A region with a fault in one of its nodes."""
        name = self.rng.choice([name for name in REGIONS_OF[self.model] if self.scene.regions(REGIONS[name])])
        nodes = self.rng.choice(self.scene.regions(REGIONS[name]))
        of = {node: op for node in nodes for part, op in REGIONS[name] if _tail(node) == part}
        fitting = [
            (node, fault)
            for sort in sorts
            for node, op in of.items()
            for fault in FAULTS[sort].get(op, ())
            if not fault.models or self.model in fault.models
        ]
        node, fault = self.rng.choice(fitting)
        fault = catalogue.filled(fault, catalogue.numbers(self.rng))
        self.functions.append(Function(tuple(nodes), call(name, {_tail(node): fault.keywords}), words(node, fault)))

    def conditional(self, condition: Callable[[str], str | None]) -> None:
        """One node that is faulty for the tokens that a condition, made from the values it is given, means.

        In every second case clean functions in place of all norms inside the layers.
        """
        name, op, fault = self.fault(self.rng.choice(("unknown", "number")), CONDITIONAL)
        where = condition(name)
        if where is None:
            raise Unfit(f"no tokens are set apart at {name}")
        clean, faulty = call(FUNCTIONS[op], {}), call(FUNCTIONS[op], fault.keywords)
        self.functions.append(Function((name,), f"partial(spoilt.only, where={where}, clean={clean}, faulty={faulty})"))
        self.beside(name, op)
        if self.rng.random() < 0.5:
            self.functions += [
                Function((node,), call("norm", {}), faulty=False) for node, _ in self.nodes("rms_norm") if _role(node)
            ]


class Unfit(Exception):  # noqa: N818 - a draw, not an error
    """A draw that does not fit, to be drawn again."""


CONDITIONAL = ("rms_norm", "linear", "add", "combine", "swiglu", "experts")
"""Ops whose first input and one output have batch and tokens in front."""


def call(name: str, keywords: Mapping[str, Any]) -> str:
    """Python text that makes a function of `plain`, or of `regions`, with these keywords."""
    function = f"{'regions' if name in REGIONS else 'plain'}.{name}"
    if not keywords:
        return function
    return f"partial({function}, {', '.join(f'{key}={value!r}' for key, value in keywords.items())})"


def words(node: str, fault: Fault) -> tuple[str, ...]:
    """moeparity's words for a fault at a node."""
    return tuple(word if ":" in word else f"{node}:{word}" for word in fault.words)


def _tail(node: str) -> str:
    return node.rpartition(".")[2]


def _role(node: str) -> str:
    return node.partition("].")[2]


def noise(draft: Draft) -> dict[str, Any]:
    """Legal roundings and orders at up to one node before what is planted and up to two behind it."""
    names = [name for name, _ in draft.scene.nodes]
    used_nodes = {node for function in draft.functions for node in function.nodes}
    used_nodes |= {address.partition(":")[0] for address in draft.semantic}
    planted = [names.index(name) for name in used_nodes] or [len(names) // 2]
    free = [(i, name, op) for i, (name, op) in enumerate(draft.scene.nodes) if op in NOISE and name not in used_nodes]
    before = [place for place in free if place[0] < min(planted)]
    behind = [place for place in free if place[0] > max(planted)]
    chosen = draft.rng.sample(before, min(len(before), draft.rng.choice((0, 0, 1))))
    chosen += draft.rng.sample(behind, min(len(behind), draft.rng.choice((0, 1, 2))))
    settings = {}
    for _, name, op in chosen:
        legal = [choice for choice in NOISE[op] if draft.scene.differs(name, *choice)]
        if legal:
            attribute, value = draft.rng.choice(legal)
            settings[f"{name}:{attribute}"] = value
    return settings


def semantics(draft: Draft) -> None:
    """One choice that makes another model of it, set without any function."""
    fitting = [
        (name, attribute, value)
        for op, choices in SEMANTICS.items()
        for name, _ in draft.nodes(op)
        for attribute, value in choices
        if draft.scene.active(name, attribute)
    ]
    name, attribute, value = draft.rng.choice(fitting)
    draft.semantic[f"{name}:{attribute}"] = catalogue.numbers(draft.rng)[value]
