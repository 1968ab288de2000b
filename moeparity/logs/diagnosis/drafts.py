"""Tier 1: of a server that verifies drafts, whether accepted drafts have the target model's log-probability or the
draft's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final

import torch
from torch import Tensor

from moeparity.logs.diagnosis.finding import Evidence, Finding, FindingVerdict, judged
from moeparity.logs.diagnosis.intervals import LEVEL, above, bounds, mean
from moeparity.logs.diagnosis.state import PROBABILITIES
from moeparity.metrics.chunk import Chunk
from moeparity.metrics.repeated import Repetitions
from moeparity.plan.schedule.steps import PHASES

NAME: Final = "draft's log-probs"
_VERIFY: Final = PHASES.index("verify")
_ACCEPTED, _SAMPLED = 0, 1
_COUNTS, _LOGS, _SIZES = range(3)
_FACTOR: Final = 3.0
"""By so much |delta| at accepted drafts has to exceed that at other tokens of the same P: those of the same steps have
the same numerics, and texts make less of a difference.
"""
_LEAST_NATS: Final = 0.01
"""A draft whose log-probabilities are nearer to the target's than this can't be told from roundings."""
_FEWEST: Final = 8
"""Sequences that have both, below which there is no interval."""
_SMALLEST: Final = 1e-9
_LARGEST: Final = 20.0


@dataclass(slots=True)
class Drafts:
    """Sums over each sequence, fp64 [B, 2, P bins, 3]: of accepted drafts, and of tokens that verify steps sampled; by
    the trainer's P their number, and sums of log |delta| and of |delta|.
    """

    has_steps: bool = False
    _sums: list[Tensor] = field(default_factory=list)
    _repetitions: Repetitions = field(default_factory=Repetitions)

    def add(self, chunk: Chunk, judged_tokens: Tensor) -> None:
        """Take in whole sequences, of which the tokens of bool [N] count."""
        drafted, phase = chunk.labels.get("drafted"), chunk.labels.get("phase")
        if drafted is None or phase is None or not chunk.tokens.numel():
            return
        self.has_steps = True
        finite = chunk.rollout.isfinite() & chunk.trainer.isfinite() & judged_tokens & (phase == _VERIFY)
        bins = torch.bucketize(chunk.trainer, torch.tensor(PROBABILITIES, dtype=torch.float64).log())
        # P so near 1 leaves roundings of a log-softmax alone.
        counted = finite & (bins < len(PROBABILITIES)) & (drafted >= 0)
        size = chunk.delta.abs().clamp(max=_LARGEST)
        group = chunk.sequence * 2 + (drafted == 0).long()
        cells = group * len(PROBABILITIES) + bins.clamp(max=len(PROBABILITIES) - 1)
        columns = (torch.ones_like(size), size.clamp(min=_SMALLEST).log(), size)
        sums = [
            torch.zeros(chunk.sequences * 2 * len(PROBABILITIES), dtype=torch.float64).index_add_(
                0, cells, torch.where(counted, column, 0.0)
            )
            for column in columns
        ]
        present = chunk.counts > 0
        self._repetitions.add(chunk.content[present])
        self._sums.append(torch.stack(sums, -1).view(chunk.sequences, 2, len(PROBABILITIES), -1)[present])

    def findings(self, *, unsettled: bool) -> tuple[Finding, ...]:
        """The finding; none without the steps of a server, or where none of these verified drafts. unsettled: a
        temperature or a truncation is named, which moves tokens by the contexts that drafts are accepted in.

        Statistic: the mean of log |delta| at accepted drafts, less that at tokens that verify steps sampled themselves,
        within bins of the trainer's P. Named where its whole interval lies above log 3 and |delta| at accepted drafts
        above 0.01 nats.
        """
        sums = self._repetitions.merged(torch.cat(self._sums)) if self._sums else torch.zeros(0, 2, 1, 3)
        accepted, sampled = sums[:, _ACCEPTED], sums[:, _SAMPLED]
        if not self.has_steps or not float(accepted[..., _COUNTS].sum()):
            return ()
        compared = (accepted[..., _COUNTS].sum(-1) > 0) & (sampled[..., _COUNTS].sum(-1) > 0)
        if int(compared.sum()) < _FEWEST:
            reason = f"Fewer than {_FEWEST} sequences have accepted drafts and tokens sampled in the steps that verify."
            return (Finding(tier="semantics", name=NAME, verdict="not tested", reason=reason),)
        size = mean("|delta| at accepted drafts", *_totals(accepted), "nats")
        control = mean("|delta| at tokens sampled beside them", *_totals(sampled), "nats")
        excess = _excess(accepted, sampled)
        verdicts = {above(excess, math.log(_FACTOR)), above(size, _LEAST_NATS)}
        verdict: FindingVerdict = next((v for v in ("not tested", "ruled out", "undecided") if v in verdicts), "named")
        if unsettled and verdict != "not tested":
            verdict = "undecided"
        return (_finding(verdict, (_ratio(excess), size, control), unsettled=unsettled),)


def _totals(cells: Tensor) -> tuple[Tensor, Tensor]:
    return cells[..., _SIZES].sum(-1), cells[..., _COUNTS].sum(-1)


def _excess(accepted: Tensor, sampled: Tensor) -> Evidence:
    """The difference of means of log |delta| within bins of P, weighted as pairs of tokens are, with a normal interval
    over sequences of what each adds to it.
    """
    counts_a, counts_s = accepted[..., _COUNTS].sum(0), sampled[..., _COUNTS].sum(0)
    weights = counts_a * counts_s / (counts_a + counts_s).clamp(min=1)
    total = float(weights.sum())
    if not total:
        return Evidence(name="log ratio", value=math.nan, low=-math.inf, high=math.inf, level=LEVEL)
    parts, added = [], []
    for cells, counts, sign in ((accepted, counts_a, 1), (sampled, counts_s, -1)):
        means = cells[..., _LOGS].sum(0) / counts.clamp(min=1)
        parts.append(sign * float((weights * means).sum()) / total)
        of_sequences = (cells[..., _LOGS] - cells[..., _COUNTS] * means) / counts.clamp(min=1)
        added.append(sign * (weights * of_sequences).sum(-1) / total)
    each, value = sum(added, torch.zeros(len(accepted), dtype=torch.float64)), sum(parts)
    number = len(each)
    spread = math.sqrt(float(each.square().sum()) * number / (number - 1))
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * spread
    return Evidence(name="log ratio", value=value, low=value - reach, high=value + reach, level=LEVEL)


def _ratio(excess: Evidence) -> Evidence:
    low, high = (math.exp(bound) for bound in bounds(excess))
    name = "|delta| at accepted drafts, as a multiple of that at sampled tokens of the same P"
    return Evidence(name=name, value=math.exp(excess.value), low=low, high=high, level=LEVEL)


def _finding(verdict: FindingVerdict, evidence: tuple[Evidence, ...], *, unsettled: bool) -> Finding:
    return judged(
        "semantics",
        NAME,
        verdict,
        {
            "named": "At accepted drafts the sides differ far more than at tokens that the same steps sampled, at the "
            "same P: the sampler's log holds the draft's log-probability in place of the target model's.",
            "ruled out": "At accepted drafts the sides differ about as much as at tokens that the same steps sampled.",
            "undecided": "A temperature or a truncation is named, which may move accepted drafts more than others."
            if unsettled
            else "Whether the sides differ more at accepted drafts than at sampled tokens is open.",
            "not tested": "No accepted draft has the P of a sampled token.",
        },
        evidence,
        advice="Record the log-probability that the target model gives in the step that verifies (vLLM and SGLang do), "
        "or leave accepted drafts out of the loss. Findings beside this one are of tokens that it spoils.",
        alternatives=("keys of rejected drafts that are read as if they were accepted",),
        tells_apart="the target's log-probabilities of the same tokens in a prefill (prompt_logprobs)",
    )
