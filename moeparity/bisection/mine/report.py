"""The result of `moeparity flips --mine`: prompts and tokens by their probability to flip, and how well it
predicted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from moeparity.output.json import to_json

SCHEMA = "moeparity.mine/1"
"""Schema of the JSON. The number grows if a field changes its meaning or goes; new fields may appear without that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedPrompt:
    """One prompt of the file; `prompt` is its number there, from 0.

    tokens: how many it has. expected: how many of them are expected to flip in some layer; prompts are ranked by the
    quotient. input_ids, mask, probability: per token; mask is 1 if it is scored; probability to flip in some layer.
    """

    prompt: int
    tokens: int
    expected: float
    input_ids: tuple[int, ...]
    mask: tuple[int, ...]
    probability: tuple[float, ...]

    @property
    def share(self) -> float:
        """The expected fraction of its tokens that flip."""
        return self.expected / self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedToken:
    """One token: the number of its prompt, its position and id, its probability to flip, and the layer where that is
    largest.

    margin: the smallest distance, over layers, of the lowest chosen selection score from the highest other one.
    """

    prompt: int
    position: int
    token: int
    probability: float
    layer: int
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifts:
    """How well tokens were ranked, in a run of both sides.

    tokens, flipped: how many were run and how many flipped. expected: the sum of the predicted probabilities. lift: how
        much more often the `share` of tokens ranked first flips than all do. margin_lift: the same, ranked by the plain
        top-k margin. ceiling: the largest lift possible, 1 over the fraction of flipped tokens, or over `share` if that
        is less. All three are NaN if nothing flipped.
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
    """Both sides were run on prompts outside the calibration: `drawn` at random, and `mined`, those ranked first."""

    drawn: Lifts
    mined: Lifts


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How many sequences and tokens the noise was measured on, and how many of the tokens flipped."""

    sequences: int
    tokens: int
    flipped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mined:
    """The prompts and tokens that are most likely to flip, the likeliest first.

    calibration: the recipe's sequences that both sides ran. prompts_read, tokens_read: what was ranked. expected: how
    many of these tokens are expected to flip. draws: of noise, per layer. repeated: prompts of the file that are also
    in the calibration, and so not in a check.
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
        """Always 0, since nothing was asked that could fail."""
        return 0

    def to_json(self) -> str:
        """Strict JSON; numbers that are not finite are the words nan, inf or -inf."""
        return to_json(SCHEMA, self)

    def to_tokens(self) -> str:
        """The prompts as a token file of JSON lines, in their order."""
        lines = ({"input_ids": list(p.input_ids), "mask": list(p.mask)} for p in self.prompts)
        return "\n".join(json.dumps(line) for line in lines)
