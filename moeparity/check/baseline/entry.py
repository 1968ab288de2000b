"""What a lock keeps of one run: choices, budgets, and digests of its inputs and values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from moeparity import paths
from moeparity.bisection.digests.data import Digests
from moeparity.bisection.outline import Outline
from moeparity.bisection.report import Report
from moeparity.check.baseline.lock import Bits, Budget, Choices, Entry, Side
from moeparity.plan.bound import Plan
from moeparity.plan.choices import Choice, choices
from moeparity.plan.sides import CANDIDATE, REFERENCE

ROOM = 2
"""The first budget is this many times the metric's value, since other processors give other digits."""

CONFIG = "config.json"
FLIPPED = "flipped_tokens"
_FREE = ("k3", "kl", "kl_reverse", "mean_abs_delta", "max_abs_delta")
_COUNTED = "nonfinite_tokens"
_AGREED = "top1_agreement"


Stated = Mapping[Side, Mapping[str, tuple[Choice, ...]]]
"""By side and node, every choice that takes effect there."""


def entry(report: Report, rows: Stated, folder: Path, *, sampled: bool) -> Entry:
    """The entry of a run whose choices are `rows`. folder: of the checkpoint; sampled: the run made its own tokens.

    A side with a function that is not deterministic has no bits in it.
    """
    digests = report.digests
    assert digests is not None, "asked for"
    return Entry(
        sides={REFERENCE: str(report.reference), CANDIDATE: str(report.candidate)},
        budgets={name: first_budget(name, value) for name, value in measured(report).items()},
        tokens=None if sampled else digests.tokens,
        weights={**digests.weights, CONFIG: _config(folder)},
        choices={REFERENCE: _choices(rows[REFERENCE]), CANDIDATE: _choices(rows[CANDIDATE])},
        machines={} if report.not_deterministic else {digests.machine: _bits(digests)},
    )


def measured(report: Report) -> dict[str, float]:
    """The metrics that have budgets: the gate's, related ones, and the fraction of tokens that flip."""
    metrics, flips = report.metrics, report.flips
    values = {name: float(getattr(metrics, name)) for name in (*_FREE, _COUNTED, _AGREED)}
    values.setdefault(report.verdict.metric, abs(report.verdict.value.estimate))
    if flips is not None and flips.tokens:
        values[FLIPPED] = flips.tokens_any_layer / flips.tokens
    return values


def first_budget(name: str, value: float) -> Budget:
    """The first budget of a metric: twice its value, or twice its distance from 1; a number of tokens is taken as it
    is.
    """
    if name == _COUNTED or not math.isfinite(value):
        # JSON has no NaN, and no value here is negative: NaN gets a budget of 0, which NaN itself does not keep.
        return Budget(at_most=value if math.isfinite(value) else 0.0)
    if name == _AGREED:
        return Budget(at_least=max(0.0, 1 - _rounded_up(ROOM * (1 - value))))
    return Budget(at_most=_rounded_up(ROOM * value))


def _rounded_up(value: float) -> float:
    """The value rounded up to two digits."""
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return float(f"{math.ceil(value / unit) * unit:.2g}")


def stated(outline: Outline) -> Stated:
    """The choices of a recipe's sides."""
    sides: dict[Side, Plan] = dict(zip((REFERENCE, CANDIDATE), outline.plans, strict=True))
    return {
        side: {node.name: tuple(choices(node, (plan,))) for node in outline.graph.nodes} for side, plan in sides.items()
    }


def _choices(rows: Mapping[str, tuple[Choice, ...]]) -> Choices:
    return {node: {choice.name: [choice.values[0], choice.evidence] for choice in of} for node, of in rows.items()}


def _bits(digests: Digests) -> Bits:
    return Bits(tokens=digests.tokens, reference=dict(digests.reference), candidate=dict(digests.candidate))


def _config(folder: Path) -> str:
    fields = json.loads(paths.contents(folder / CONFIG, CONFIG))
    return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]
