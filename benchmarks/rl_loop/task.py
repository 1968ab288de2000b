"""The toy task: sort five digits. Its reward can be verified, and counts how many digits stand where they belong."""

from __future__ import annotations

import torch
from torch import Tensor

HEADER = (10, 11, 12, 13)
"""Tokens with which every prompt begins, like a system prompt: what a prefix cache can hold."""
END = 14
DIGITS, BASE, VOCABULARY = 5, 10, 16
PROMPT = len(HEADER) + DIGITS + 1
PROMPTS, GROUP = 8, 8
"""Prompts of a training step, and completions of each."""


def prompts(count: int, generator: torch.Generator) -> Tensor:
    """Prompts [count, PROMPT] int64: the header, five digits, the end of the prompt."""
    digits = torch.randint(0, BASE, (count, DIGITS), generator=generator)
    header = torch.tensor(HEADER).expand(count, -1)
    return torch.cat([header, digits, torch.full((count, 1), END)], 1)


def answers(of: Tensor) -> Tensor:
    """The right completions [B, DIGITS] of prompts [B, PROMPT]."""
    return of[:, len(HEADER) : -1].sort(1).values


def reward(of: Tensor, completions: Tensor) -> Tensor:
    """The share of digits at their places, fp32 [B], 0 to 1."""
    return (answers(of) == completions).float().mean(1)


def batch(seed: int, step: int) -> tuple[Tensor, Tensor]:
    """A step's prompts [B, PROMPT], group by group, and its noise [B, DIGITS, VOCABULARY], which is Gumbel's: the
    argmax of it and log-probabilities is a sample of them. Both are the same for all settings.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + 500_000 + step)
    of = prompts(PROMPTS, generator).repeat_interleave(GROUP, 0)
    uniform = torch.rand(len(of), DIGITS, VOCABULARY, generator=generator, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    return of, -(-uniform.log()).log().float()
