"""What is true of a case: both sides are run, each alone, and compared bit by bit, sequence by sequence.

No value is taken from a bisection (`runs`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import yaml
from torch import Tensor

from benchmarks.planted_faults.case_files import toggle_of, without
from benchmarks.planted_faults.cases import Case, Function
from benchmarks.planted_faults.side_runs import Runs, Walk, differing, same
from moeparity.errors import MoeparityError
from moeparity.plan.setting import FAULT
from moeparity.plan.sides import CANDIDATE, REFERENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What a report is held to.

    roots: by node the sequences with equal inputs and unequal output; certain: those nodes that are roots of a whole
    group of sequences that some side computes together, too. same_values: at the first root dtypes differ and no
    value does. tokens: in how many tokens of its sequences the first root differs in a value, padding included; padded:
    in padding only.
    not_finite: the first node at which the candidate alone has a value that is not finite, and the tokens that do.
    whole, benign, guilty: KL of the candidate, of it without what is planted, and of what is planted alone, against the
    reference, in nats per scored token. Without answers there are no choices to name.
    """

    roots: Mapping[str, frozenset[int]]
    certain: frozenset[str]
    same_values: bool
    tokens: int
    padded: bool
    not_finite: tuple[str, frozenset[tuple[int, int]]] | None
    whole: float
    benign: float
    guilty: float

    @property
    def first(self) -> str | None:
        """The first root."""
        return next(iter(self.roots), None)


def truth_of(case: Case, runs: Runs) -> Truth:
    """Run both sides, and the candidate without what is planted and with nothing else."""
    reference, candidate = runs.walk(case, REFERENCE), runs.walk(case, CANDIDATE)
    roots, certain = _roots(reference, candidate, case)
    first = next(iter(roots), None)
    tokens, mask = _tokens(reference, candidate, first, roots), reference.study.tokens.attention_mask
    faulty = [function for function in case.functions if function.faulty]
    return Truth(
        roots=roots,
        certain=certain,
        same_values=_same_values(reference, candidate, first),
        tokens=int(tokens.sum()),
        padded=bool(tokens.any()) and not bool((tokens & mask).any()),
        not_finite=_not_finite(reference, candidate),
        whole=_kl(candidate, reference),
        benign=_kl(runs.walk(without(case, faulty, list(case.semantic)), CANDIDATE), reference),
        guilty=_kl(runs.walk(replace(case, benign={}), CANDIDATE), reference),
    )


def holds(case: Case, function: Function, choices: tuple[str, ...], runs: Runs) -> bool:
    """Whether these choices, in the function's place, give its bits on all that it is given, in a run of their own."""
    parts = [choice.partition("=") for choice in choices]
    original = runs.walk(case, CANDIDATE)
    nodes = {node.name: node for node in original.study.model.graph.nodes}
    settings, params, faults = dict[str, Any](), dict[tuple[str, str], Any](), []
    for address, _, text in parts:
        name, _, attribute = address.rpartition(":")
        if name not in nodes:
            return False
        if attribute == FAULT:
            faults.append(_fault(name, text))
            continue
        attributes = {declared.name for declared in nodes[name].attributes} | {attribute if "->" in attribute else ""}
        if attribute not in attributes and (attribute in nodes[name].params or "rope" in nodes[name].params):
            params[name, attribute] = _value(text)
        else:
            settings[address] = _value(text)
    try:
        instead = runs.walk(without(case, [function]), CANDIDATE, settings, params, faults)
    except MoeparityError:
        return False
    if any(address.startswith("log_probs:") for address in settings):
        # The logits may differ: what is the same is their log-softmax.
        heat = float(settings.get("log_probs:temperature", 1.0))
        ours, theirs = (side.value(logits(side)).double() for side in (original, instead))
        return same(torch.log_softmax(ours, -1), torch.log_softmax(theirs / heat, -1))
    return all(same(original.value(name), instead.value(name)) for name in nodes[function.node].values)


def _fault(node: str, text: str) -> dict[str, Any]:
    """`weights-scaled(factor=4.0)` as a recipe states it at a node."""
    name, _, values = text.removesuffix(")").partition("(")
    pairs = (pair.partition("=") for pair in values.split(", ") if pair)
    return {"name": name, "nodes": node, "values": {key: _value(value) for key, _, value in pairs}}


