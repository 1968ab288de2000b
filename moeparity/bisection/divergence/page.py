"""How the error grows over the layers, as a picture."""

from __future__ import annotations

import math

from moeparity.bisection.divergence.growth import steps
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Figures
from moeparity.output.html.page import Block
from moeparity.output.html.plots import legend, plot


def _growth(report: Report) -> Figures:
    if not report.roots or not report.growth:
        return
    flips = (
        {f"layers[{f.layer}]": f.set_flips / f.tokens for f in report.flips.layers if f.tokens} if report.flips else {}
    )
    factors = {step.layer: step.factor for step in steps(report.growth, report.flips)}
    rows = [
        {
            "name": layer.name if layer.name.startswith("layers") else layer.node,
            "carried": _drawn(layer.carried.relative_l2),
            "size": f"{layer.carried.relative_l2:.2e}" if layer.carried.is_finite else "not finite",
            "local": _drawn(layer.largest_local),
            "at": layer.largest_local_node.removeprefix(f"{layer.name}."),
            "factor": _drawn(factors.get(layer.name, 0.0)),
            "flips": flips.get(layer.name),
        }
        for layer in report.growth
    ]
    keys = legend({"carried": "carried error", "local": "largest local error in the layer"})
    yield Block(
        title="Error after each layer", body=keys + plot("growth", "Relative L2 error by layer"), data={"growth": rows}
    )


def _drawn(value: float) -> float | None:
    """What a log axis can show."""
    return value if value > 0 and math.isfinite(value) else None


FIGURES = {"growth": _growth}
