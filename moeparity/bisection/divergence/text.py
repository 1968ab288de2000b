"""Where it starts and how the error grows over the layers, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.text import Text

from moeparity.bisection.divergence.growth import JUMP, steps
from moeparity.bisection.divergence.report import Choice, LayerGrowth, Root
from moeparity.bisection.divergence.words import padding_reading
from moeparity.bisection.report import Report
from moeparity.bisection.sections import Shown
from moeparity.output.tables import PEAKS, Words, plain_grid, plain_table, thinned
from moeparity.output.words import percent

_BAR = 12
_MORE_ROOTS = 4


def _start(report: Report) -> Shown:
    yield "Where it starts", _roots(report)


def _growth(report: Report) -> Shown:
    if report.roots:
        yield "Growth over layers", growth_table(report)


def _roots(report: Report) -> RenderableType:
    if not report.roots:
        return Text("nowhere: every node has equal bits on both sides")
    root, *more_roots = report.roots
    lines: list[RenderableType] = [Text.assemble((root.node, "bold"), f" ({root.op}), {_sequences(root, report)}")]
    lines += [Words(sentence) for sentence in padding_reading(report)]
    lines += [_choice(choice) for choice in root.choices]
    if more_roots:
        names = ", ".join(root.node for root in more_roots[:_MORE_ROOTS])
        surplus = f" and {len(more_roots) - _MORE_ROOTS} more" if len(more_roots) > _MORE_ROOTS else ""
        lines.append(Words(f"further roots (equal inputs, unequal output): {names}{surplus}"))
    return Group(*lines)


def _sequences(root: Root, report: Report) -> str:
    run = report.run
    output = "equal values in another dtype" if root.same_values else "unequal output"
    tokens = f"{root.tokens} of {run.sequences * run.tokens_per_sequence} tokens"
    amount = "all" if root.pads_only else str(root.pads)
    padding = f", {amount} of them padding" if root.pads else ""
    return f"equal inputs, {output} in {root.sequences} of {run.sequences} sequences ({tokens}{padding})"


def _choice(choice: Choice) -> RenderableType:
    table = plain_grid(4)
    name = Text(choice.attribute, style="bold")
    of_reference = (choice.reference, choice.reference_evidence, choice.reference_set_by, choice.reference_origin)
    of_candidate = (choice.candidate, choice.candidate_evidence, choice.candidate_set_by, choice.candidate_origin)
    table.add_row("", name, "reference", _stand(*of_reference))
    table.add_row("", "", "candidate", _stand(*of_candidate))
    return table


def _stand(value: str, evidence: str, set_by: str, origin: str) -> str:
    """A side's value, how sure it is, and what set it: one text, so that a narrow terminal breaks it at blanks."""
    return ", ".join(filter(None, (f"{value} ({evidence})", set_by, origin)))


def growth_table(report: Report) -> RenderableType:
    """The error after each layer, as a number, as a bar on a log scale, and as a multiple of the layer before."""
    scale = _Scale(layer.carried.relative_l2 for layer in report.growth)
    columns = ("after", "rel. L2", scale.label, "per layer", "equal bits", "mean ulp", "max ulp", "flips")
    table = plain_table(*columns, names="largest local error", optional=(scale.label, "mean ulp", "equal bits"))
    flips = {f"layers[{f.layer}]": percent(f.set_flips / f.tokens) for f in report.flips.layers} if report.flips else {}
    factors = {step.layer: step.factor for step in steps(report.growth, report.flips)}
    jumps = sorted((name for name in factors if factors[name] >= JUMP), key=lambda name: -factors[name])[:PEAKS]
    at = {layer.name: i for i, layer in enumerate(report.growth)}
    rows, note = thinned(report.growth, {i for name in jumps for i in (at[name] - 1, at[name])})
    for layer in rows:
        error, factor = layer.carried, factors.get(layer.name)
        table.add_row(
            layer.name if layer.name.startswith("layers") else layer.node,
            f"{error.relative_l2:.2e}" if error.is_finite else "not finite",
            scale.bar(error.relative_l2),
            "" if factor is None else Text(f"x{factor:.2f}", style="bold red" if factor >= JUMP else ""),
            f"{error.equal_share:.1%}",
            f"{error.mean_ulp:.2f}",
            str(error.max_ulp),
            flips.get(layer.name, ""),
            _local(layer),
        )
    return Group(table, *note)


def _local(layer: LayerGrowth) -> str:
    if not layer.largest_local:
        return "no op of its own differs"
    size = "not finite" if math.isinf(layer.largest_local) else f"{layer.largest_local:.2e}"
    return f"{size} {layer.largest_local_node.removeprefix(layer.name + '.')}"


class _Scale:
    """A log scale between the powers of ten around some errors; what is 0 or not finite has no bar."""

    def __init__(self, errors: Iterable[float]) -> None:
        logs = [math.log10(error) for error in errors if 0 < error < math.inf]
        self.low = math.floor(min(logs)) if logs else 0
        self.high = max(math.ceil(max(logs)), self.low + 1) if logs else 1
        self.label = f"1e{self.low} to 1e{self.high}" if logs else ""

    def bar(self, error: float) -> str:
        """One error as a bar."""
        if not 0 < error < math.inf:
            return ""
        share = (math.log10(error) - self.low) / (self.high - self.low)
        return "#" * max(1, round(_BAR * share))


SHOWN = {"roots": _start, "growth": _growth}
