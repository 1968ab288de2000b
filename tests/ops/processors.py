"""Logits, texts and settings on which sampling processors are compared with those of engines. No moeparity kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from moeparity.ops.kernels.text import Text
from tests.ops.plain import BF16, FP16, FP32

PROCESSORS: dict[str, tuple[float, ...]] = {
    "temperature": (0.7, 1.3),
    "repetition_penalty": (1.05, 0.8),
    "presence_penalty": (0.5, -0.3),
    "frequency_penalty": (0.2, 1.7),
    "top_k": (1, 5, 20, 2000),
    "top_p": (0.95, 0.3, 1e-6, 0.999999),
    "min_p": (0.05, 0.5, 1.0),
}
VOCABULARIES = (1, 7, 37, 1003)
ROWS = 8


def combinations(names: Sequence[str]) -> Iterator[dict[str, float]]:
    """Settings of none, one, two and three processors, each number of theirs."""
    for count in range(4):
        for chosen in itertools.combinations(names, count):
            for values in itertools.product(*(PROCESSORS[name] for name in chosen)):
                yield dict(zip(chosen, values, strict=True))


def logits(vocabulary: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """[ROWS, V]: drawn; the last rows with many ties, an infinity of each sign, and signed zeros."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, vocabulary, generator=draw) * 3
    x[4:] = x[4:].round()
    if vocabulary > 5:
        x[5, 3], x[6, 4], x[7, 2] = -math.inf, math.inf, -0.0
    return x.to(dtype)


def texts(vocabulary: int, seed: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and outputs of the rows, of any length; the first row has no output yet."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 12, (2, ROWS), generator=draw).tolist()
    lengths[1][0] = 0
    prompts, outputs = (
        [torch.randint(vocabulary, (length,), generator=draw).tolist() for length in of] for of in lengths
    )
    return prompts, outputs


def text(prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> Text:
    """The same as the engine tells it to a kernel of logits [ROWS, 1, V]."""
    longest = max(len(p) + len(o) for p, o in zip(prompts, outputs, strict=True))
    ids = torch.zeros(len(prompts), 1, longest, dtype=torch.int64)
    before, output = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for row, (prompt, generated) in enumerate(zip(prompts, outputs, strict=True)):
        count = len(prompt) + len(generated)
        ids[row, 0, :count] = torch.tensor([*prompt, *generated])
        before[row, 0, :count] = True
        output[row, 0, len(prompt) : count] = True
    return Text(ids=ids, before=before, output=output)


def operands() -> tuple[torch.dtype, ...]:
    """The dtypes of a head's logits."""
    return (FP32, BF16, FP16)


def settings(chosen: dict[str, float]) -> dict[str, Any]:
    """The values of `log_probs` for these processors."""
    return {name: int(value) if name == "top_k" else value for name, value in chosen.items()}
