"""Aligns the ids of a sequence that two sides tokenised differently, by their text and never by a guess.

A policy gives a probability to ids, not to a text. So where the ids differ, a token of one side has no counterpart on
the other. What can be compared is told apart from what can't:

- a token with the same ids before it: as in any log;
- a token with the same id, behind the same text in other ids: compared, under a label of its own;
- a span of the same text in other ids: the sums of log-probabilities over it, if both sides score all of it;
- all that stands behind another text: nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os.path import commonprefix
from typing import Literal

import torch
from torch import Tensor

from moeparity.inputs.tokens.tokenizer import FileTokenizer, Piece

SpanKind = Literal["same text", "special token as text", "placeholders", "other text"]
"""How the trainer's ids of a sequence differ from the sampler's.

special token as text: one side spells out what is a single mark, such as the end of a turn, to the other side.
placeholders: a run of one id, such as those that stand for an image, is longer on one side.
"""
NAME = "retokenised"
"""Of the cause, and of the way of grouping tokens."""
_SHOWN = 3
_LONGEST = 64
"""A special token is looked for in the text of at most so many tokens."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `begin` to `end` of the sampler with the same text as tokens `trainer_begin` to `trainer_end` of the
    trainer.
    """

    begin: int
    end: int
    trainer_begin: int
    trainer_end: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """How two lists of ids go together.

    counterparts: int64 [n], by token of the sampler the trainer's token with the same id behind the same text, -1 if
    there is none. spans: those of the same text in other ids. kinds: of the differences, in order. first: the index of
    the sampler's token at which the first one begins. says: what both sides have there.
    """

    counterparts: Tensor
    spans: tuple[Span, ...]
    kinds: tuple[SpanKind, ...]
    first: int
    says: str


@dataclass(frozen=True, slots=True)
class Retokenised:
    """What became of a sequence whose ids differ.

    kinds, first, says: as in `Alignment`. sums: fp64 [S, 2] in nats, of each span that both sides score the sampler's
    and the trainer's sum of log-probabilities. behind: how many tokens are compared behind other ids of the same text.
    lost: how many of the sampler's scored tokens are neither compared nor in such a span.
    """

    kinds: tuple[SpanKind, ...]
    first: int
    says: str
    sums: Tensor
    behind: int
    lost: int


def align(sampled: Sequence[int], scored: Sequence[int], tokenizer: FileTokenizer) -> Alignment:
    """How the ids of sampler and trainer, which differ, go together. Raises TokensError for ids without a text."""
    sides = (sampled, scored)
    pieces = [tokenizer.pieces(side) for side in sides]
    texts = ["".join(_comparable(side, of, tokenizer)) for side, of in zip(sides, pieces, strict=True)]
    borders = [_borders(side, of, tokenizer) for side, of in zip(sides, pieces, strict=True)]
    alike = len(commonprefix(texts))  # noqa: RUF071  characters are compared
    common = sorted(place for place in borders[0].keys() & borders[1].keys() if place <= alike)
    counterparts = torch.full((len(sampled),), -1)
    spans: list[Span] = []
    for place, following in pairwise(common):
        span = Span(borders[0][place], borders[0][following], borders[1][place], borders[1][following])
        if sampled[span.begin : span.end] == scored[span.trainer_begin : span.trainer_end]:
            counterparts[span.begin : span.end] = torch.arange(span.trainer_begin, span.trainer_end)
        else:
            spans.append(span)
    rest = Span(borders[0][common[-1]], len(sampled), borders[1][common[-1]], len(scored))
    kinds: list[SpanKind] = ["same text"] if spans else []
    says = [_says(sides, span, tokenizer) for span in spans[:1]]
    if rest.begin < rest.end or rest.trainer_begin < rest.trainer_end:
        kind, words = _difference(sides, rest, tokenizer)
        kinds.append(kind)
        says.append(words)
    return Alignment(counterparts, tuple(spans), tuple(kinds), min(span.begin for span in [*spans, rest]), says[0])


def _comparable(ids: Sequence[int], pieces: Sequence[Piece], tokenizer: FileTokenizer) -> Iterator[str]:
    """The text of each piece. That of a special token, and of bytes that are no text, is its ids: only these are the
    same.
    """
    begin = 0
    for piece in pieces:
        special = piece.end == begin + 1 and tokenizer.is_special(ids[begin])
        yield f"\0{list(ids[begin : piece.end])}\0" if special or "\ufffd" in piece.text else piece.text
        begin = piece.end


def _borders(ids: Sequence[int], pieces: Sequence[Piece], tokenizer: FileTokenizer) -> dict[int, int]:
    """Where tokens begin in the comparable text: the place of each, and its index. Of several that begin at one place,
    since all but the last have no text, the last.
    """
    borders, place = {0: 0}, 0
    for piece, text in zip(pieces, _comparable(ids, pieces, tokenizer), strict=True):
        place += len(text)
        borders[place] = piece.end
    return borders


def _difference(
    sides: tuple[Sequence[int], Sequence[int]], rest: Span, tokenizer: FileTokenizer
) -> tuple[SpanKind, str]:
    """What the difference of the text is that begins with the tokens of `rest`, and both sides there."""
    places = rest.begin, rest.trainer_begin
    near = {token for ids, at in zip(sides, places, strict=True) for token in ids[max(0, at - 1) : at + 1]}
    for token in sorted(near):
        lengths = [_run(ids, at, token) for ids, at in zip(sides, places, strict=True)]
        if tokenizer.is_special(token) and all(lengths) and lengths[0] != lengths[1]:
            return "placeholders", f"{lengths[0]} times {_words([token], tokenizer)} against {lengths[1]} times"
    mine, theirs = (list(ids[at : at + _LONGEST]) for ids, at in zip(sides, places, strict=True))
    spelled = _spells(mine, theirs, tokenizer) or _spells(theirs, mine, tokenizer)
    return "special token as text" if spelled else "other text", _says(sides, rest, tokenizer)


def _spells(ids: list[int], plain: list[int], tokenizer: FileTokenizer) -> bool:
    """Whether `plain` begins with the text of the special token with which `ids` begins."""
    if not ids or not plain or not tokenizer.is_special(ids[0]) or tokenizer.is_special(plain[0]):
        return False
    return "".join(piece.text for piece in tokenizer.pieces(plain)).startswith(tokenizer.piece(ids[0]))


def _run(ids: Sequence[int], at: int, token: int) -> int:
    """How often the token stands in a row around place `at`."""
    begin = end = at
    while begin and ids[begin - 1] == token:
        begin -= 1
    while end < len(ids) and ids[end] == token:
        end += 1
    return end - begin


def _says(sides: tuple[Sequence[int], Sequence[int]], span: Span, tokenizer: FileTokenizer) -> str:
    """The tokens of both sides in a span, by the vocabulary's entries."""
    ends = (span.begin, span.end), (span.trainer_begin, span.trainer_end)
    return " against ".join(_words(ids[begin:end], tokenizer) for ids, (begin, end) in zip(sides, ends, strict=True))


def _words(ids: Sequence[int], tokenizer: FileTokenizer) -> str:
    words = [f"{tokenizer.piece(token)!r} ({token})" for token in ids[:_SHOWN]]
    return " ".join([*words, *["..."] * (len(ids) > _SHOWN)]) or "no more tokens"
