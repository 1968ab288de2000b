"""How often the 95 % interval holds the truth, and what the verdict makes of gates near it, on simulated k3.

The simulated log-ratios have the shape published for trainer-server mismatch: small Gaussian noise on every token and
rare large events, whose rate differs from sequence to sequence; the top 0.1 % and 1 % of the tokens carry about 41 %
and 80 % of k3, and 25 x 200 tokens leave its mean with a coefficient of variation of 0.34 to 0.41. `heavier` has
exponential tails, `light` has no events. The intervals and verdicts are the product's own code.

For the required shape it exits with 1 when the coverage, which is also how often a gate on the true mean is
inconclusive, leaves 0.90 to 0.98, or when another gate gets the wrong verdict (a pass below the truth, a fail above it)
in more than 5 % of the runs; both by more than three binomial standard errors of the replications.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import torch
from torch import Tensor

from moeparity.inputs.machine import cpu_name
from moeparity.metrics.interval import token_mean
from moeparity.metrics.verdict import Gate, Verdict, judge

SEQUENCES = (25, 50, 100, 200)
TOKENS = 200
GATES = (0.5, 0.8, 1.0, 1.25, 2.0)
BOUNDS = (0.90, 0.98)
WRONG = 0.05

_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Log-ratios: noise N(0, noise^2); events at a mean `rate` per token, N(0, size^2) or Laplace(size).

    A sequence's rate is the mean rate times a gamma variable of mean 1 and variance `spread` (0: the same for all).
    """

    name: str
    noise: float
    rate: float = 0.0
    size: float = 0.0
    spread: float = 0.0
    laplace: bool = False

    @property
    def mean(self) -> float:
        """E[k3] in closed form: E[exp(delta)] - 1, as delta has mean 0."""
        event = 1 / (1 - self.size**2) - 1 if self.laplace else math.expm1(self.size**2 / 2)
        return (1 - self.rate) * math.expm1(self.noise**2 / 2) + self.rate * event

    def draw(self, sequences: int, tokens: int, generator: torch.Generator) -> Tensor:
        """k3 of each token, fp64 [sequences, tokens]."""
        delta = torch.randn(sequences, tokens, generator=generator, dtype=torch.float64) * self.noise
        rate = torch.full((sequences, 1), self.rate, dtype=torch.float64)
        if self.spread:
            alpha = torch.full_like(rate, 1 / self.spread)
            rate *= torch._standard_gamma(alpha, generator=generator) * self.spread  # noqa: SLF001
        hit = torch.rand(sequences, tokens, generator=generator, dtype=torch.float64) < rate
        delta[hit] = self._events(int(hit.sum()), generator)
        return delta.expm1() - delta

    def _events(self, count: int, generator: torch.Generator) -> Tensor:
        events = torch.empty(count, dtype=torch.float64)
        if not self.laplace:
            return events.normal_(generator=generator) * self.size
        sign = torch.randint(2, (count,), generator=generator) * 2 - 1
        return events.exponential_(generator=generator) * sign * self.size


