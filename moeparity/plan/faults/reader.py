"""Reads faults: those that come with the package, and users' own files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from moeparity.documents.checked import read, shipped
from moeparity.errors import SpecError, Where, did_you_mean, listed
from moeparity.ops.registry import OPS
from moeparity.plan.faults.fault import Fault
from moeparity.plan.spec import reader
from moeparity.plan.spec.fault_schema import FaultFile

_PLACEHOLDER = re.compile(r"{(\w*)}")


@cache
def shipped_faults() -> Mapping[str, Fault]:
    """Every fault of `graphs/faults`, by name, in the order of their names."""
    faults = (read_fault(path) for path in shipped("faults").values())
    return {fault.name: fault for fault in faults}


def find_fault(name: str, where: Where) -> Fault:
    """A fault by name, or a file (with `/` or ending in `.yaml`) beside the file that names it. Raises SpecError."""
    if (path := reader.own_file(name, where, "fault")) is not None:
        return read_fault(path)
    faults = shipped_faults()
    if name not in faults:
        raise SpecError(
            f"{where}: fault {name!r} is not known; expected one of docs/faults.md, or a path with `/` or `.yaml` to a "
            f"file of your own.{did_you_mean(name, faults)}"
        )
    return faults[name]


def read_fault(path: Path) -> Fault:
    """A fault file, checked against the ops that it names. Raises SpecError."""
    spec = read(path, FaultFile)
    where = Where(path, spec.sits.line)
    for name in spec.sits.op:
        if name not in OPS:
            raise SpecError(f"{where}: op {name!r} is unknown; expected one of {listed(OPS)}.{did_you_mean(name, OPS)}")
    ops = [OPS[name] for name in spec.sits.op]
    rewrite, at = spec.rewrite, Where(path, spec.rewrite.line)
    params = {parameter.name for op in ops for parameter in op.parameters}
    ports = {"*", *(port.name for op in ops for port in op.weights)}
    inputs = {port for op in ops for port in op.inputs}
    _refuse_unknown(at, "parameter", (name.partition(".")[0] for name in rewrite.params), params)
    _refuse_unknown(at, "weight", rewrite.weights, ports)
    _refuse_unknown(at, "weight", (edit.of for edit in rewrite.weights.values() if edit.of is not None), ports)
    effect = () if rewrite.effect is None else filter(None, (rewrite.effect.left_out, rewrite.effect.twice))
    others = (edit.of for edit in rewrite.inputs.values() if edit.of is not None)
    _refuse_unknown(at, "input", (*rewrite.inputs, *others, *effect), inputs)
    _refuse_values(spec, at)
    return Fault(path=path, spec=spec)


def _refuse_unknown(where: Where, kind: str, names: Any, expected_names: set[str]) -> None:
    for name in names:
        if name not in expected_names:
            hint = did_you_mean(name, expected_names)
            raise SpecError(
                f"{where}: {kind} {name!r} is unknown; expected one of {listed(sorted(expected_names))}.{hint}"
            )


def _refuse_values(spec: FaultFile, where: Where) -> None:
    """Refuse free values that are declared and not used, or used and not declared."""
    used = set(references(spec.rewrite))
    for name in (*used, *_PLACEHOLDER.findall(spec.says)):
        if name not in spec.values:
            hint = did_you_mean(name, spec.values)
            raise SpecError(
                f"{where}: {name!r} is no value of this fault; expected one of {listed(spec.values)}.{hint}"
            )
    unused = next((name for name in spec.values if name not in used), None)
    if unused is not None:
        raise SpecError(
            f"{Where(where.path, spec.values[unused].line)}: value {unused!r} is used nowhere. Leave it out."
        )


def references(model: BaseModel) -> Iterator[str]:
    """The free values that a rewrite refers to, as `$name`."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        for inner in value.values() if isinstance(value, dict) else (value,):
            if isinstance(inner, BaseModel):
                yield from references(inner)
            elif isinstance(inner, str) and inner.startswith("$"):
                yield inner[1:]
