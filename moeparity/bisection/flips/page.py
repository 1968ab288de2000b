"""The flip map: every layer and token, with experts and margins where one points at it."""

from __future__ import annotations

from markupsafe import Markup

from moeparity.bisection.flips.report import RoutingFlips
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Figures
from moeparity.output.html.markup import tag
from moeparity.output.html.page import Block
from moeparity.output.html.plots import legend, plot

_KEYS = {
    "flip": "flips, inherited",
    "root": "flips, a root",
    "slots": "same experts in another order",
    "same": "same experts in the same order",
}


def _map(report: Report) -> Figures:
    if report.flips is None or report.per_token is None or not _flips(report.flips):
        return
    buttons = (("in", "Zoom in", "+"), ("out", "Zoom out", "-"), ("all", "Show all tokens", "All"))
    tools = [tag("button", text, type="button", aria_label=label, data_zoom=key) for key, label, text in buttons]
    bar = tag("div", tools, class_="tools", id="zoom", role="group", aria_label="Zoom of the flip map")
    yield Block(
        title="Layers x tokens", body=legend(_KEYS) + plot("flipmap", "Routing flips by layer and token", bar) + _note()
    )


def _flips(flips: RoutingFlips) -> bool:
    """Whether there is anything to see."""
    return any(layer.slot_flips for layer in flips.layers)


def _note() -> Markup:
    text = (
        "Tokens stand side by side, sequence after sequence; where several share a column it shows the strongest of "
        "them. + and - zoom, arrow keys move, with Shift to the next flip, Enter shows the sequence below."
    )
    return tag("p", text, class_="t-dim")


FIGURES = {"flips": _map}