def _value(text: str) -> Any:
    """A value as it is printed: YAML takes `1e-05` for a word."""
    value = yaml.safe_load(text)
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A toggle's two mixtures as recipes that are written out and run alone: KL against the reference, in nats per
    scored token. idle: it changes no bit of the logits in either.
    """

    alone: float
    restored: float
    idle: bool


def trial_of(case: Case, toggle: str, runs: Runs) -> Trial:
    """The reference with a toggle's line of the candidate's recipe, and the candidate without it."""
    moved = [function for function in case.functions if toggle_of(function, case) == toggle]
    others = [function for function in case.functions if function not in moved]
    settings = {**case.benign, **case.semantic}
    alone_case = replace(without(case, others), semantic={}, benign={k: v for k, v in settings.items() if k == toggle})
    # Alone it is moved into the reference, whose micro-batches stay.
    alone_case = replace(alone_case, batches=(case.batches[0], case.batches[0]))
    rest = replace(without(case, moved), semantic={}, benign={k: v for k, v in settings.items() if k != toggle})
    reference, candidate = runs.walk(case, REFERENCE), runs.walk(case, CANDIDATE)
    alone, restored = runs.walk(alone_case, CANDIDATE), runs.walk(rest, CANDIDATE)
    name = logits(reference)
    pairs = ((reference, alone), (candidate, restored))
    return Trial(
        alone=_kl(alone, reference),
        restored=_kl(restored, reference),
        idle=all(same(a.value(name), b.value(name)) for a, b in pairs),
    )


def logits(side: Walk) -> str:
    """The name of the logits."""
    return side.study.model.graph.output


def _roots(reference: Walk, candidate: Walk, case: Case) -> tuple[dict[str, frozenset[int]], frozenset[str]]:
    unequal: dict[str, Tensor] = {}
    common = [name for name in reference.values if name in candidate.values]
    for name in common:
        unequal[name] = differing(reference.value(name), candidate.value(name)).flatten(1).any(-1)
    roots: dict[str, frozenset[int]] = {}
    certain = set()
    edges = sorted({edge for size in case.batches for edge in range(0, case.sequences, size)} | {case.sequences})
    none = torch.zeros(case.sequences, dtype=torch.bool)
    for node in reference.study.model.graph.nodes:
        if node.values[0] not in unequal:
            continue
        read = _read(node.name, reference, candidate)
        inputs_differ = torch.stack([none, *(unequal[name] for name in read if name in unequal)]).any(0)
        out = torch.stack([unequal[name] for name in node.values]).any(0)
        sequences = torch.where(out & ~inputs_differ)[0].tolist()
        if sequences:
            roots[node.name] = frozenset(sequences)
        cells = [(slice(a, b)) for a, b in itertools.pairwise(edges)]
        if any(bool(out[cell].any()) and not bool(inputs_differ[cell].any()) for cell in cells):
            certain.add(node.name)
    return roots, frozenset(certain)


def _read(node: str, reference: Walk, candidate: Walk) -> tuple[str, ...]:
    """What both sides read at a node; of a region, what enters it."""
    ours, theirs = reference.reads[node], candidate.reads[node]
    if candidate.study.candidate.plan.region(node) is not None:
        return theirs
    return tuple(name for name in ours if name in theirs)


def _same_values(reference: Walk, candidate: Walk, first: str | None) -> bool:
    if first is None:
        return False
    node = next(node for node in reference.study.model.graph.nodes if node.name == first)
    pairs = [(reference.value(name), candidate.value(name)) for name in node.values]
    return all(a.shape == b.shape and torch.equal(a.double(), b.double()) for a, b in pairs)


def _tokens(reference: Walk, candidate: Walk, first: str | None, roots: Mapping[str, frozenset[int]]) -> Tensor:
    """At which tokens [B, T] the first root's values differ."""
    mask = reference.study.tokens.attention_mask
    touched = torch.zeros_like(mask)
    if first is None:
        return touched
    node = next(node for node in reference.study.model.graph.nodes if node.name == first)
    for name in node.values:
        unequal = differing(reference.value(name), candidate.value(name))
        by_token = unequal.movedim(node.op.tokens.axis, 1) if unequal.dim() > 2 else unequal
        touched |= by_token.reshape(*mask.shape, -1).any(-1)
    rows = torch.zeros(len(mask), 1, dtype=torch.bool)
    rows[sorted(roots[first])] = True
    return touched & rows


def _not_finite(reference: Walk, candidate: Walk) -> tuple[str, frozenset[tuple[int, int]]] | None:
    for node in candidate.study.model.graph.nodes:
        for name in node.values:
            if name not in candidate.values or not candidate.value(name).is_floating_point():
                continue
            bad = ~candidate.value(name).isfinite() & reference.value(name).isfinite()
            if bool(bad.any()):
                by_token = bad.movedim(node.op.tokens.axis, 1) if bad.dim() > 2 else bad
                places = by_token.reshape(*by_token.shape[:2], -1).any(-1).nonzero().tolist()
                return node.name, frozenset((row, token) for row, token in places)
    return None


def _kl(side: Walk, reference: Walk) -> float:
    """KL(side || reference) over the whole vocabulary, mean over scored tokens; NaN where a value is not finite."""
    name = logits(reference)
    p, q = (torch.log_softmax(w.value(name).double(), -1)[:, :-1] for w in (side, reference))
    scored = reference.study.tokens.loss_mask[:, 1:]
    kl = (p.exp() * (p - q)).sum(-1)[scored]
    return float(kl.mean()) if bool(kl.isfinite().all()) else math.nan


def unplanted(case: Case, truth: Truth) -> list[str]:
    """Roots of the two forwards at which nothing is planted: none, or the truth itself is not to be trusted."""
    return [] if case.batches[0] != case.batches[1] else [node for node in truth.roots if node not in case.planted]
