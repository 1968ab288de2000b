"""The environment and the plan of a run as plain data, which people read and `moeparity runs compare` compares."""

from __future__ import annotations

import hashlib
import os
import platform
from typing import Any

import torch

from moeparity.bisection.digests.measure import joined, of_tokens, of_weights
from moeparity.bisection.resume.fingerprint import source, variables
from moeparity.bisection.study import Study
from moeparity.inputs.machine import cpu_name, device_name, matmul_precision, versions
from moeparity.plan.schedule.settings import described
from moeparity.plan.sides import Side
from moeparity.progress import Callback

_DIGITS = 16
"""The length of a digest that people compare."""


def environment(device: torch.device) -> dict[str, str]:
    """Machine, versions and settings, by which two runs are compared."""
    build = torch.__config__.show()
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
        "device": device_name(device),
        "threads": str(torch.get_num_threads()),
        "torch build": hashlib.sha256(build.encode()).hexdigest()[:_DIGITS],
        "matmul precision": matmul_precision(),
        "moeparity source": source()[:_DIGITS],
        **versions(),
        **{f"${name}": value for name, value in variables().items()},
    }


def plan_record(study: Study, progress: Callback | None = None, *, with_sides: bool = True) -> dict[str, Any]:
    """Both sides' choices at every node, the toggles, and digests of weights and tokens. Reads every weight once.

    `with_sides=False` leaves the sides out, for a run that has several plans.
    """
    sides = {
        "sides": {"reference": _side(study.reference), "candidate": _side(study.candidate)},
        "toggles": [toggle.name for toggle in study.toggles],
    }
    return {
        "schema": "moeparity.plan/1",
        "model_type": study.model.graph.model_type,
        "tokens": {"sha256": of_tokens(study.tokens), "shape": list(study.tokens.input_ids.shape)},
        "weights": _by_segment(study, progress),
        **(sides if with_sides else {}),
    }


def _by_segment(study: Study, progress: Callback | None) -> dict[str, str]:
    """A digest of the weights of each segment (`before`, each layer, `after`), made of its nodes' digests."""
    of_node = of_weights(study.model, progress)
    return {
        segment.name: joined(of_node[node.name] for node in segment.nodes if node.name in of_node)
        for segment in study.model.graph.segments
    }


def _side(side: Side) -> dict[str, Any]:
    phases = {}
    for phase in side.plan.phases:
        plan = side.plan.at_phase(phase)
        phases[str(phase)] = {
            node.name: {name: str(value) for name, value in plan.active(node).items()} for node in plan.graph.nodes
        }
    return {"dtype": side.plan.dtype, "schedule": described(side.schedule), "choices": phases}