REQUIRED = Shape(name="required", noise=0.026, rate=0.0085, size=0.54, spread=2.5)
SHAPES = (
    REQUIRED,
    Shape(name="heavier", noise=0.026, rate=0.01, size=0.33, spread=1.0, laplace=True),
    Shape(name="light", noise=0.057),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the replications of one shape and size came to.

    covered, above, below: shares of intervals that hold the truth, that lie above it, that lie below it.
    variation: coefficient of variation of the estimates. width: median width of the intervals over the truth.
    verdicts: by gate, a multiple of the truth, the shares of pass, fail and inconclusive.
    """

    shape: Shape
    sequences: int
    replications: int
    covered: float
    above: float
    below: float
    variation: float
    width: float
    verdicts: dict[float, dict[str, float]]


def measure(shape: Shape, sequences: int, replications: int, *, seed: int = 0, resamples: int = 2000) -> Outcome:
    """Simulate, take the product's interval and verdicts, and count."""
    intervals = [
        token_mean(sums, torch.full_like(sums, TOKENS), resamples=resamples, seed=i)
        for i, sums in enumerate(_replications(shape, sequences, replications, seed))
    ]
    verdicts: dict[float, dict[str, float]] = {}
    for gate in GATES:
        judged: list[Verdict] = [
            judge(i, Gate(metric="k3", below=gate * shape.mean), bit_equal=False, nonfinite=0) for i in intervals
        ]
        statuses = [j.status for j in judged]
        verdicts[gate] = {s: statuses.count(s) / replications for s in ("pass", "fail", "inconclusive")}
    estimates = torch.tensor([i.estimate for i in intervals], dtype=torch.float64)
    widths = torch.tensor([i.high - i.low for i in intervals], dtype=torch.float64)
    above = sum(i.low > shape.mean for i in intervals) / replications
    below = sum(i.high < shape.mean for i in intervals) / replications
    return Outcome(
        shape=shape,
        sequences=sequences,
        replications=replications,
        covered=1 - above - below,
        above=above,
        below=below,
        variation=float(estimates.std()) / shape.mean,
        width=float(widths.median()) / shape.mean,
        verdicts=verdicts,
    )


def _replications(shape: Shape, sequences: int, replications: int, seed: int) -> Iterator[Tensor]:
    """The sums of k3 over the tokens of each sequence, [sequences], one replication after the other."""
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, _BLOCK // (sequences * TOKENS))
    for start in range(0, replications, at_once):
        count = min(at_once, replications - start)
        yield from shape.draw(count * sequences, TOKENS, generator).sum(-1).view(count, sequences)


def shares(shape: Shape, *, sequences: int = 20_000, seed: int = 0) -> tuple[float, float]:
    """Which share of all k3 the top 0.1 % and the top 1 % of the tokens carry."""
    k3 = shape.draw(sequences, TOKENS, torch.Generator().manual_seed(seed)).flatten().sort(descending=True).values
    total = float(k3.sum())
    return float(k3[: k3.numel() // 1000].sum()) / total, float(k3[: k3.numel() // 100].sum()) / total


def tolerance(share: float, replications: int) -> float:
    """Three binomial standard errors."""
    return 3 * math.sqrt(share * (1 - share) / replications)


def failures(outcome: Outcome) -> list[str]:
    """What is wrong with an outcome of the required shape; empty when nothing is."""
    slack, where = tolerance(BOUNDS[0], outcome.replications), f"{outcome.shape.name}, {outcome.sequences} sequences"
    reasons = []
    if not BOUNDS[0] - slack <= outcome.covered <= BOUNDS[1] + slack:
        reasons.append(f"{where}: coverage {outcome.covered:.3f} lies outside {BOUNDS}")
    for gate, verdicts in outcome.verdicts.items():
        wrong = verdicts["pass"] if gate < 1 else verdicts["fail"] if gate > 1 else 0.0
        if wrong > WRONG + tolerance(WRONG, outcome.replications):
            reasons.append(f"{where}: a gate at {gate:g} x the truth gets the wrong verdict in {wrong:.1%} of the runs")
    return reasons


def main() -> int:
    """Print one table and say whether the required shape is covered."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replications", type=int, default=2000)
    replications = parser.parse_args().replications
    torch.set_num_threads(1)
    started = time.perf_counter()
    date = datetime.now(UTC).date()
    print(f"{cpu_name()}, torch {torch.__version__}, {date}, 1 thread")
    print(
        f"{replications} replications; n sequences of {TOKENS} tokens; width: median of the intervals, over the truth"
    )
    print("gates as multiples of the true mean; pass / fail / inconclusive, in % of the runs\n")
    gates = "".join(f"{f'gate {gate:g}x':>18}" for gate in GATES)
    print(f"{'shape':<10}{'n':>5}{'covered':>9}{'low>truth':>11}{'high<truth':>12}{'CV':>6}{'width':>7}{gates}")
    reasons = []
    for shape in SHAPES:
        for sequences in SEQUENCES:
            outcome = measure(shape, sequences, replications)
            print(_row(outcome), flush=True)
            reasons += failures(outcome) if shape is REQUIRED else []
        print(f"{'':<10}mean k3 {shape.mean:.3g}; top 0.1 % and 1 % of the tokens: {_percents(*shares(shape))} of it\n")
    print(f"{time.perf_counter() - started:.0f} s")
    for sentence in reasons:
        print(f"FAILED: {sentence}")
    return bool(reasons)


def _row(outcome: Outcome) -> str:
    verdicts = "".join(
        f"{' / '.join(f'{100 * verdict[s]:.0f}' for s in ('pass', 'fail', 'inconclusive')):>18}"
        for verdict in outcome.verdicts.values()
    )
    return (
        f"{outcome.shape.name:<10}{outcome.sequences:>5}{outcome.covered:>9.3f}{outcome.above:>11.3f}"
        f"{outcome.below:>12.3f}{outcome.variation:>6.2f}{outcome.width:>7.2f}{verdicts}"
    )


def _percents(*values: float) -> str:
    return " and ".join(f"{value:.0%}" for value in values)


if __name__ == "__main__":
    sys.exit(main())
