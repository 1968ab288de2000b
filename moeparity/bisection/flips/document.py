"""The report of `moeparity flips`: the flips of a recipe, or between two engines' recorded routes."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.flips.run import Flipped
from moeparity.bisection.flips.show import flip_map, show_flips
from moeparity.bisection.per_token import show as per_token
from moeparity.output.blocks import Block, Document, Group, Status, group, names
from moeparity.output.findings import in_rows
from moeparity.output.status import state_of
from moeparity.output.words import quantity


def document(flipped: Flipped, subject: str, command: str = "flips") -> Document:
    """The flips as a document, with the recipe's bounds on them."""
    return Document(command=command, subject=subject, blocks=tuple(_blocks(flipped)))


def _blocks(flipped: Flipped) -> Iterator[Block]:
    yield Status(state_of(flipped.exit_code, bounded=bool(flipped.findings)), flipped.status)
    sequences = f"{quantity(flipped.sequences, 'sequence')}{_of_same(flipped)}"
    yield names([("reference", flipped.reference), ("candidate", flipped.candidate), ("tokens", sequences)])
    yield from _pictures(flipped)
    yield from show_flips(flipped.flips)
    if flipped.findings:
        yield group("What the recipe expects", in_rows(flipped.findings))


def _pictures(flipped: Flipped) -> Iterator[Group]:
    """The flip map, and the tokens below it; only for a recipe, not for recorded routes."""
    if flipped.report is not None:
        tokens = [block for of in per_token.show(flipped.report) for block in of.blocks]
        blocks = [picture for picture in (flip_map(flipped.report), *tokens) if picture is not None]
        if blocks:
            yield group("Where routes flip", *blocks)


def _of_same(flipped: Flipped) -> str:
    """A sentence saying whether the recorded routes are known to be of the same tokens."""
    if flipped.same_tokens is None:
        return ""
    if flipped.same_tokens == flipped.sequences:
        return ", token ids agree as far as both files give them"
    if not flipped.same_tokens:
        return "; none has token ids in both files, so their tokens are not compared"
    return f"; token ids agree in {flipped.same_tokens} of them, the others have none in both files to compare"
