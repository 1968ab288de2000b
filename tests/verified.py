"""What a test has seen to be equal bit for bit to a kernel that runs: `python -m scripts.pages evidence` collects it.

A test calls `record` or `record_plan` after its assertions against the live kernel have passed. Without the folder in
the environment variable `MOEPARITY_EVIDENCE` both do nothing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from moeparity.errors import Where
from moeparity.inputs.model import Model
from moeparity.numerics.dtypes import FLOAT_NAMES, FP8_NAMES, MODEL, torch_dtype
from moeparity.ops.attribute import EDGE, Value, holds
from moeparity.ops.declaration import Op
from moeparity.ops.registry import OPS
from moeparity.plan.bind import bind
from moeparity.plan.engine_profile import load_profile, overrides, placement_rules
from moeparity.plan.graph import UNSET
from moeparity.plan.setting import edges_of
from moeparity.plan.spec.reader import read_placement
from moeparity.profiles.fidelity import Compiled, How

FOLDER = "MOEPARITY_EVIDENCE"
HERE = Where(Path("evidence"))
DTYPES = {torch_dtype(name): name for name in (*FLOAT_NAMES, *FP8_NAMES)}
NARROW = {"bf16", "fp16"}

_written: set[str] = set()
"""Lines of this process: most cases of a test see what others have seen."""


def record(
    op: str,
    at: Mapping[str, Any],
    against: str,
    *,
    operands: torch.dtype | None = None,
    p: Mapping[str, Any] | None = None,
    blind: Iterable[str] = (),
    device: torch.device | None = None,
    how: How = "kernel",
    compiled: Compiled | None = None,
    recorded: Recorded | None = None,
) -> None:
    """The values of `at`, as handed to the kernel of `op`, are verified together against `against` (with its version).

    `at` may also hold what the op is told, and sites on its edges (`output->rms_norm`). `blind` are attributes that the
    data tells nothing of: sums exact in any order, a form that no value takes. `operands` is the dtype of the case: a
    site in the same 16-bit dtype is also one in `model`; with fp32 operands sites in fp32 are left out, since nothing
    is rounded there. `p` are the node's parameters, where attributes depend on them. `how` it was run is a key of
    `fidelity.HOW`; of a run of PTX `compiled` says what that rests on; `recorded` where and
    when a GPU recorded outputs.
    """
    assert (how == "ptx") == (compiled is not None), "a run of PTX, and no other, names its compiler"
    assert (how == "recorded") == (recorded is not None), "recorded outputs, and no others, name their device"
    if FOLDER not in os.environ:
        return
    declared = OPS[op]
    values: dict[str, Value] = {n: DTYPES[v] if isinstance(v, torch.dtype) else v for n, v in at.items()}
    edges = {f"{a.name}{EDGE}{op_name}" for a in declared.attributes if a.edge for op_name in OPS}
    unknown = values.keys() - {a.name for a in declared.attributes} - declared.choices_elsewhere.keys() - edges
    assert not unknown, f"{op} has no {sorted(unknown)}"
    told_values = {name: {str(values[name])} for name in values.keys() & edges}
    for name in _active(declared, values, p) - set(blind):
        value = values[name]
        if declared.attribute(name).kind == "rounding" and operands is not None:
            operand_dtype = DTYPES[operands]
            if value != operand_dtype:
                told_values[name] = {str(value)}
            elif operand_dtype in NARROW:
                told_values[name] = {operand_dtype, MODEL}
        else:
            told_values[name] = {str(value)}
    _write(op, told_values, Source(against, device, how, compiled, recorded))


@dataclass(frozen=True)
class Recorded:
    """On which GPU outputs were recorded, with which torch, on which day."""

    device: str
    torch: str
    date: str


@dataclass(frozen=True)
class Source:
    """What was run beside ours, where and how."""

    against: str
    device: torch.device | None
    how: How = "kernel"
    compiled: Compiled | None = None
    recorded: Recorded | None = None


def _active(op: Op, values: Mapping[str, Value], p: Mapping[str, Any] | None) -> set[str]:
    """Those of the values that take effect; without pieces, none of what asks for them."""
    whole = op.cut.pieces(values) == 1 and not values.keys().isdisjoint({"tensor", "expert"})
    attributes = [a for a in op.attributes if a.name in values and holds(a.when, values)]
    if p is not None:
        attributes = [
            a
            for a in attributes
            if (a.parameter is None or p.get(a.parameter) not in UNSET) and holds(a.when_parameters, p)
        ]
    return {a.name for a in attributes if not (whole and a.needs in {"pieces", "partials"})}


def record_plan(
    model: Model,
    against: str,
    *,
    profile: str,
    dtype: str,
    settings: Mapping[str, Value] | None = None,
    placement: Mapping[str, int | bool] | None = None,
    blind: Iterable[str] = (),
) -> None:
    """Every attribute in effect on any node of the plan that `forward` ran with these arguments, and edges set there.

    Values are as the plan states them; `model` is also what it stands for, where that is a 16-bit dtype. `blind`: as in
    `record`, `op:attribute`.
    """
    if FOLDER not in os.environ:
        return
    choices = overrides(dict(settings or {}), HERE)
    placed = placement_rules(read_placement(placement or {}, HERE), HERE)
    plan = bind(model.graph, load_profile(profile, HERE), dtype, choices, placement=placed)
    values_of_ops: dict[str, dict[str, set[str]]] = {}
    for node in model.graph.nodes:
        of = values_of_ops.setdefault(node.op.name, {})
        for name, value in plan.active(node).items():
            stated = plan.settings[node.name, name].value
            of.setdefault(name, set()).add(str(stated))
            if stated == MODEL and value in NARROW:
                of[name].add(str(value))
        for site, consumer in edges_of(model.graph, node):
            setting = plan.settings[node.name, f"{site}{EDGE}{consumer}"]
            if setting.rule is not None:
                of.setdefault(f"{site}{EDGE}{_op_of(model, consumer)}", set()).add(str(setting.value))
    for op, values in values_of_ops.items():
        distinct = {name: stated for name, stated in values.items() if f"{op}:{name}" not in set(blind)}
        _write(op, distinct, Source(against, model.device))


def _op_of(model: Model, node: str) -> str:
    return next(n.op.name for n in model.graph.nodes if n.name == node)


def _write(op: str, values: Mapping[str, Iterable[str]], of: Source) -> None:
    test = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0].partition("[")[0]
    fields = {
        "op": op,
        "values": {name: sorted(values[name]) for name in sorted(values)},
        "source": {
            "against": of.against,
            "device": _device(None if of.device is None else of.device.type),
            "torch": torch.__version__,
            "how": of.how,
            "compiled": None if of.compiled is None else asdict(of.compiled),
            **({} if of.recorded is None else asdict(of.recorded)),
        },
        "test": test,
    }
    line = json.dumps(fields)
    if line not in _written:
        _written.add(line)
        with (Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


@cache
def _device(kind: str | None) -> str:
    """The GPU's name, or the CPU's and the instruction set that ATen chose for it."""
    if kind == "cuda":
        return str(torch.cuda.get_device_name())
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8").splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(models, platform.processor() or platform.machine())}, {torch.backends.cpu.get_cpu_capability()}"
