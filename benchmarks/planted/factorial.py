"""The full factorial over some toggles: every mixture's logits against the reference's, equal work done once.

All 2^n mixtures are walked together, step by step. At each step mixtures whose inputs have equal bits and whose choices
at the node agree are one; what comes out is told apart by its bits again. So a toggle without effect costs nothing, and
that it has none is seen for every combination of the others, not assumed. Free of moeparity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.planted.program import Program, Step, matches

Classes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Toggle:
    """One attribute at the nodes that `selector` names, and its value on either side."""

    selector: str
    attribute: str
    reference: Any
    candidate: Any

    @property
    def key(self) -> str:
        """As settings name it."""
        return f"{self.selector}:{self.attribute}"


@dataclass(slots=True)
class _Value:
    """A value in all mixtures: the class of each mixture, and one tensor per class."""

    classes: Classes
    tensors: list[Tensor] = field(default_factory=list)


def factorial(program: Program, toggles: Sequence[Toggle], ids: Tensor) -> npt.NDArray[np.float64]:
    """[2^n, B]: each sequence's KL(mixture || reference), summed over all tokens but the first, in nats.

    Mixture m has toggle i at the candidate's value where bit i of m is set.
    """
    mixtures = np.arange(1 << len(toggles))
    last_read = {name: step.node for step in program.steps for name in step.reads}
    values = {"tokens": _Value(np.zeros_like(mixtures), [ids])}
    for step in program.steps:
        values.update(_walk(program, step, toggles, mixtures, values))
        for name in {*step.reads} - {"lm_head"}:
            if last_read[name] == step.node:
                del values[name]
    logits = values["lm_head"]
    reference = logits.tensors[int(logits.classes[0])]
    costs = np.stack([divergence(side_logits, reference) for side_logits in logits.tensors])
    return costs[logits.classes]


def _walk(
    program: Program, step: Step, toggles: Sequence[Toggle], mixtures: Classes, values: dict[str, _Value]
) -> dict[str, _Value]:
    of_node = [i for i, toggle in enumerate(toggles) if matches(toggle.selector, step.node)]
    columns = [values[name].classes for name in step.reads] + [mixtures >> i & 1 for i in of_node]
    tasks, task_of = np.unique(np.stack(columns, 1), axis=0, return_inverse=True)
    classes: list[dict[bytes, int]] = [{} for _ in step.writes]
    results = [_Value(np.zeros(len(tasks), np.int64)) for _ in step.writes]
    for number, task in enumerate(tasks):
        inputs = [values[name].tensors[task[i]] for i, name in enumerate(step.reads)]
        chosen = task[len(step.reads) :]
        settings = {toggle.key: toggle.reference for toggle in toggles}
        settings |= {toggles[i].key: toggles[i].candidate for i, moved in zip(of_node, chosen, strict=True) if moved}
        for port, out in enumerate(step.run(*inputs, at=program.at(step, settings))):
            results[port].classes[number] = _class(out, classes[port], results[port].tensors)
    flat = task_of.reshape(-1)
    return {name: _Value(value.classes[flat], value.tensors) for name, value in zip(step.writes, results, strict=True)}


def _class(out: Tensor, classes: dict[bytes, int], tensors: list[Tensor]) -> int:
    """The class of a tensor by its dtype, strides and bits; a new one where these were not met."""
    flat = out.contiguous().view(torch.uint8).numpy()
    key = hashlib.blake2b(flat.data, digest_size=16, key=f"{out.dtype}{out.stride()}".encode()).digest()
    if key not in classes:
        classes[key] = len(tensors)
        tensors.append(out)
    return classes[key]


def divergence(logits: Tensor, reference: Tensor) -> npt.NDArray[np.float64]:
    """[B]: KL(own || reference) over the whole vocabulary, summed over the positions that predict a token."""
    p, q = (x[:, :-1].double().log_softmax(-1) for x in (logits, reference))
    sums: npt.NDArray[np.float64] = (p.exp() * (p - q)).sum((-1, -2)).numpy()
    return sums


def shapley(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """[count, ..]: the Shapley value of each toggle in the game `values` [2^count, ..]."""
    mixtures = np.arange(1 << count)
    size = np.array([int(m).bit_count() for m in mixtures])
    weight = np.ones(count)
    for s in range(1, count):  # s! (n - s - 1)! / n!
        weight[s] = weight[s - 1] * s / (count - s)
    weight /= count
    shares = []
    for i in range(count):
        without = mixtures[(mixtures >> i & 1) == 0]
        gain = values[without | 1 << i] - values[without]
        shares.append((gain * weight[size[without]].reshape(-1, *[1] * (gain.ndim - 1))).sum(0))
    return np.stack(shares)
