"""What was mined, as shown: prompts and tokens by their chance to flip, and how well the prediction held."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from moeparity.bisection.mine.report import Check, Lifts, Mined
from moeparity.output.blocks import Block, Document, Group, Lines, Phrase, Status, columns, group, lines, names, table
from moeparity.output.figures import Line, Series
from moeparity.output.status import status
from moeparity.output.words import percent, quantity

_ROWS = 10
"""At most this many rows of a list are shown; the files have all."""


def document(mined: Mined, recipe: str, path: Path | None = None) -> Document:
    """The prompts and tokens ranked first, and how well the prediction held if it was checked. `path`: the file to
    which the prompts were written.
    """
    return Document(command="flips --mine", subject=recipe, blocks=tuple(_blocks(mined, path)))


def _blocks(mined: Mined, path: Path | None) -> Iterator[Block]:
    yield Status("done", _status(mined))
    yield names([("reference", mined.reference), ("candidate", mined.candidate)])
    yield lines(*_head(mined))
    prompts = [
        (str(prompt.prompt), str(prompt.tokens), f"{prompt.expected:.2f}", f"{prompt.share:.1%}")
        for prompt in mined.prompts[:_ROWS]
    ]
    tokens = [
        (str(token.prompt), str(token.position), str(token.token), f"{token.probability:.2f}", str(token.layer))
        for token in mined.tokens[:_ROWS]
    ]
    yield group(
        "Prompts most likely to flip",
        _prompts(mined),
        table(columns("tokens", "expected to flip", "part", first="prompt"), prompts),
    )
    yield group(
        "Tokens most likely to flip",
        _tokens(mined),
        table(columns("token", "id", "probability", "mostly in layer", first="prompt"), tokens),
    )
    if mined.check is not None:
        yield _prediction(mined, mined.check)
    if path is not None:
        yield lines("", f"{path}: {len(mined.prompts)} prompts; in a recipe: tokens: {{file: {path.name}, ...}}")


def _status(mined: Mined) -> str:
    expected = percent(mined.expected / mined.tokens_read)
    figure = f"{expected} of {mined.tokens_read} tokens expected to flip, {quantity(len(mined.prompts), 'prompt')} kept"
    return status(figure, "no gate", 0)


def _head(mined: Mined) -> Iterator[Phrase]:
    calibration = mined.calibration
    yield (
        f"calibrated on {quantity(calibration.sequences, 'sequence')} of the recipe, {calibration.tokens} tokens: "
        f"{percent(calibration.flipped / calibration.tokens)} flip in some layer"
    )
    yield (
        f"{mined.prompts_read} prompts, {mined.tokens_read} tokens, ranked from one pass of the reference: "
        f"{percent(mined.expected / mined.tokens_read)} expected to flip"
    )
    if not mined.expected:
        yield "No draw flips a token: tokens are listed by their plain margin, prompts as in the file."


def _prediction(mined: Mined, check: Check) -> Group:
    rows = [
        (
            f"{lifts.prompts} {name}",
            str(lifts.tokens),
            percent(lifts.flipped / lifts.tokens),
            percent(lifts.expected / lifts.tokens),
            *(_number(value) for value in (lifts.lift, lifts.margin_lift, lifts.ceiling)),
        )
        for name, lifts in (("drawn", check.drawn), ("mined", check.mined))
    ]
    of = columns("tokens", "flip", "expected", "lift", "of plain margin", "at most", first="prompts")
    repeated = f", except {mined.repeated}." if mined.repeated else "."
    says: Lines = lines(
        f"lift: how much more often the {check.drawn.share:.0%} of tokens ranked first flip than all of them. Both "
        f"sides ran prompts on which nothing was calibrated{repeated}",
        _reading(check.drawn, check.mined),
    )
    return group("How well it held", table(of, rows), says)


def _reading(random_lifts: Lifts, top_lifts: Lifts) -> str:
    if not random_lifts.flipped:
        return "No token of the drawn prompts flipped: nothing can be said of the ranking."
    times = (top_lifts.flipped / top_lifts.tokens) / (random_lifts.flipped / random_lifts.tokens)
    return f"A token of the mined prompts flips {times:.2g} times as often as one of the drawn prompts."


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}x"


def _prompts(mined: Mined) -> Series | None:
    if not mined.prompts:
        return None
    return Series(
        title="Prompts",
        name="prompts",
        label="Expected fraction of tokens that flip, by rank of the prompt",
        x=range(1, len(mined.prompts) + 1),
        ticks=["", *map(str, range(1, len(mined.prompts) + 1))],
        x_label="rank of the prompt",
        y_label="expected fraction that flips",
        lines=[Line(label="prompts kept", values=[prompt.share for prompt in mined.prompts], look="points")],
        bound=("all prompts that were read", mined.expected / mined.tokens_read),
        words=[
            [f"prompt {prompt.prompt}", f"{prompt.expected:.2f} of {prompt.tokens} tokens, {percent(prompt.share)}"]
            for prompt in mined.prompts
        ],
    )


def _tokens(mined: Mined) -> Series | None:
    if not mined.tokens:
        return None
    tokens = sorted(mined.tokens, key=lambda token: token.margin)
    return Series(
        title="Tokens",
        name="tokens",
        label="Chance to flip of each token, by its least margin",
        x=[token.margin for token in tokens],
        x_label="least margin of selection scores in some layer",
        y_label="chance to flip",
        lines=[Line(label="tokens kept", values=[token.probability for token in tokens], look="points")],
        reach=(0.0, 1.05),
        words=[
            [
                f"prompt {token.prompt}, token {token.position}",
                f"chance {token.probability:.2f}, mostly in layer {token.layer}",
                f"margin {token.margin:.3g}",
            ]
            for token in tokens
        ],
        note="margin: between the lowest chosen selection score and the greatest other one, of the layer where it is "
        "least; the chance also knows how far the candidate moves each gate's logits.",
    )
