"""All digests of a run: of its values, its weights and its tokens."""

from __future__ import annotations

import torch

from moeparity.bisection.context import Context
from moeparity.bisection.digests.data import Digests
from moeparity.bisection.digests.inputs import of_tokens, of_weights
from moeparity.bisection.digests.observe import NODE_DIGESTS
from moeparity.inputs.machine import device_name, instruction_set
from moeparity.output.words import quantity
from moeparity.plan.sides import CANDIDATE, REFERENCE


def measure(of: Context) -> Digests | None:
    """The digests; None if nobody asked for them."""
    values, plan = of.observed.of_watch(NODE_DIGESTS), of.plan
    if values is None:
        return None
    return Digests(
        machine=machine(plan.model.device),
        tokens=of_tokens(plan.tokens),
        weights=of_weights(plan.model),
        reference={node: digest for (side, node), digest in values.items() if side == REFERENCE},
        candidate={node: digest for (side, node), digest in values.items() if side == CANDIDATE},
    )


def machine(device: torch.device) -> str:
    """What of this machine decides bits, in words: `AuthenticAMD AVX512 avx512_bf16, torch 2.13.0+cpu, 1 thread`."""
    words = [instruction_set(), f"torch {torch.__version__}", quantity(torch.get_num_threads(), "thread")]
    return ", ".join([*words, device_name(device)] if device.type == "cuda" else words)
