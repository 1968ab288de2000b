"""What was mined, for the terminal."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.text import Text

from moeparity.bisection.mine.report import Lifts, Mined
from moeparity.output.status import status, status_line
from moeparity.output.tables import plain_table
from moeparity.output.words import percent, quantity

_ROWS = 10
"""Rows of a list that goes on in the files."""


def print_mined(mined: Mined, out: Console, path: Path | None) -> None:
    """Print the first prompts and tokens, and how well the prediction held where that was checked."""
    opening = status_line("done", _status(mined))
    out.print(opening)
    calibration = mined.calibration
    out.print(f"reference  {mined.reference}\ncandidate  {mined.candidate}")
    out.print(
        f"calibrated on {quantity(calibration.sequences, 'sequence')} of the recipe, {calibration.tokens} tokens: "
        f"{percent(calibration.flipped / calibration.tokens)} flip in some layer"
    )
    out.print(
        f"{mined.prompts_read} prompts, {mined.tokens_read} tokens, ranked from one pass of the reference: "
        f"{percent(mined.expected / mined.tokens_read)} expected to flip"
    )
    if not mined.expected:
        out.print("No draw flips a token: tokens are listed by their plain margin, prompts as in the file.")
    prompts = plain_table("tokens", "expected to flip", "part", names="prompt", names_first=True)
    for prompt in mined.prompts[:_ROWS]:
        prompts.add_row(str(prompt.prompt), str(prompt.tokens), f"{prompt.expected:.2f}", f"{prompt.share:.1%}")
    tokens = plain_table("token", "id", "probability", "mostly in layer", names="prompt", names_first=True)
    for token in mined.tokens[:_ROWS]:
        cells = (str(token.prompt), str(token.position), str(token.token))
        tokens.add_row(*cells, f"{token.probability:.2f}", str(token.layer))
    for title, table in (("Prompts", prompts), ("Tokens", tokens)):
        out.print(Text(f"\n{title} most likely to flip", style="bold"))
        out.print(table)
    if mined.check is not None:
        _print_check(mined, out)
    if path is not None:
        out.print(f"\n{path}: {len(mined.prompts)} prompts; in a recipe: tokens: {{file: {path.name}, ...}}")
    out.print()
    out.print(opening)


def _status(mined: Mined) -> str:
    expected = percent(mined.expected / mined.tokens_read)
    figure = f"{expected} of {mined.tokens_read} tokens expected to flip, {quantity(len(mined.prompts), 'prompt')} kept"
    return status(figure, "no gate", 0)


def _print_check(mined: Mined, out: Console) -> None:
    check = mined.check
    assert check is not None
    out.print(Text("\nHow well it held", style="bold"))
    table = plain_table(
        "tokens", "flip", "expected", "lift", "of plain margin", "at most", names="prompts", names_first=True
    )
    for name, lifts in (("drawn", check.drawn), ("mined", check.mined)):
        table.add_row(
            f"{lifts.prompts} {name}",
            str(lifts.tokens),
            percent(lifts.flipped / lifts.tokens),
            percent(lifts.expected / lifts.tokens),
            *(_number(value) for value in (lifts.lift, lifts.margin_lift, lifts.ceiling)),
        )
    out.print(table)
    out.print(
        f"lift: how much more often the {check.drawn.share:.0%} of tokens ranked first flip than all of them. "
        "Both sides ran prompts that were not calibrated on" + (f"; {mined.repeated} were." if mined.repeated else ".")
    )
    out.print(_reading(check.drawn, check.mined))


def _reading(random_lifts: Lifts, top_lifts: Lifts) -> str:
    if not random_lifts.flipped:
        return "No token of the drawn prompts flipped: nothing can be said of the ranking."
    times = (top_lifts.flipped / top_lifts.tokens) / (random_lifts.flipped / random_lifts.tokens)
    return f"A token of the mined prompts flips {times:.2g} times as often as one of the drawn prompts."


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}x"
