"""What a legal-order envelope means, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moeparity.bisection.envelope.report import EnvelopedNode, Verdict

INSIDE: Final = "inside"
ONE_SIDED: Final = "one_sided"
OUTSIDE: Final = "outside"
NOT_DRAWN: Final = "not_drawn"

MEANING: dict[Verdict, str] = {
    INSIDE: "inside: legal orders of the same sums lie as far apart: rounding order",
    ONE_SIDED: "inside the reference's band, but not the reference in the candidate's, which rounds less: precision",
    OUTSIDE: "outside: no drawn legal order gives this: precision, form or semantics differ",
    NOT_DRAWN: "no orders drawn",
}


def envelope_verdict(reference: bool | None, candidate: bool | None) -> Verdict:
    """From whether each side's value lies in the other's band (None: not looked at)."""
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
    sentences.append(f"First: {start.node}: {MEANING[start.verdict]}.")
    banded_nodes = [node for node in nodes if node.verdict != NOT_DRAWN]
    inside_count = sum(node.verdict == INSIDE for node in banded_nodes)
    if banded_nodes and inside_count == len(banded_nodes):
        sentences.append("At every node with a band the sides lie no further apart than legal orders do.")
    elif banded_nodes:
        sentences.append(
            f"{len(banded_nodes) - inside_count} of {len(banded_nodes)} nodes with a band differ by more than an order."
        )
    sentences.append(
        f"A band of {draws} draws is no proof: an element of one more legal order falls outside it with a probability "
        f"of about {2 / (draws + 1):.2g}, which is why a value is held to how the draws lie among each other."
    )
    return sentences
