"""The digests of a run put together: of its values, and of the weights and tokens they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from moeparity.bisection.digests.observe import of_tensors
from moeparity.bisection.digests.report import Digests
from moeparity.bisection.observed import Observed
from moeparity.bisection.prepare import Plan
from moeparity.inputs.machine import instruction_set
from moeparity.inputs.tokens import TokenSet
from moeparity.inputs.weights.source import Source
from moeparity.output.words import quantity
from moeparity.plan.graph import Node
from moeparity.plan.sides import CANDIDATE, REFERENCE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The digests; None where nobody asked for them."""
    values: Mapping[tuple[str, str], str] | None = observed.sections.get("digests")
    if values is None:
        return {"digests": None}
    source = plan.model.weights.checkpoint
    digests = Digests(
        machine=machine(plan.model.device),
        tokens=_tokens(plan.tokens),
        weights={node.name: _weights(node, source) for node in plan.model.graph.nodes if node.weights},
        reference={node: digest for (side, node), digest in values.items() if side == REFERENCE},
        candidate={node: digest for (side, node), digest in values.items() if side == CANDIDATE},
    )
    return {"digests": digests}


def machine(device: torch.device) -> str:
    """What of this machine decides bits: `AuthenticAMD AVX512 avx512_bf16, torch 2.13.0+cpu, 1 thread`."""
    words = [instruction_set(), f"torch {torch.__version__}", quantity(torch.get_num_threads(), "thread")]
    return ", ".join([*words, torch.cuda.get_device_name(device)] if device.type == "cuda" else words)


def _tokens(tokens: TokenSet) -> str:
    held = ((field.name, getattr(tokens, field.name)) for field in fields(tokens))
    return of_tensors((name, value) for name, value in held if isinstance(value, torch.Tensor))


def _weights(node: Node, source: Source) -> str:
    names = sorted(name for ref in node.weights.values() for name in ref.names)
    return of_tensors((name, source.tensor(name)) for name in names)
