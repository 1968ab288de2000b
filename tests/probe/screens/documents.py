"""What a probe says of a function's orders, and a function or a kernel held to one, by hand: nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from moeparity.numerics.orders import parse
from moeparity.output.blocks import Document
from moeparity.probe import show
from moeparity.probe.calls import Setup
from moeparity.probe.certify import Claim, ClassVerdict
from moeparity.probe.find import OutputPlace, Result, Tree
from moeparity.probe.kernels import show as of_kernels
from moeparity.probe.kernels.alternatives import Fit, Tried
from moeparity.probe.kernels.certify import NodeVerdict
from moeparity.probe.kernels.node import Case, Comparison
from moeparity.probe.target import KINDS, Function
from tests.screens import Screens

MACHINE = "2001-01-01, Some CPU, torch 9.9.9, SOME ISA"


def function(kind: str = "linear", *rests: str) -> Function:
    return Function(name="mine:f", call=torch.sum, kind=KINDS[kind], rests_on=lambda: rests, scatters=False)


SETUP = Setup(n=64, dtype=torch.bfloat16, m=1, width=512)
TREE = Tree(
    order=parse("sequential"),
    accumulate="fp32",
    output="bf16",
    products="rounded",
    product="bf16",
    equal=512,
    replayed=512,
)
LONG = parse(" | ".join("halves(64)" for _ in range(40)) + " | sequential")
TREES = {
    "A": TREE,
    "B": replace(TREE, products="contracted", equal=11, bits=(13, 14), after="/ n", sites=(("square", "bf16"),)),
    "C": replace(TREE, products="exact", replayed=0, equal=0),
    "D": replace(TREE, order=LONG, products="rounded", product="fp32"),
    "E": Tree(order=parse("reverse"), output=""),
    "F": Tree(order=None, reason="512 sums made again gave other bits"),
    "G": replace(TREE, order=parse("halves(2, accumulate=fp32) | sequential"), products=""),
}


def places(*names: str) -> list[OutputPlace]:
    return [OutputPlace(label=f"columns {i}", positions=(i,), name=name) for i, name in enumerate(names)]


def probed(
    of: Function, trees: Mapping[str, Tree], *setups: tuple[Setup, list[OutputPlace], str], maps: Sequence[str] = ()
) -> Document:
    result = Result(of, dict(trees), list(setups), tuple(maps), probes=777, seconds=1.1)
    with patch.object(show, "machine", lambda: MACHINE):
        return show.probed(result)


ALIKE = [(replace(SETUP, m=m, threads=1), places("A"), "") for m in (1, 2, 3, 7)]
FLUSH = [(replace(SETUP, offset=offset), places("A" if offset else "E"), "") for offset in (0, 1)]
ALIGNED = [(replace(SETUP, offset=offset, threads=2), places("A"), "") for offset in (0, 1)]
PROBES: Screens = {
    "one order, rows alike": probed(function(), {"A": TREE}, *ALIKE),
    "one order, alignments apart": probed(
        function(), {"A": TREE}, *ALIGNED, (replace(SETUP, offset=2), places("E"), "")
    ),
    "another order by alignment": probed(function(), {"A": TREE}, *FLUSH),
    "every kind of tree, a kernel": probed(
        function("rms_norm", "PTX compiled by Triton 9.9"), TREES, (SETUP, places(*TREES), "it is a race")
    ),
    "no order": probed(function("softmax"), {}, (SETUP, [], "512 sums made again gave other bits")),
    "an all-reduce with a shipped order": probed(
        function("all_reduce"), {"A": TREE}, (SETUP, places("A"), ""), maps=("ring", "tree")
    ),
    "an all-reduce without one": probed(function("all_reduce"), {"A": TREE}, (SETUP, places("A"), "")),
    "a dot product": probed(function("dot"), {"A": TREE}, (SETUP, [OutputPlace("all", (0,), "A")], "")),
}


def certified(of: Function, claim: Claim, *verdicts: ClassVerdict) -> Document:
    with patch.object(show, "machine", lambda: MACHINE):
        return show.certified(of, claim, verdicts, "covers what the caller says it covers.")


HOLDS = ClassVerdict(setup=SETUP, label="all", equal=1000, replayed=1000, same_tree=True, order="sequential")
FAILS = replace(
    HOLDS,
    label="columns 0",
    equal=7,
    same_tree=False,
    order=str(LONG),
    first="sum 3 is 1.5 and was to be 1.25, 2 ulp",
    gives="reverse, additions rounded to fp32",
)
SEQUENTIAL = Claim(text="sequential", order="sequential")
CERTIFIED: Screens = {
    "certified": certified(function(), replace(SEQUENTIAL, product="bf16"), HOLDS),
    "not certified": certified(function("rms_norm"), replace(SEQUENTIAL, product="fp16"), HOLDS, FAILS),
    "no tree, by a node's order": certified(
        function("softmax"),
        Claim(text="layers[0].norm", order="sequential"),
        ClassVerdict(setup=SETUP, label="all", reason="it is a race"),
    ),
    "a collective": certified(
        function("all_reduce"), Claim(text="ring", collective="ring"), replace(HOLDS, same_tree=None, order="")
    ),
}


class StandIn(SimpleNamespace):
    """A node of a plan, as far as a verdict on it is told."""

    def active(self, choices: Mapping[str, str]) -> Mapping[str, str]:
        return choices


CHOICES = {"order": "sequential", "output": "bf16"}
ATTRIBUTES = [SimpleNamespace(name="order", kind="order"), SimpleNamespace(name="output", kind="semantics")]
SETTINGS = {("layers[0].norm", name): SimpleNamespace(value=value, level=None) for name, value in CHOICES.items()}
NODE: Any = StandIn(
    node=SimpleNamespace(name="layers[0].norm", attributes=ATTRIBUTES),
    choices=CHOICES,
    plan=SimpleNamespace(settings=SETTINGS),
)


def against(verdict: NodeVerdict) -> Document:
    kernel: Any = SimpleNamespace(rests_on=("PTX compiled by Triton 9.9",))
    with patch.object(of_kernels, "machine", lambda: MACHINE):
        return of_kernels.document(kernel, "kernel.yaml", verdict)


EQUAL = Comparison(name="out", numbers=99, differ=0, ulp=0)
UNEQUAL = replace(EQUAL, differ=7, ulp=2, first="the first is 1.5 and was to be 1.25")


def beside(comparison: Comparison, **fields: Any) -> NodeVerdict:
    case = Case(sizes={"tokens": 5.0, "hidden": 64.0}, tensors={})
    return NodeVerdict(node_run=NODE, race="", cases=((case, (comparison,)),), **fields)


REVERSE, SEVERAL = {"order": "reverse"}, tuple({"order": f"halves({2**i})"} for i in range(1, 15))
NODES: Screens = {
    "equal bits, some values not told apart": against(beside(EQUAL, tried=Tried(differing=(REVERSE,), same=SEVERAL))),
    "equal bits, each value told apart": against(beside(EQUAL, tried=Tried(differing=(REVERSE,)))),
    "a race": against(NodeVerdict(node_run=NODE, race="its bits depend on which threads go first")),
    "other bits, of nothing": against(beside(UNEQUAL)),
    "other bits, of another order, and of another function": against(
        beside(UNEQUAL, gives={"out": Fit(REVERSE, SEVERAL), "ids": Fit({"output": "fp32"}, ())})
    ),
}
DOCUMENTS: Mapping[str, Screens] = {"probe": PROBES, "certify": CERTIFIED, "certify-node": NODES}
