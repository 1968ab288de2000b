"""Reports for tests that look at a few fields: everything else is empty."""

from __future__ import annotations

import types
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from moeparity.bisection.divergence.data import LayerGrowth, Root, Size
from moeparity.bisection.flips.data import LayerFlips, RoutingFlips
from moeparity.bisection.record.data import Record
from moeparity.bisection.report import Report
from moeparity.bisection.run.data import Run, Variant
from moeparity.bisection.sections import ON_REQUEST, Section, screen
from moeparity.bisection.toggles.data import ToggleResult, TrialResult
from moeparity.bisection.verdict.data import Metrics
from moeparity.metrics.verdict import Interval, Verdict
from tests.printed import printed

T = TypeVar("T")


def folder_of(section: Section) -> str:
    """The folder of a section, such as `arrival`."""
    return section.show.__module__.split(".")[2]


def name_of(section: Section) -> str:
    """The folder of a section and what shows it, such as `arrival.show`."""
    return f"{folder_of(section)}.{section.show.__name__}"


def fill(cls: type[T], **values: Any) -> T:
    """A dataclass with the fields given; the others are None, empty, zero, or made in turn."""
    hints = get_type_hints(cls)
    assert is_dataclass(cls)
    return cls(**{field.name: values.pop(field.name, _empty(hints[field.name])) for field in fields(cls)}, **values)


def _empty(hint: Any) -> Any:
    if get_origin(hint) in {Union, types.UnionType}:
        return None if type(None) in get_args(hint) else _empty(get_args(hint)[0])
    if is_dataclass(hint) and isinstance(hint, type):
        return fill(hint)
    kind = get_origin(hint) or hint
    return kind() if kind in {str, int, float, bool, tuple, dict} else None


def on_screen(report: Report, width: int = 160, asked_for: Collection[str] = ON_REQUEST) -> str:
    """What is printed of a report, by default every section of it."""
    return printed(screen(report, tuple(asked_for)), width, asked_for)


TRIAL = fill(TrialResult, kl=0.001, k3=0.001, flipped_routes=0.0125, changed_nodes=3)
INERT_TRIAL = fill(TrialResult)


def toggle(name: str, alone: TrialResult | None, restored: TrialResult | None) -> ToggleResult:
    idle = all(trial is not None and not trial.changed_nodes for trial in (alone, restored))
    return fill(ToggleResult, name=name, alone=alone, restored=restored, had_no_effect=idle)


REPORT = fill(
    Report,
    run=fill(Run, recipe="recipes/quickstart.yaml", sequences=30, scored_tokens=210, cpu="Some CPU", threads=1),
    reference=fill(Variant, profile="hf-eager", dtype="bf16", micro_batch=8),
    candidate=fill(Variant, profile="my-server", dtype="fp16", micro_batch=4),
    record=fill(Record, status="no record", side="candidate", reading=("of an engine that ran these tokens.",)),
    verdict=fill(
        Verdict,
        status="fail",
        reason="the interval lies above the gate",
        metric="k3",
        reduce="token",
        below=1e-4,
        value=fill(Interval, estimate=0.0013, low=0.0009, high=0.0017, level=0.95, method="bootstrap-t"),
    ),
    metrics=fill(Metrics, k1=0.0011, k2=0.0012, k3=0.0013, kl=0.002, top1_agreement=0.975),
    roots=(fill(Root, node="layers[1].moe.combine"), fill(Root, node="layers[2].moe.combine")),
    flips=fill(
        RoutingFlips,
        layers=(fill(LayerFlips, layer=1, tokens=240, set_flips=12),),
        tokens=240,
        tokens_any_layer=18,
    ),
    toggles=(
        toggle("acts", TRIAL, TRIAL),
        toggle("masked", TRIAL, INERT_TRIAL),
        toggle("idle", INERT_TRIAL, INERT_TRIAL),
        toggle("refused", None, INERT_TRIAL),
    ),
)


def grown(errors: list[float], flips: Mapping[int, int] | None = None) -> Report:
    """A report with these relative L2 errors after its layers and in its logits, all of them MoE layers."""
    names = [*(f"layers[{i}]" for i in range(len(errors) - 1)), "after"]
    growth = [
        fill(LayerGrowth, name=name, node="lm_head" if name == "after" else name, carried=fill(Size, relative_l2=error))
        for name, error in zip(names, errors, strict=True)
    ]
    layers = tuple(
        fill(LayerFlips, layer=i, tokens=400, set_flips=(flips or {}).get(i, 0)) for i in range(len(errors) - 1)
    )
    routed = None if flips is None else RoutingFlips(layers=layers, tokens=400, tokens_any_layer=sum(flips.values()))
    return replace(REPORT, growth=tuple(growth), flips=routed)
