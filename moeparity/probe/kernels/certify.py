"""`moeparity certify KERNEL.yaml --plan ... --against NODE`: every bit of a kernel's outputs, over shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moeparity.errors import MoeparityError
from moeparity.plan.bound import BoundGraph
from moeparity.plan.engine_profile import UNKNOWN
from moeparity.plan.graph import Node
from moeparity.probe.calls import Setup
from moeparity.probe.find import probe
from moeparity.probe.kernels.alternatives import Cases, Change, Fit, Tried, changes, fit, tried
from moeparity.probe.kernels.callable import function_of
from moeparity.probe.kernels.held import Case, Comparison, Held, Tensors, cases_of, compared, held_to
from moeparity.probe.kernels.launch import Kernel

TOKENS = (1, 5, 64)
WIDTH = 512
PROBED = 2048
"""Leaves up to which a kernel that has other bits is probed for its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """A kernel against a node: each case with its comparisons, or `race`; then what else would give its bits.

    stated: the node's values in effect. unclaimed: those that no profile speaks of. tried: other legal values, on the
    largest case. gives: the legal changes under which the node has the kernel's bits of some outputs, of all if any
    do; empty where none was found.
    """

    held: Held
    race: str
    cases: tuple[tuple[Case, tuple[Comparison, ...]], ...] = ()
    tried: Tried = field(default_factory=Tried)
    gives: Mapping[str, Fit] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every bit is equal, whichever threads go first."""
        return not self.race and not any(one.differ for _, comparisons in self.cases for one in comparisons)

    @property
    def unclaimed(self) -> dict[str, str]:
        """Values in effect of which no profile says anything."""
        held = self.held
        names = held.active(held.choices).keys() & {a.name for a in held.node.attributes}
        settings = {name: held.plan.settings[held.node.name, name] for name in sorted(names)}
        return {name: str(one.value) for name, one in settings.items() if (one.level or UNKNOWN) == UNKNOWN}


def certify_node(kernel: Kernel, plan: BoundGraph, node: Node, tokens: Sequence[int], width: int | None) -> NodeVerdict:
    """Hold a kernel to a node on data of every number of tokens. Raises MoeparityError."""
    held = held_to(kernel, plan, node)
    cases = cases_of(kernel, node, tokens or TOKENS, width or WIDTH)
    # Another block may be another branch of the kernel.
    blocks = {kernel.threads(case.sizes): case for case in reversed(cases)}
    race = next(filter(None, (kernel.race(case.tensors, case.sizes) for case in blocks.values())), "")
    if race:
        return NodeVerdict(held=held, race=race)
    written = [kernel(case.tensors, case.sizes) for case in cases]
    rows = tuple((case, _compared(held, case, out)) for case, out in zip(cases, written, strict=True))
    verdict = NodeVerdict(held=held, race="", cases=rows)
    threads = kernel.threads(cases[-1].sizes)
    listed = changes(held, threads, ())
    if verdict.holds:
        return replace(verdict, tried=tried(held, cases[-1], listed))
    # A case in which much differs tells most.
    both = [pair for _, pair in sorted(zip(rows, zip(cases, written, strict=True), strict=True), key=_agreement)]
    gives = _fits(held, both, listed)
    orders = () if gives else _probed(kernel, cases[-1])
    return replace(verdict, gives=_fits(held, both, changes(held, threads, orders)) if orders else gives)


def _fits(held: Held, cases: Cases, listed: Sequence[Change]) -> dict[str, Fit]:
    """What gives all outputs, else what gives each that it can."""
    every = tuple(cases[0][1])
    whole = fit(held, cases, listed)
    if whole is not None or len(every) == 1:
        return {} if whole is None else {" and ".join(every): whole}
    parts = {name: fit(held, [(case, {name: out[name]}) for case, out in cases], listed) for name in every}
    return {name: one for name, one in parts.items() if one is not None and one.change}


def _agreement(row: tuple[tuple[Case, tuple[Comparison, ...]], object]) -> int:
    return -sum(one.differ for one in row[0][1])


def _compared(held: Held, case: Case, out: Tensors) -> tuple[Comparison, ...]:
    outputs = held.outputs(case, held.choices)
    return tuple(compared(name, out[name], value) for name, value in outputs.items())


def _probed(kernel: Kernel, case: Case) -> tuple[str, ...]:
    """Orders in which the kernel adds, found by calling it; none where it adds nothing up, or too much."""
    leaves = {"rms_norm": "hidden", "combine": "slots"}.get(kernel.file.computes)
    if leaves is None or case.sizes[leaves] > PROBED:
        return ()
    function = function_of(kernel, str(kernel.path))
    setup = Setup(n=int(case.sizes[leaves]), dtype=kernel.dtype, m=64, width=8)
    try:
        trees = probe(function, [setup]).trees.values()
    except MoeparityError:
        return ()
    return tuple(str(tree.order) for tree in trees if tree.order is not None)
