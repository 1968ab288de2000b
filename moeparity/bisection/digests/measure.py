"""The digests of a run put together: of its values, and of the weights and tokens they were made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from moeparity.bisection.digests.inputs import of_tokens, of_weights
from moeparity.bisection.digests.report import Digests
from moeparity.bisection.observed import Observed
from moeparity.bisection.plan import Plan
from moeparity.inputs.machine import device_name, instruction_set
from moeparity.output.words import quantity
from moeparity.plan.sides import CANDIDATE, REFERENCE


def parts(plan: Plan, observed: Observed, report: Mapping[str, Any]) -> Mapping[str, Any]:
    """The digests; None where nobody asked for them."""
    values: Mapping[tuple[str, str], str] | None = observed.sections.get("digests")
    if values is None:
        return {"digests": None}
    digests = Digests(
        machine=machine(plan.model.device),
        tokens=of_tokens(plan.tokens),
        weights=of_weights(plan.model),
        reference={node: digest for (side, node), digest in values.items() if side == REFERENCE},
        candidate={node: digest for (side, node), digest in values.items() if side == CANDIDATE},
    )
    return {"digests": digests}


def machine(device: torch.device) -> str:
    """What of this machine decides bits: `AuthenticAMD AVX512 avx512_bf16, torch 2.13.0+cpu, 1 thread`."""
    words = [instruction_set(), f"torch {torch.__version__}", quantity(torch.get_num_threads(), "thread")]
    return ", ".join([*words, device_name(device)] if device.type == "cuda" else words)
