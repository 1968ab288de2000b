"""Computes metrics of each token from logits, or from log-probabilities that a side reports, and sums per sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from moeparity.errors import Where
from moeparity.metrics import quantities
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.gated import from_parity, interval, needed, per_sequence, shift_interval
from moeparity.metrics.gating import declared
from moeparity.metrics.truncated import divergences
from moeparity.metrics.verdict import Gate, Interval, Verdict, judge
from moeparity.numerics.bits import int_view

_OF_SAMPLED = ("k1", "k2", "k3", "abs_delta")
"""Sums over sampled tokens, rather than over the vocabulary."""

# The size of one [rows, V] temporary in elements: 4 MiB in fp64; about eight are alive at once.
CHUNK = 1 << 19


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSums:
    """Sums over the scored tokens of each sequence; every field is fp64 [B], on the CPU.

    `TokenMetrics` defines the summands. A sequence with `nonfinite` tokens has NaN in every field but the counts of
    tokens. A sequence without scored tokens has 0 everywhere.
    tokens: number of scored tokens.
    k1, k2, k3, kl_candidate_reference, kl_reference_candidate, abs_delta: sums, in nats.
    max_abs_delta: the largest |delta|, in nats.
    top1: number of tokens whose top-1 agrees.
    unequal: number of tokens scored by values that differ in any bit, in dtype or in kind.
    nonfinite: number of tokens with a NaN or an infinity among the values of either side.
    outside: number of scored tokens that a side leaves out of what it samples from. They add nothing to k1, k2, k3,
        abs_delta and gated, and means of these are over the others.
    unshared: number of scored tokens at which the candidate keeps tokens that the reference leaves out.
    gated: fp64 [B, Q], sums of the Q token quantities of which the gate's metric is made; by default k3 alone.
    """

    tokens: Tensor
    k1: Tensor
    k2: Tensor
    k3: Tensor
    kl_candidate_reference: Tensor
    kl_reference_candidate: Tensor
    abs_delta: Tensor
    max_abs_delta: Tensor
    top1: Tensor
    unequal: Tensor
    nonfinite: Tensor
    outside: Tensor
    unshared: Tensor
    gated: Tensor

    def mean(self, name: str) -> float:
        """A sum divided by the number of scored tokens that it is of, over all sequences."""
        total: Tensor = getattr(self, name).sum()
        return float(total / (self.inside if name in _OF_SAMPLED else self.tokens).sum())

    @property
    def inside(self) -> Tensor:
        """The number of scored tokens that both sides keep."""
        return self.tokens - self.outside

    def gate_value(self, gate: Gate) -> Interval:
        """The gate's metric as a distance from its value at parity, with its interval.

        Raises ValueError if `gated` has the sums of another metric.
        """
        metric, tokens = declared(gate), self.inside
        present = tokens > 0
        columns = self.gated[present].unbind(-1)
        sums = dict(zip(needed(metric), columns, strict=True))
        value = interval(metric, *per_sequence(metric, sums, tokens[present]), int(tokens.sum()))
        return from_parity(metric, shift_interval(value, metric.reduce.offset))

    def verdict(self, gate: Gate) -> Verdict:
        """What the gate decides."""
        return judge(
            self.gate_value(gate),
            gate,
            bit_equal=not bool(self.unequal.any()),
            nonfinite=int(self.nonfinite.sum()),
            outside=int(self.outside.sum()),
        )

    def once(self, first: Tensor) -> Self:
        """The sums without sequences that repeat another one; `first` (int64 [B]) gives the index of the one that
        stays.

        Unequal bits and values that are not finite, if they occur in any of the repetitions, are kept in the one that
        stays.
        """
        first_places = (first == torch.arange(len(first))).nonzero().flatten()
        if len(first_places) == len(first):
            return self
        once = {field.name: getattr(self, field.name)[first_places] for field in fields(self)}
        for name in ("unequal", "nonfinite", "outside"):
            greatest = torch.zeros_like(getattr(self, name)).scatter_reduce(0, first, getattr(self, name), "amax")
            once[name] = greatest[first_places]
        return type(self)(**once)

    @classmethod
    def concatenate(cls, parts: list[Self]) -> Self:
        """The sequences of all parts, in order.

        Raises ValueError for an empty list.
        """
        if not parts:
            raise ValueError("nothing to concatenate")
        names = [field.name for field in fields(cls)]
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def scored_parts(mask: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The sequences and the positions, int64 [n] each, of the tokens in `mask`, bool [B, T], row by row: this many at a
    time that a temporary [n, width] has about `CHUNK` elements. First tokens are left out, since nothing predicts them.
    """
    predicted = mask.clone()
    predicted[:, 0] = False
    size = max(1, CHUNK // width)
    yield from zip(*(torch.split(index, size) for index in predicted.nonzero(as_tuple=True)), strict=True)


def first_occurrences(input_ids: Tensor, loss_mask: Tensor) -> Tensor:
    """int64 [B], on the CPU: for each sequence, the index of the first one with the same tokens and loss mask.

    input_ids: int64 [B, T], B >= 1; loss_mask: bool [B, T].
    """
    keys = torch.cat([input_ids, loss_mask.long()], -1).cpu()
    _, groups = torch.unique(keys, dim=0, return_inverse=True)
    first = torch.full((int(groups.max()) + 1,), len(groups))
    return first.scatter_reduce(0, groups, torch.arange(len(groups)), "amin")[groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMetrics:
    """Log-probability metrics of each token; every field is [B, T], on the CPU, fp64 unless said otherwise.

    log P is the log-softmax of a row of logits in fp64, or, unchanged, what a side reports instead; natural logarithms.
    Token t is scored by the values at t - 1. Metrics are 0 at tokens that are not scored, and NaN if `nonfinite`.

    scored: bool, the token counts: its loss mask is set and t > 0.
    scorer, sampler: log P of the token by the side that only scored it, and by the one that sampled it; in nats.
    delta: log P_reference(token) - log P_candidate(token) if the tokens were sampled from the candidate, the negative
        of it if they were sampled from the reference; in nats. So delta = log(scorer / sampler).
    kl_candidate_reference: KL(candidate || reference) over the whole vocabulary, at t - 1, in nats.
    kl_reference_candidate: KL(reference || candidate), likewise. Both are sums of P (log P - log Q), unclamped, so
        rounding can leave them some 1e-15 below 0. If a side reports rounded log-probabilities, whose P need not add up
        to 1, they are sums of P (log P - log Q) - P + Q: the KL of measures, which stays non-negative then. Where Q
        leaves tokens out that P keeps, so that the KL is infinite, that sum is over the tokens that both keep.
    top1: 1 if both sides have their largest value at the same index (the lowest index among ties), else 0.
    unequal: bool, the values at t - 1 differ in any bit, in dtype, or in being logits or log-probabilities.
    nonfinite: bool, either side has a NaN or an infinity among its values at t - 1; -inf where it leaves a token out is
        none.
    outside: bool, a side leaves this token out of what it samples from, so that its log P is -inf. Its delta,
        which is infinite or not defined, stands as 0.
    unshared: bool, at t - 1 the candidate keeps a token that the reference leaves out.
    """

    scored: Tensor
    scorer: Tensor
    sampler: Tensor
    delta: Tensor
    kl_candidate_reference: Tensor
    kl_reference_candidate: Tensor
    top1: Tensor
    unequal: Tensor
    nonfinite: Tensor
    outside: Tensor
    unshared: Tensor

    @property
    def k1(self) -> Tensor:
        """As `quantities.k1`."""
        return quantities.k1(self.delta)

    @property
    def k2(self) -> Tensor:
        """As `quantities.k2`."""
        return quantities.k2(self.delta)

    @property
    def k3(self) -> Tensor:
        """As `quantities.k3`."""
        return quantities.k3(self.delta)

    def chunk(self) -> Chunk:
        """The scored tokens that both sides keep as a `Chunk`, from which every metric is computed; the scorer takes
        the trainer's place.
        """
        inside = self.scored & ~self.outside
        sequence, position = inside.nonzero(as_tuple=True)
        rows = len(self.scored)
        return Chunk(
            rollout=self.sampler[inside],
            trainer=self.scorer[inside],
            sequence=sequence,
            position=position,
            tokens=torch.zeros_like(sequence),
            ids=tuple(map(str, range(rows))),
            where=(Where(Path("recipe")),) * rows,
        )

    def sums(self, gated: Sequence[str] = ("k3",)) -> SequenceSums:
        """The sums over the tokens of each sequence, fp64 [B]; `gated` names the quantities that a gate's metric
        needs.
        """
        magnitude = self.delta.abs()
        return SequenceSums(
            tokens=self.scored.sum(-1, dtype=torch.float64),
            k1=self.k1.sum(-1),
            k2=self.k2.sum(-1),
            k3=self.k3.sum(-1),
            kl_candidate_reference=self.kl_candidate_reference.sum(-1),
            kl_reference_candidate=self.kl_reference_candidate.sum(-1),
            abs_delta=magnitude.sum(-1),
            max_abs_delta=magnitude.amax(-1),
            top1=self.top1.sum(-1),
            unequal=self.unequal.sum(-1, dtype=torch.float64),
            nonfinite=self.nonfinite.sum(-1, dtype=torch.float64),
            outside=self.outside.sum(-1, dtype=torch.float64),
            unshared=self.unshared.sum(-1, dtype=torch.float64),
            gated=self._gated(gated),
        )

    def _gated(self, names: Sequence[str]) -> Tensor:
        """Sums of token quantities, fp64 [B, Q]; NaN if a token is not finite, even if a clamp would make it finite."""
        chunk, inside = self.chunk(), self.scored & ~self.outside
        values = torch.zeros(len(names), *self.scored.shape, dtype=torch.float64)
        for index, name in enumerate(names):
            values[index, inside] = quantities.TOKEN[name](chunk)
        return values.masked_fill(self.nonfinite, torch.nan).sum(-1).T


def token_metrics(
    reference: Tensor,
    candidate: Tensor,
    input_ids: Tensor,
    loss_mask: Tensor,
    *,
    sampled_from: Literal["candidate", "reference"] = "candidate",
    reported: tuple[bool, bool] = (False, False),
    truncated: tuple[bool, bool] = (False, False),
) -> TokenMetrics:
    """How far apart two sides score the tokens of some sequences, token by token.

    reference, candidate: [B, T, V], any float each. input_ids: int64 [B, T], T >= 1. loss_mask: bool [B, T].
    reported: for each side, whether its values are log-probabilities to be taken as they are; else they are logits.
    truncated: for each side, whether -inf stands for a token that it leaves out of what it samples from.
    sampled_from: the side that sampled the tokens; it only sets the sign of delta. Values of one kind with equal bits
    give exactly 0 throughout, and top-1 agreement everywhere. `TokenMetrics` has the definitions.
    Raises TypeError for other dtypes, ValueError for other shapes, another side or a scored id outside [0, V).
    """
    if sampled_from not in ("candidate", "reference"):
        raise ValueError(f"sampled_from is {sampled_from!r}; 'candidate' or 'reference' expected")
    _check(reference, candidate, input_ids, loss_mask)
    scored = loss_mask.clone()
    scored[:, 0] = False
    sequence, position = scored.nonzero(as_tuple=True)
    tokens = input_ids[sequence, position]
    if bool(((tokens < 0) | (tokens >= reference.shape[-1])).any()):
        raise ValueError(f"a scored token id lies outside the vocabulary of {reference.shape[-1]}")
    values = torch.zeros(10, *scored.shape, dtype=torch.float64, device=reference.device)
    rows = max(1, CHUNK // max(1, reference.shape[-1]))
    for s, p, t in zip(*(torch.split(index, rows) for index in (sequence, position, tokens)), strict=True):
        values[:, s, p] = _row_values(reference[s, p - 1], candidate[s, p - 1], t, reported, truncated)
    ours, theirs, delta, forward, backward, top1, unequal, nonfinite, outside, unshared = values.cpu()
    scorer, sampler = (ours, theirs) if sampled_from == "candidate" else (theirs, ours)
    return TokenMetrics(
        scored=scored.cpu(),
        scorer=scorer,
        sampler=sampler,
        delta=delta if sampled_from == "candidate" else 0.0 - delta,
        kl_candidate_reference=forward,
        kl_reference_candidate=backward,
        top1=top1,
        unequal=unequal.bool(),
        nonfinite=nonfinite.bool(),
        outside=outside.bool(),
        unshared=unshared.bool(),
    )


def log_probs(values: Tensor, reported: bool) -> Tensor:
    """Log-probabilities in fp64, [..., V]: the log-softmax of logits, or `reported` values unchanged."""
    return values.double() if reported else values.double().log_softmax(-1)


def _row_values(
    reference: Tensor,
    candidate: Tensor,
    tokens: Tensor,
    reported: tuple[bool, bool],
    truncated: tuple[bool, bool],
) -> Tensor:
    """fp64 [10, N] from the values of both sides [N, V] and tokens [N].

    In order: log P_reference, log P_candidate, the first minus the second, KL(candidate || reference), KL(reference ||
    candidate), top-1 agreement, unequal bits, nonfinite, outside, unshared.
    """
    alike = reference.dtype == candidate.dtype and reported[0] == reported[1]
    unequal = (int_view(reference) != int_view(candidate)).any(-1) if alike else torch.ones_like(tokens)
    x, y = reference.double(), candidate.double()
    left_out = [(side == -torch.inf) & truncates for side, truncates in zip((x, y), truncated, strict=True)]
    finite = [(side.isfinite() | absent).all(-1) for side, absent in zip((x, y), left_out, strict=True)]
    nonfinite = ~(finite[0] & finite[1])
    top1 = (x.argmax(-1) == y.argmax(-1)).double()
    x, y = log_probs(x, reported[0]), log_probs(y, reported[1])
    gap = (x - y).masked_fill_(left_out[0] | left_out[1], 0)
    # Where the token is outside, its gap is 0 by now.
    delta, *sides = (values.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) for values in (gap, x, y))
    outside = (left_out[0] | left_out[1]).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) & ~nonfinite
    forward, backward = divergences(x.exp_(), y.exp_(), gap, left_out, rounded=any(reported) or any(truncated))
    # With a -inf logit on both sides some of these could be finite, but the token can't be judged.
    values = torch.stack([*sides, delta, forward, backward, top1]).masked_fill(nonfinite, torch.nan)
    unshared = (left_out[0] & ~left_out[1]).any(-1) & ~nonfinite
    flags = torch.stack([unequal.double(), nonfinite.double(), outside.double(), unshared.double()])
    return torch.cat([values, flags])


def _check(reference: Tensor, candidate: Tensor, input_ids: Tensor, loss_mask: Tensor) -> None:
    if not (reference.is_floating_point() and candidate.is_floating_point()):
        raise TypeError(f"logits are {reference.dtype} and {candidate.dtype}; floating point expected")
    if input_ids.dtype != torch.int64:
        raise TypeError(f"input_ids is {input_ids.dtype}; int64 expected")
    if loss_mask.dtype != torch.bool:
        raise TypeError(f"loss_mask is {loss_mask.dtype}; bool expected")
    if reference.dim() != 3 or reference.shape != candidate.shape:
        shapes = f"{tuple(reference.shape)} and {tuple(candidate.shape)}"
        raise ValueError(f"logits of equal shape [B, T, V] expected, given {shapes}")
    for name, tensor in (("input_ids", input_ids), ("loss_mask", loss_mask)):
        if tensor.shape != reference.shape[:2]:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; {tuple(reference.shape[:2])} expected")
    if not reference.shape[1]:
        raise ValueError("the sequences have no positions")
