"""Pairs, heads and calls that do not fit a checkpoint that gives scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from moeparity.engine.forward import forward
from moeparity.errors import Where
from moeparity.inputs.tokens.pairs import paired
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.config import Config
from moeparity.plan.expand import expand
from tests.command import ROOT

REWARD = ROOT / "checkpoints/reward"
SAMPLED = "sampled_from: candidate"
PAIR = '"chosen": [1, 2], "rejected": [1, 3]'

LINES: dict[str, tuple[str, str]] = {
    "jsonl-pairs-for-a-language-model": (f"{{{PAIR}}}", SAMPLED),
    "jsonl-pairs-in-some-lines": (f'{{{PAIR}}}\n{{"input_ids": [1, 2]}}', SAMPLED),
    "jsonl-pair-without-rejected": ('{"chosen": [1, 2]}', SAMPLED),
    "jsonl-pair-with-a-mask": (f'{{{PAIR}, "mask": [1, 1]}}', SAMPLED),
    "jsonl-pair-of-two-kinds": ('{"chosen": "ab", "rejected": [1, 3]}', SAMPLED),
}


def _scored(*sequences: Sequence[int], recorded: bool = False) -> object:
    ids = torch.tensor([[*each, *[0] * (3 - len(each))] for each in sequences])
    real = torch.tensor([[place < len(each) for place in range(3)] for each in sequences])
    logprobs = torch.full(ids.shape, -1.0) if recorded else None
    tokens = TokenSet(input_ids=ids, loss_mask=real, attention_mask=real, logprobs=logprobs)
    return paired(tokens, expand(Config(REWARD / "config.json")), Where(Path("pairs.jsonl")))


CALLS: dict[str, Callable[[], object]] = {
    "python-pairs-of-an-odd-number": lambda: _scored([1, 2], [1, 3], [4, 5]),
    "python-pairs-with-records": lambda: _scored([1, 2], [1, 3], recorded=True),
    "python-pair-that-ends-with-the-pad": lambda: _scored([1, 2, 0], [1, 3]),
    "python-pair-of-one-token": lambda: _scored([1, 2], [3]),
    "python-forward-of-half-a-pair": lambda: forward(REWARD, torch.ones(3, 3, dtype=torch.int64), device="cpu"),
}
