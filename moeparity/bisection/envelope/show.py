"""The envelope in sentences, and as a table in which one row stands for a node in all layers with the same verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from moeparity.bisection.data import ReportData
from moeparity.bisection.envelope.data import Envelope, EnvelopedNode, EnvelopeVerdict, OrderBand
from moeparity.output.blocks import Block, Group, Styled, bullets, columns, group, table
from moeparity.output.words import percent, quantity

INSIDE: Final = "inside"
ONE_SIDED: Final = "one_sided"
OUTSIDE: Final = "outside"
NOT_DRAWN: Final = "not_drawn"

MEANING: dict[EnvelopeVerdict, str] = {
    INSIDE: "lies inside: legal orders of the same sums lie as far apart, so rounding order can explain it",
    ONE_SIDED: "lies inside one way: the candidate lies in the reference's band, the reference outside the "
    "candidate's, so the candidate is more precise",
    OUTSIDE: "lies outside: no drawn legal order gives its value, so precision, form or semantics differ",
    NOT_DRAWN: "has no band: no orders were drawn",
}


def envelope_verdict(reference: bool | None, candidate: bool | None) -> EnvelopeVerdict:
    """The verdict, from whether each side's value lies in the other side's band (None: not looked at)."""
    if reference is None:
        return NOT_DRAWN
    if not reference:
        return OUTSIDE
    return INSIDE if candidate is None or candidate else ONE_SIDED


def envelope_reading(nodes: Sequence[EnvelopedNode], draws: int) -> list[str]:
    """What the bands say together, in sentences."""
    if not nodes:
        return ["The candidate's numerics give the reference's bits wherever a sum has an order to draw."]
    sentences = []
    roots = [node for node in nodes if node.root] or list(nodes)
    start = roots[0]
    sentences.append(f"The first, {start.node}, {MEANING[start.verdict]}.")
    banded_nodes = [node for node in nodes if node.verdict != NOT_DRAWN]
    inside_count = sum(node.verdict == INSIDE for node in banded_nodes)
    if banded_nodes and inside_count == len(banded_nodes):
        sentences.append("At every node with a band the sides lie no further apart than legal orders do.")
    elif banded_nodes:
        beyond, nodes_in_all = len(banded_nodes) - inside_count, quantity(len(banded_nodes), "node")
        verb = "differs" if beyond == 1 else "differ"
        sentences.append(f"{beyond} of {nodes_in_all} with a band {verb} by more than orders explain.")
    sentences.append(
        f"A band of {draws} draws is no proof: an element of one more legal order falls outside it with a probability "
        f"of about {2 / (draws + 1):.2g}. So a value counts as outside only if it leaves the band clearly more "
        "often or further than each draw leaves the band of the others."
    )
    return sentences


_WORDS = {"inside": "inside", "one_sided": "inside one way", "outside": "outside", "not_drawn": "not drawn"}


def show(report: ReportData) -> Iterator[Group]:
    """What legal orders give at each node."""
    if report.envelope is not None:
        yield group("Legal orders", *_blocks(report.envelope))


def _blocks(envelope: Envelope) -> Iterator[Block]:
    if envelope.nodes:
        titles = ("differ", "of these inside", "furthest out", "draws outside")
        of = columns("nodes", *titles, "verdict", first="op", words=("verdict",))
        reasons = dict.fromkeys(node.not_drawn for node in envelope.nodes if node.not_drawn is not None)
        legend = (
            f"{envelope.draws} orders of the reference's sums, on its inputs, its dtypes and roundings kept. furthest "
            "out: in ulps at a row's greatest magnitude. draws outside: the most elements that one draw has outside "
            "the band of the others, of those compared."
        )
        below = [legend, *(f"not drawn: {reason}" for reason in reasons)]
        yield table(of, _rows(envelope), *(Styled(sentence, "dim") for sentence in below))
    yield bullets(envelope.reading)


def _rows(envelope: Envelope) -> Iterator[tuple[str, ...]]:
    groups: dict[tuple[str, str], list[EnvelopedNode]] = {}
    for node in envelope.nodes:
        groups.setdefault((re.sub(r"\[\d+\]", "[*]", node.node), node.verdict), []).append(node)
    for (name, verdict), nodes in groups.items():
        bands = [node.reference for node in nodes if node.reference is not None]
        root = " (root)" * any(node.root for node in nodes)
        yield f"{name}{root}", str(len(nodes)), *_figures(bands), _WORDS[verdict]


def _figures(bands: Sequence[OrderBand]) -> tuple[str, ...]:
    if not bands:
        return ("", "", "", "")
    elements, differences = (sum(getattr(b, name) for b in bands) for name in ("elements", "differing"))
    outliers = sum(b.outside for b in bands)
    return (
        percent(differences / elements),
        percent(1 - outliers / differences) if differences else "",
        f"{max(b.furthest for b in bands):.2g} ulp" if outliers else "",
        percent(max(b.draws_outside / b.elements for b in bands)),
    )
