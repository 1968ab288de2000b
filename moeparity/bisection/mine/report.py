"""What `moeparity mine` found: prompts and tokens by their probability to flip, and how well that held."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from moeparity.output.json import to_json

SCHEMA = "moeparity.mine/1"
"""Grows when a field changes its meaning or goes; new fields may appear without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedPrompt:
    """One prompt of the file, by its number there from 0.

    expected: tokens expected to flip in some layer, of `tokens`; their quotient is what prompts are ranked by.
    input_ids, mask, probability: per token, mask 1 where it is scored; probability to flip in some layer.
    """

    prompt: int
    tokens: int
    expected: float
    input_ids: tuple[int, ...]
    mask: tuple[int, ...]
    probability: tuple[float, ...]

    @property
    def share(self) -> float:
        """Expected share of its tokens that flip."""
        return self.expected / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedToken:
    """One token: which prompt, where in it, its id; the probability to flip, and the layer where it is greatest.

    margin: the least difference, over layers, between the lowest chosen selection score and the greatest other one.
    """

    prompt: int
    position: int
    token: int
    probability: float
    layer: int
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifts:
    """How well tokens were ranked: of the `share` of tokens ranked first, how much more often they flip than all do.

    tokens, flipped: what was run; expected: the sum of the predicted probabilities.
    lift: of the prediction; margin_lift: of the plain top-k margin on the same tokens; ceiling: 1 over the share of
        flipped tokens, or over `share` where that is less; all three NaN where nothing flipped.
    """

    prompts: int
    tokens: int
    flipped: int
    expected: float
    share: float
    lift: float
    margin_lift: float
    ceiling: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Both sides run: `drawn` is a random sample of the prompts not calibrated on, `mined` the first of them."""

    drawn: Lifts
    mined: Lifts


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The tokens that the noise was seen on."""

    sequences: int
    tokens: int
    flipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    """The first prompts and tokens, most likely to flip first.

    calibration: sequences and tokens of the recipe that both sides ran, and how many of the tokens flipped.
    prompts_read, tokens_read: what was ranked; expected: tokens of these expected to flip. draws: of noise per layer.
    repeated: prompts of the file that are among the calibration's, which a check leaves out.
    """

    reference: str
    candidate: str
    calibration: Calibration
    prompts_read: int
    tokens_read: int
    expected: float
    repeated: int
    draws: int
    prompts: tuple[MinedPrompt, ...]
    tokens: tuple[MinedToken, ...]
    check: Check | None = None

    @property
    def exit_code(self) -> int:
        """0: nothing was asked that could fail."""
        return 0

    def checked(self, check: Check) -> Mined:
        """With the outcome of a check."""
        return replace(self, check=check)

    def to_json(self) -> str:
        """Strict JSON; numbers that are not finite are the words nan, inf or -inf."""
        return to_json(SCHEMA, self)

    def to_tokens(self) -> str:
        """The prompts as a token file of JSON lines, in their order."""
        lines = ({"input_ids": list(p.input_ids), "mask": list(p.mask)} for p in self.prompts)
        return "\n".join(json.dumps(line) for line in lines)
