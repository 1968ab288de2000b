"""Writes docs/metrics.md anew from the declarations: `python -m scripts.metrics_page`, a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from moeparity.metrics.declaration import Metric
from moeparity.metrics.registry import METRICS, SETS

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """# Metrics of logged log-probabilities

Written by `python -m scripts.metrics_page` from the declarations in `moeparity/metrics`; a test keeps both in step.

```
moeparity metrics rollouts/train_data_step*.jsonl --set verl --by position --gate 'k3<1e-3' --json out.json
```

For people who have the log-probabilities of a run and no weights here: which files are read stands in `docs/logs.md`,
how to check one in CI in `docs/ci.md`. Every definition serves logs and recipes alike.

- delta = log P_trainer - log P_sampler of the sampled token, rho = exp(delta), natural logarithms, fp64. Only scored
  tokens count (the loss mask), and only sequences that have one.
- A *token mean* weighs every token alike, a *sequence mean* every sequence: the mean of each one's mean over its
  tokens. A *mean over sequences* is that of a value which a sequence has as a whole.
- **Intervals** of means: 95 %, bootstrap-t over sequences, as for recipes (`moeparity/metrics/interval.py`); the
  sequences are taken as independent, which several samples of one prompt are not quite. A rate of events of which none
  was seen among n is given as 0 to 3/n. A **gate** passes when the whole interval lies below it and there are at least
  25 sequences; fewer leave it open, and so does an interval that holds the gate. Of a metric that lies on both sides
  of parity (k1, chi2, mean_ratio, ...) the distance from parity is gated: `mean_ratio<1.05` is 0.95 to 1.05.
- **Quantiles** of |delta| come from counts in bins that grow by 0.5 %, so that memory does not depend on the log:
  within 0.25 % of the exact one between 2^-60 and 2^20.
- **Infinities** are kept and counted. Where a side gave a sampled token probability 0, delta and most means are
  infinite. exp overflows in fp64 for delta above 709, in the fp32 of a trainer above 88.7: such tokens are counted and
  warned of.
- The trainers' small constants (1e-8 in denominators) are left out, except under squares: they change a value by less
  than one part in 10^8. What a trainer computes per rank or micro-batch and then averages is computed over all here.
- **Healthy** and **alarm** are as published, of other models than yours: MoE or dense, size, dtype and decoding all
  move them. `!` in the terminal marks an estimate beyond an alarm.
- Small delta ties them together: k2, k3 and k3_swapped are E[delta^2]/2, chi2_token is twice that where E[rho] = 1, the
  JS surrogate a quarter.
- Sources: *read* in the project's own code or docs at that commit, *secondary* in a text that quotes it, *inferred*
  here.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for name in SETS for line in _set(name))])


def _set(name: str) -> Iterator[str]:
    found = [metric for metric in METRICS.values() if metric.set == name]
    yield f"## {'Of no framework' if name == 'common' else name}\n"
    yield "| metric | reduction | definition | estimates | healthy; alarm |"
    yield "|---|---|---|---|---|"
    yield from map(_row, found)
    yield f"\nSources: {'; '.join(dict.fromkeys(str(metric.source) for metric in found))}.\n"


def _row(metric: Metric) -> str:
    notes = [metric.formula]
    if metric.clamp != "none":
        notes.append(f"clamped: {metric.clamp}")
    if not metric.not_finite.startswith("kept"):
        notes.append(metric.not_finite)
    if metric.needs:
        notes.append(f"needs {', '.join(metric.needs)}")
    notes.append(metric.unit)
    published = {"": metric.healthy, "alarm ": metric.alarm}
    cells = (
        f"`{metric.name}`",
        metric.reduce.kind,
        "; ".join(notes),
        metric.estimates,
        "; ".join(f"{word}{text}" for word, text in published.items() if text),
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
