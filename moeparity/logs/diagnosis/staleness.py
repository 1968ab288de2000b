"""Tiers 0 and 3: tokens that other weights sampled, and what the objective does with the remaining difference."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from moeparity.logs.diagnosis.columns import OUTSIDE
from moeparity.logs.diagnosis.finding import Evidence, Finding, FindingVerdict, judged
from moeparity.logs.diagnosis.intervals import explains, mean, rate, share
from moeparity.logs.diagnosis.state import State
from moeparity.logs.record import Sequence
from moeparity.metrics.chunk import UNKNOWN, Chunk


@dataclass(slots=True)
class Lags:
    """Numbers of tokens by lag: the trainer's weight version minus the one that sampled the token.

    tokens: lag -> count. of_several_lags: sequences whose tokens have more than one lag. unknown: tokens of unknown
    lag.
    of_several_versions: sequences known to have been sampled by several versions, even if the trainer's is unknown.
    of_steps: step -> the versions that sampled its sequences.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    of_several_lags: int = 0
    unknown: int = 0
    of_several_versions: int = 0
    of_steps: dict[int, set[int]] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        """Count a chunk's tokens."""
        lag = chunk.labels.get("version_lag")
        if lag is None:
            self.unknown += chunk.tokens.numel()
            return
        labelled = lag != UNKNOWN
        self.unknown += int((~labelled).sum())
        lag, sequence = lag[labelled], chunk.sequence[labelled]
        values, counts = torch.unique(lag, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.tokens[value] = self.tokens.get(value, 0) + count
        pairs = torch.unique(torch.stack([sequence, lag]), dim=1)[0]
        self.of_several_lags += int((pairs.bincount() > 1).sum()) if pairs.numel() else 0

    def note(self, sequence: Sequence) -> None:
        """Take in the versions of a sequence's scored tokens."""
        if sequence.versions is None:
            return
        versions = set(sequence.versions[sequence.mask & (sequence.versions >= 0)].tolist())
        self.of_several_versions += sequence.several or len(versions) > 1
        if sequence.step is not None:
            self.of_steps.setdefault(sequence.step, set()).update(versions)


def staleness(lags: Lags, basis: State, fresh: State, unsaid: State, stale: State) -> Finding:
    """Reports whether tokens were sampled by other weights than the trainer's, from the versions in the log.

    Evidence: counts by lag, and k3 of each part with its interval. It is no test: the log's versions are taken as true.
    The further tiers judge tokens of lag 0; if there are none, those of unknown lag; else all.
    """
    if not lags.tokens:
        return _unknown(lags)
    total = sum(lags.tokens.values()) + lags.unknown
    evidence = [Evidence(name=f"lag {lag}", value=count, unit="tokens") for lag, count in sorted(lags.tokens.items())]
    if lags.unknown:
        evidence.append(Evidence(name="lag unknown", value=lags.unknown, unit="tokens"))
    if not stale.tokens:
        reason = "All tokens whose version is known were sampled by the trainer's weights."
        return Finding(
            tier="staleness", name="stale weights", verdict="ruled out", reason=reason, evidence=tuple(evidence)
        )
    if lags.of_several_lags:
        evidence.append(Evidence(name="sampled by more than one version", value=lags.of_several_lags, unit="sequences"))
    evidence += [
        mean(f"k3 of {name} tokens", part.sums("k3"), part.sums("usable"), "nats")
        for name, part in (("fresh", fresh), ("unknown", unsaid), ("stale", stale))
        if part.tokens
    ]
    remark = (
        "They are left out of all that follows."
        if basis is not stale
        else "No others are left: what follows is about stale tokens, and their k3 contains the weights' difference."
    )
    return Finding(
        tier="staleness",
        name="stale weights",
        verdict="named",
        reason=f"{stale.tokens} of {total} scored tokens were sampled by other weights than the trainer's. {remark}",
        evidence=tuple(evidence),
        advice="Judge numerics on tokens of lag 0 alone: one step with learning rate 0, or a rollout before any "
        "update.",
    )


def _unknown(lags: Lags) -> Finding:
    evidence = (Evidence(name="sampled by more than one version", value=lags.of_several_versions, unit="sequences"),)
    several = [step for step, versions in sorted(lags.of_steps.items()) if len(versions) > 1]
    verdict: FindingVerdict = "named" if lags.of_several_versions or several else "not tested"
    if lags.of_several_versions:
        count = lags.of_several_versions
        amount = "1 sequence was" if count == 1 else f"{count} sequences were"
        reason = f"{amount} sampled by more than one version of the weights; the trainer's is unknown."
    elif several:
        count = len(lags.of_steps[several[0]])
        reason = (
            f"The sequences of step {several[0]} were sampled by {count} versions of the weights; the trainer has one."
        )
    else:
        reason = (
            "The log does not say which weights sampled which token, so differences of weights count as numerics below."
        )
    return Finding(
        tier="staleness",
        name="stale weights",
        verdict=verdict,
        reason=reason,
        evidence=evidence if lags.of_several_versions else (),
        advice="Record the weight version of every token and of the trainer (AReaL: versions; slime: "
        "weight_versions), or run one step with learning rate 0.",
    )


def objective(lags: Lags, fresh: State, unsaid: State, stale: State) -> tuple[Finding, ...]:
    """Tier 3: how much of the difference comes from old weights, and on how many tokens a clip or a mask acts.

    Statistic for the lag: k3 of stale tokens over that of all tokens of known lag, over the sequences; named above 1/2.
    For the clip: the fraction of tokens with |rho - 1| above 0.2; described, not judged, since the objective decides
    what is too much.
    """
    parts = [part for part in (fresh, unsaid, stale) if part.tokens]
    count = torch.cat([part.sums("usable") for part in parts])
    outside = rate(f"tokens with |rho - 1| > {OUTSIDE}", torch.cat([part.sums("outside") for part in parts]), count)
    beyond = rate("tokens with rho or 1/rho > 2", torch.cat([part.sums("beyond_2") for part in parts]), count)
    clipped = Finding(
        tier="objective",
        name="clip fraction",
        verdict="described",
        reason="How much is too much depends on the objective.",
        evidence=(outside, beyond),
        advice="Importance weights, clips and masks repair the estimate, not the engines: leave them until the tiers "
        "above are settled, else they hide what those show.",
    )
    if not lags.tokens:
        return (clipped,)
    lag_parts = [part for part in (fresh, stale) if part.tokens]
    whole = torch.cat([part.sums("k3") for part in lag_parts])
    offset = torch.cat([torch.zeros_like(part.sums("k3")) if part is fresh else part.sums("k3") for part in lag_parts])
    evidence = share("k3 of stale tokens", offset, whole)
    lagging = judged(
        "objective",
        "weight lag",
        explains(evidence) if stale.tokens else "ruled out",
        {
            "named": "Old weights carry most of k3: this is off-policy by design, no fault of numerics.",
            "ruled out": "Old weights carry less than half of k3.",
            "undecided": "Whether old weights carry most of k3 is open.",
            "not tested": "k3 is 0.",
        },
        (evidence,),
        advice="Lower the lag, or correct for it in the objective.",
    )
    return (lagging, clipped)
