"""A simulated language model, its sampler and its trainer: log-probability columns with a known fault.

Logits of a context are Zipf-like, -s log(rank) with a steepness s of its own, plus normal noise, plus a gap at the top
of most contexts, as of a model that is mostly sure: the mean entropy is 0.6, 1.0 or 2.1 nats. The trainer's logits are
the same plus numeric noise: small on every token, and great at rare tokens, whose rate differs between sequences as
routing flips do. Log-probabilities are those of an fp32 log-softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from moeparity.errors import Where
from moeparity.metrics.chunk import Chunk

_CONTEXTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How sure a model is: log-steepness N(mean, spread), a gap Exp(gap) at the top of `gaps` of the contexts."""

    mean: float
    spread: float
    gaps: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviation of the trainer's logits: `small` everywhere, `great` at `rate` of the tokens."""

    small: float = 0.0
    rate: float = 0.0
    great: float = 0.0


STYLES = {
    "peaked": Style(mean=0.9, spread=0.5, gaps=0.85, gap=6.0),
    "usual": Style(mean=0.7, spread=0.5, gaps=0.75, gap=5.0),
    "flat": Style(mean=0.45, spread=0.4, gaps=0.5, gap=3.0),
}
NOISES = {
    "none": Noise(),
    "dense": Noise(small=0.006),
    "moe": Noise(small=0.02, rate=0.004, great=0.6),
    "moe, high": Noise(small=0.03, rate=0.01, great=0.6),
    "fp8": Noise(small=0.09, rate=0.01, great=0.8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What a column is the log-probability of: logits over a temperature, on the tokens kept or on all."""

    temperature: float = 1.0
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The sampler, what each side reports, and what is wrong otherwise.

    banned: an id that is never drawn; a truncated side leaves it out. penalty: by which positive logits of tokens that
    were seen are divided, and others multiplied, in the sampler and in the rollout's column.
    drift: standard deviation of other weights' logits, for `drifted` of the sequences. shift: the rollout's column, so
    many tokens late. other_ids: the trainer scored the tokens of another sequence of ids. zeros: share of the
    rollout's values that are placeholders. factor: of the rollout's logarithms, 1/ln 2 for base 2. values: what the
    rollout's column holds. lags: whether the log says which sequences other weights sampled.
    """

    temperature: float = 1.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    banned: int | None = None
    penalty: float = 1.0
    rollout: Side = Side()
    trainer: Side = Side()
    drift: float = 0.0
    drifted: float = 1.0
    shift: int = 0
    other_ids: bool = False
    zeros: float = 0.0
    factor: float = 1.0
    values: Literal["log", "negated", "P"] = "log"
    lags: bool = False
    entropy: bool = False


def log(
    setting: Setting,
    style: Style,
    noise: Noise,
    *,
    sequences: int,
    tokens: int,
    vocabulary: int = 512,
    seed: int = 0,
) -> Chunk:
    """The log of such a run, as one chunk. The same arguments give the same log."""
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, _CONTEXTS // tokens)
    columns: list[tuple[Tensor, ...]] = []
    stale = torch.arange(sequences) < round(setting.drifted * sequences)
    for start in range(0, sequences, at_once):
        part = stale[start : start + at_once].repeat_interleave(tokens)
        columns.append(_draw(setting, style, noise, tokens, vocabulary, part, generator))
    rollout, trainer, entropy, ids = (torch.cat(column) for column in zip(*columns, strict=True))
    rollout = _spoilt(rollout, setting, generator).roll(setting.shift)
    if setting.other_ids:
        trainer = trainer[torch.randperm(trainer.numel(), generator=generator)] - 2.0
    sequence = torch.arange(sequences).repeat_interleave(tokens)
    return Chunk(
        rollout=rollout,
        trainer=trainer,
        sequence=sequence,
        position=torch.arange(tokens).repeat(sequences),
        tokens=ids,
        ids=tuple(f"s{index}" for index in range(sequences)),
        where=tuple(Where(Path("simulated.jsonl"), index + 1) for index in range(sequences)),
        labels={"version_lag": stale[sequence].long()} if setting.lags else {},
        values={"entropy": entropy} if setting.entropy else {},
    )


def contexts(count: int, vocabulary: int, style: Style, generator: torch.Generator) -> Tensor:
    """Logits fp32 [count, vocabulary]."""
    steepness = torch.exp(torch.randn(count, 1, generator=generator) * style.spread + style.mean)
    logits = -steepness * torch.arange(1, vocabulary + 1, dtype=torch.float32).log()
    logits += 0.8 * torch.randn(count, vocabulary, generator=generator)
    gap = torch.empty(count, 1).exponential_(generator=generator) * style.gap
    logits[:, :1] += gap * (torch.rand(count, 1, generator=generator) < style.gaps)
    return logits


def _draw(
    setting: Setting,
    style: Style,
    noise: Noise,
    tokens: int,
    vocabulary: int,
    stale: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, ...]:
    """Rollout, trainer and entropy fp64 [N], and the ids drawn int64 [N], of whole sequences."""
    count = stale.numel()
    logits = contexts(count, vocabulary, style, generator)
    # The rate of great events differs between sequences as a gamma variable of mean 1 and variance 2.5.
    rate = torch._standard_gamma(torch.full((count // tokens, 1), 0.4), generator=generator) * 2.5  # noqa: SLF001
    hit = torch.rand(count, 1, generator=generator) < noise.rate * rate.repeat_interleave(tokens, 0)
    size = torch.where(hit, noise.great, noise.small) + 0.0
    scored = logits + size * torch.randn(count, vocabulary, generator=generator)
    if setting.drift:
        scored += setting.drift * stale[:, None] * torch.randn(count, vocabulary, generator=generator)
    penalised = _penalised(logits, setting.penalty, generator)
    sampled = (penalised / setting.temperature).log_softmax(-1)
    likely = _likely(sampled, setting)
    drawn = torch.multinomial(sampled.masked_fill(~likely, -math.inf).exp(), 1, generator=generator)
    rollout, trainer = (
        _reported(values, side, likely) for values, side in ((penalised, setting.rollout), (scored, setting.trainer))
    )
    entropy = -(trainer.exp() * trainer.clamp(min=-1e4)).sum(-1) if setting.entropy else torch.zeros(count)
    columns = (rollout.gather(-1, drawn)[:, 0], trainer.gather(-1, drawn)[:, 0], entropy)
    return (*(column.double() for column in columns), drawn[:, 0])


def _penalised(logits: Tensor, penalty: float, generator: torch.Generator) -> Tensor:
    """As a repetition penalty does; a fifth of the vocabulary was seen before, and nine in ten modes."""
    if penalty == 1.0:
        return logits
    repeats = torch.rand(logits.shape, generator=generator) < 0.2
    modes = logits.argmax(-1, keepdim=True)
    repeats.scatter_(-1, modes, torch.rand(modes.shape, generator=generator) < 0.9)
    return torch.where(repeats, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def _reported(logits: Tensor, side: Side, likely: Tensor) -> Tensor:
    scaled = logits / side.temperature
    return (scaled.masked_fill(~likely, -math.inf) if side.truncated else scaled).log_softmax(-1)


def _likely(sampled: Tensor, setting: Setting) -> Tensor:
    """The tokens that truncation leaves, bool [N, vocabulary].

    The least set of mass top_p, the top_k greatest, those of at least min_p of the greatest's probability, all but the
    banned.
    """
    likely = torch.ones_like(sampled, dtype=torch.bool)
    if setting.top_p is not None:
        values, order = sampled.sort(-1, descending=True)
        before = values.exp().cumsum(-1) - values.exp()
        likely &= torch.zeros_like(likely).scatter(-1, order, before < setting.top_p)
    if setting.top_k is not None:
        likely &= sampled >= sampled.topk(setting.top_k, -1).values[:, -1:]
    if setting.min_p is not None:
        likely &= sampled >= sampled.amax(-1, keepdim=True) + math.log(setting.min_p)
    if setting.banned is not None:
        likely[:, setting.banned] = False
    return likely


def _spoilt(rollout: Tensor, setting: Setting, generator: torch.Generator) -> Tensor:
    holes = torch.rand(rollout.shape, generator=generator) < setting.zeros
    formats: dict[str, Callable[[Tensor], Tensor]] = {"log": lambda x: x, "negated": lambda x: -x, "P": torch.exp}
    return formats[setting.values](torch.where(holes, 0.0, rollout) * setting.factor)
