"""Functions of other projects run here beside our kernels: what they are given, and which choices they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.engines.live import Found, ask
from tests.ops.plain import bits

Case = Mapping[str, Any]
At = dict[str, dict[str, Any]]
"""Attributes of the ops that a function amounts to, by name of the op."""
Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class Function:
    """A function, the cases it is run with, and the choices that make our kernels of it."""

    kind: str
    """What runs it in the engine's program."""
    name: str
    """As its own project calls it, and which of its cases; no other of the engine has this name."""
    file: str
    """Where it is in its own project."""
    cases: Mapping[str, Case]
    ours: Callable[[Case, At], Outputs]
    at: Callable[[Case], At]
    others: tuple[dict[str, Any], ...]
    """Other choices, each as `op:attribute` and value: in some case each must give other bits."""
    blind: tuple[str, ...] = ()
    """Attributes that the cases tell nothing of."""
    p: Callable[[Case], dict[str, Any] | None] = field(default=lambda _: None)
    """The node's parameters, where attributes depend on them."""
    assumed: str = ""
    """What was set by hand to run it here."""


@dataclass(frozen=True, eq=False)
class Engine:
    """A version of a project with the functions of it that are run."""

    name: str
    program: str
    folders: tuple[str, ...]
    functions: tuple[Function, ...]

    def __post_init__(self) -> None:
        _of_program.setdefault((self.program, self.folders), []).append(self)

    def live(self, function: Function) -> Found:
        """What a function makes of its cases, by label."""
        live_outputs = _live(self.program, self.folders)
        return {label: live_outputs[f"{self.name} {function.name} {label}"] for label in function.cases}


_of_program: dict[tuple[str, tuple[str, ...]], list[Engine]] = {}
"""Engines that share a process."""


@cache
def _live(program: str, folders: tuple[str, ...]) -> Found:
    """What the functions of all engines of a program make of all cases."""
    return ask(
        program,
        folders,
        {
            f"{engine.name} {function.name} {label}": {"kind": function.kind, **case}
            for engine in _of_program[program, folders]
            for function in engine.functions
            for label, case in function.cases.items()
        },
    )


def compared(engine: Engine, function: Function) -> Iterator[tuple[Case, Outputs, Outputs]]:
    """Of each case what the function makes of it, and what we do."""
    for label, theirs in engine.live(function).items():
        case = function.cases[label]
        yield case, theirs, function.ours(case, function.at(case))


def unequal(a: Outputs, b: Outputs) -> int:
    """How many numbers differ in some bit; another dtype or shape is an error, but for the width of integers."""
    assert a.keys() == b.keys()
    return sum(_unequal(a[name], b[name]) for name in a)


def _unequal(a: Tensor, b: Tensor) -> int:
    if not (a.is_floating_point() or b.is_floating_point()):
        a, b = a.to(torch.int64), b.to(torch.int64)
    assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
    return int((bits(a) != bits(b)).sum())


def changed_settings(at: At, change: Mapping[str, Any]) -> At:
    """`at` with other choices."""
    changed = {op: dict(values) for op, values in at.items()}
    for address, value in change.items():
        op, _, attribute = address.partition(":")
        changed[op][attribute] = value
    return changed
