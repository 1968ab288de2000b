"""`moeparity kernel certify KERNEL.yaml --plan ... --against NODE`: compares every bit of a kernel's outputs, over
shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from moeparity.errors import MoeparityError
from moeparity.plan.bound import Plan
from moeparity.plan.graph import Node
from moeparity.plan.rule import UNKNOWN
from moeparity.probe.calls import Setup
from moeparity.probe.find import probe
from moeparity.probe.kernels.alternatives import Cases, Change, Fit, Tried, changes, fit, tried
from moeparity.probe.kernels.callable import function_of
from moeparity.probe.kernels.launch import Kernel
from moeparity.probe.kernels.node import Case, Comparison, NodeRun, Tensors, cases_of, compared, held_to

TOKENS = (1, 5, 64)
WIDTH = 512
PROBED = 2048
"""A kernel with other bits is probed for its order if it has at most this many leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """The comparison of a kernel with a node: each case with its comparisons, or `race`; then what else gives its bits.

    unclaimed: values in effect of which no profile speaks. tried: other legal values, on the largest case. gives: by
    output, the legal changes under which the node has the kernel's bits; if some changes give all outputs, these; empty
    if none was found.
    """

    node_run: NodeRun
    race: str
    cases: tuple[tuple[Case, tuple[Comparison, ...]], ...] = ()
    tried: Tried = field(default_factory=Tried)
    gives: Mapping[str, Fit] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every bit is equal, whichever threads go first."""
        return not self.race and not any(
            comparison.differ for _, comparisons in self.cases for comparison in comparisons
        )

    @property
    def unclaimed(self) -> dict[str, str]:
        """Values in effect of which no profile says anything."""
        node_run = self.node_run
        names = node_run.active(node_run.choices).keys() & {a.name for a in node_run.node.attributes}
        settings = {name: node_run.plan.settings[node_run.node.name, name] for name in sorted(names)}
        return {name: str(setting.value) for name, setting in settings.items() if (setting.level or UNKNOWN) == UNKNOWN}


def certify_node(kernel: Kernel, plan: Plan, node: Node, tokens: Sequence[int], width: int | None) -> NodeVerdict:
    """Compare a kernel with a node, on data of every number of tokens. Raises MoeparityError."""
    node_run = held_to(kernel, plan, node)
    cases = cases_of(kernel, node, tokens or TOKENS, width or WIDTH)
    # Another size of block may take another branch of the kernel.
    blocks = {kernel.threads(case.sizes): case for case in reversed(cases)}
    race = next(filter(None, (kernel.race(case.tensors, case.sizes) for case in blocks.values())), "")
    if race:
        return NodeVerdict(node_run=node_run, race=race)
    written = [kernel(case.tensors, case.sizes) for case in cases]
    rows = tuple((case, _compared(node_run, case, out)) for case, out in zip(cases, written, strict=True))
    verdict = NodeVerdict(node_run=node_run, race="", cases=rows)
    threads = kernel.threads(cases[-1].sizes)
    listed = changes(node_run, threads, ())
    if verdict.holds:
        return replace(verdict, tried=tried(node_run, cases[-1], listed))
    # A case in which much differs tells most.
    sorted_cases = [
        pair for _, pair in sorted(zip(rows, zip(cases, written, strict=True), strict=True), key=_agreement)
    ]
    gives = _fits(node_run, sorted_cases, listed)
    orders = () if gives else _probed(kernel, cases[-1])
    return replace(
        verdict, gives=_fits(node_run, sorted_cases, changes(node_run, threads, orders)) if orders else gives
    )


def _fits(node_run: NodeRun, cases: Cases, listed: Sequence[Change]) -> dict[str, Fit]:
    """Changes that give all outputs; else, for each output, changes that give it."""
    every = tuple(cases[0][1])
    whole = fit(node_run, cases, listed)
    if whole is not None or len(every) == 1:
        return {} if whole is None else {" and ".join(every): whole}
    parts = {name: fit(node_run, [(case, {name: out[name]}) for case, out in cases], listed) for name in every}
    return {name: fit_of_name for name, fit_of_name in parts.items() if fit_of_name is not None and fit_of_name.change}


def _agreement(row: tuple[tuple[Case, tuple[Comparison, ...]], object]) -> int:
    return -sum(comparison.differ for comparison in row[0][1])


def _compared(node_run: NodeRun, case: Case, out: Tensors) -> tuple[Comparison, ...]:
    outputs = node_run.outputs(case, node_run.choices)
    return tuple(compared(name, out[name], value) for name, value in outputs.items())


def _probed(kernel: Kernel, case: Case) -> tuple[str, ...]:
    """Orders in which the kernel adds, found by probing; () if it adds nothing up, or too much."""
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
