"""What a run ran on and what it ran, as plain data for people and for comparison: the environment and the plan."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from moeparity.bisection.prepare import Plan
from moeparity.bisection.resume.fingerprint import digest, source, variables
from moeparity.inputs.machine import cpu_name
from moeparity.plan.schedule.settings import described
from moeparity.plan.sides import Side
from moeparity.progress import Callback, Progress

_PACKAGES = ("moeparity", "numpy", "safetensors", "transformers", "tokenizers")
_DIGITS = 16
"""Of a digest that people compare."""


def environment(device: torch.device) -> dict[str, str]:
    """Machine, versions and settings; what two runs are compared by."""
    build = torch.__config__.show()
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch build": hashlib.sha256(build.encode()).hexdigest()[:_DIGITS],
        "matmul precision": torch.get_float32_matmul_precision(),
        "moeparity source": source()[:_DIGITS],
        **{name: text for name in _PACKAGES if (text := _version(name)) is not None},
        **{f"${name}": value for name, value in variables().items()},
    }


def plan_record(plan: Plan, progress: Callback | None = None, *, with_sides: bool = True) -> dict[str, Any]:
    """Both sides' choices at every node, the toggles, and digests of weights and tokens. Reads every weight once.

    Without the sides where a run has several plans.
    """
    sides = {
        "sides": {"reference": _side(plan.reference), "candidate": _side(plan.candidate)},
        "toggles": [toggle.name for toggle in plan.toggles],
    }
    return {
        "schema": "moeparity.plan/1",
        "model_type": plan.model.graph.model_type,
        "tokens": {"sha256": digest(plan.tokens), "shape": list(plan.tokens.input_ids.shape)},
        "weights": weight_digests(plan, progress),
        **(sides if with_sides else {}),
    }


def weight_digests(plan: Plan, progress: Callback | None = None) -> dict[str, str]:
    """SHA-256 of the tensors that the model takes, as they lie in their files, by segment: `before`, each layer,
    `after`. How they are spread over files does not count.
    """
    weights, segments = plan.model.weights.checkpoint, plan.model.graph.segments
    digests: dict[str, str] = {}
    for number, segment in enumerate(segments):
        names = sorted({name for node in segment.nodes for ref in node.weights.values() for name in ref.names})
        hashed = hashlib.sha256()
        for name in names:
            tensor, entry = weights.tensor(name), weights.entries[name]
            hashed.update(f"{name} {entry.dtype} {entry.shape} ".encode())
            hashed.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        digests[segment.name] = hashed.hexdigest()
        if progress is not None:
            progress(
                Progress(
                    step="digests of the weights",
                    at=segment.name,
                    done=number + 1,
                    total=len(segments),
                    work=number + 1,
                    unit="segments",
                )
            )
    return digests


def _side(side: Side) -> dict[str, Any]:
    phases = {}
    for phase in side.plan.phases:
        plan = side.plan.at_phase(phase)
        phases[str(phase)] = {
            node.name: {name: str(value) for name, value in plan.active(node).items()} for node in plan.graph.nodes
        }
    return {"dtype": side.plan.dtype, "schedule": described(side.schedule), "choices": phases}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
