"""The tables of sm_50 to sm_75 held to an H200: digests of 2^20 outputs each (tests/recorded/h200)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch

from moeparity.numerics.special_functions.functions import approximate
from tests.recorded.files import read

CHUNK = 1 << 20
SPANS = [key for key in read("special_functions")[1] if not key.startswith("tanh")]
"""Instruction, first and last bit pattern, step; tanh.approx has no table."""


def digests(span: str, chunks: list[int]) -> Iterator[str]:
    instruction, first, last, step = span.split("/", maxsplit=1)[0].split()
    assert step == "1"
    for chunk in chunks:
        start = int(first, 16) + CHUNK * chunk
        patterns = torch.arange(start, min(int(last, 16), start + CHUNK), dtype=torch.int64).to(torch.int32)
        name, ftz = instruction.split(".")[0], ".ftz" in instruction
        outputs = approximate(name, patterns.view(torch.float32), ftz=ftz).view(torch.int32)
        yield hashlib.sha256(outputs.numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("span", SPANS)
def test_the_last_outputs_of_a_span_are_the_gpus(span: str) -> None:
    recorded = read("special_functions")[1][span]
    assert list(digests(span, [len(recorded) - 1])) == recorded[-1:]


@pytest.mark.parametrize("span", SPANS)
def test_every_output_of_a_span_is_the_gpus(span: str) -> None:
    recorded = read("special_functions")[1][span]
    assert list(digests(span, list(range(len(recorded))))) == recorded
