"""What was mined as pictures: prompts and tokens by their chance to flip, tokens beside their margins."""

from __future__ import annotations

from collections.abc import Iterator

from moeparity.bisection.mine.report import Mined
from moeparity.output.html.page import Block, PageSection
from moeparity.output.html.series import Line, Series, picture
from moeparity.output.words import percent


def pictures(mined: Mined) -> PageSection | None:
    """Of the prompts and tokens that were kept; None where none were."""
    blocks = [*_prompts(mined), *_tokens(mined)]
    title = "How likely do they flip?"
    return PageSection(key="chances", short="Chances", title=title, blocks=blocks) if blocks else None


def _prompts(mined: Mined) -> Iterator[Block]:
    if not mined.prompts:
        return
    series = Series(
        name="prompts",
        label="Expected part of tokens that flip, by rank of the prompt",
        x=range(1, len(mined.prompts) + 1),
        x_label="rank of the prompt",
        y_label="expected part that flips",
        lines=[Line(label="prompts kept", values=[prompt.share for prompt in mined.prompts], look="points")],
        bound=("all prompts that were read", mined.expected / mined.tokens_read),
        words=[
            [f"prompt {prompt.prompt}", f"{prompt.expected:.2f} of {prompt.tokens} tokens, {percent(prompt.share)}"]
            for prompt in mined.prompts
        ],
    )
    yield picture("Prompts", series)


def _tokens(mined: Mined) -> Iterator[Block]:
    if not mined.tokens:
        return
    tokens = sorted(mined.tokens, key=lambda token: token.margin)
    series = Series(
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
    )
    note = (
        "margin: between the lowest chosen selection score and the greatest other one, of the layer where it is least; "
        "the chance also knows how far the candidate moves each gate's logits."
    )
    yield picture("Tokens", series, note)
