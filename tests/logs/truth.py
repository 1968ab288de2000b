"""The three sequences that every fixture of tests/logs holds, as its producer writes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEP = 7


@dataclass(frozen=True, slots=True)
class Truth:
    """One sequence; lists are one entry per token, prompt included, NaN before the response."""

    prompt: int
    ids: list[int]
    mask: list[bool]
    rollout: list[float]
    trainer: list[float]
    versions: list[int]

    @property
    def response(self) -> slice:
        return slice(self.prompt, None)


def _truth(seed: int, prompt: int, response: int, *, environment: tuple[int, ...] = (), renewed: int = 99) -> Truth:
    """`environment` are tokens that a tool put into the response; weights change at token `renewed`."""
    rng = np.random.default_rng(seed)
    size = prompt + response
    # Engines write fp32; the numbers here are exactly what JSON gives back.
    rollout = -rng.exponential(size=size).astype(np.float32)
    trainer = np.minimum(rollout + rng.normal(scale=0.05, size=size).astype(np.float32), np.float32(-1e-6))
    nothing = [float("nan")] * prompt
    return Truth(
        prompt=prompt,
        ids=rng.integers(3, 500, size).tolist(),
        mask=[prompt <= at and at not in environment for at in range(size)],
        rollout=[*nothing, *rollout[prompt:].astype(float).tolist()],
        trainer=[*nothing, *trainer[prompt:].astype(np.float32).astype(float).tolist()],
        versions=[-1 if at < prompt else 6 + (at >= renewed) for at in range(size)],
    )


TRUTHS = (_truth(0, 3, 9), _truth(1, 2, 12, environment=(5, 6), renewed=9), _truth(2, 4, 3))
