"""Tokens of speculative decoding: the sequences, and those in which steps with rejected drafts are computed."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeparity import paths
from moeparity.errors import SpecError, TokensError, Where, counted, shown
from moeparity.inputs.tokens.grid import token_grid
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.plan.schedule.drafts import Drafts, Verified, verified
from moeparity.plan.schedule.steps import Step

_DRAWN = re.compile(r"(\d+):(0?\.\d+|[01](?:\.0*)?)")


def with_drafts(tokens: TokenSet, name: str, *, flat: bool, kept_drafts: int = 0) -> tuple[TokenSet, Verified]:
    """The tokens with the sequences that verify steps add, which nothing scores, behind them; and the steps.

    name: a file whose line N has the drafts of sequence N, a list of ids for each of its steps; or `K:RATE`, by which K
    tokens are drafted in each step, and each is right with that probability, always in the same way. flat,
    kept_drafts: as for `verified`. Raises SpecError with the line, TokensError for tokens that are not padded on the
    right, or hold images.
    """
    if not bool(tokens.attention_mask[:, 0].all()):
        raise TokensError("tokens: drafts are verified in sequences that begin in the first column. Pad on the right.")
    if tokens.images is not None:
        raise TokensError("tokens: drafts are verified in sequences of text, and these hold images. Leave those out.")
    if tokens.requests:
        raise TokensError(
            "tokens: drafts are verified in sequences whose requests ask for no biases, masks or grammars, and these "
            "have a `request`. Leave it out."
        )
    prompts = token_grid(tokens, with_ids=False).prompts
    sequences = [row[mask].tolist() for row, mask in zip(tokens.input_ids, tokens.attention_mask, strict=True)]
    drawn = _DRAWN.fullmatch(name)
    if drawn is not None:
        generator = random.Random(0)  # noqa: S311
        every = int(tokens.input_ids.max()) + 1
        drafts: list[Drafts] = [
            _drawn(ids, prompt, int(drawn[1]), float(drawn[2]), every, generator, prefills=flat)
            for ids, prompt in zip(sequences, prompts, strict=True)
        ]
    else:
        drafts = read_drafts(Path(name), len(sequences))
    of = verified(sequences, prompts, drafts, Where(Path(name)), flat=flat, kept_drafts=kept_drafts)
    return _with_rows(tokens, of.added), of


def read_drafts(path: Path, sequences: int) -> list[Drafts]:
    """The drafts of each sequence. Raises SpecError for a file that is not one line of lists of ids for each."""
    try:
        lines = paths.contents(path, "drafts").decode("utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpecError(
            f"{Where(path)}: cannot be read: {reason}. Expected JSON lines, or `K:RATE` in place of a file, as 3:0.7."
        ) from None
    if len(lines) != sequences:
        raise SpecError(
            f"{Where(path)}: {counted(len(lines), 'line')}; expected one for each of {counted(sequences, 'sequence')}."
        )
    return [_line(Where(path, number), line) for number, line in enumerate(lines, start=1)]


def _line(where: Where, line: str) -> Drafts:
    try:
        drafts: Any = json.loads(line)
    except (ValueError, RecursionError):
        drafts = None
    if not isinstance(drafts, list) or not all(isinstance(of_step, list) for of_step in drafts):
        raise SpecError(f"{where}: {shown(line)}; expected a list of ids for each step, as [[], [5, 7], []].")
    for token in (token for of_step in drafts for token in of_step):
        if type(token) is not int or token < 0:
            raise SpecError(f"{where}: {shown(token)} is no token id; expected whole numbers from 0.")
    return drafts


def _drawn(
    ids: Sequence[int], prompt: int, most: int, rate: float, every: int, generator: random.Random, *, prefills: bool
) -> Drafts:
    """Drafts of `most` tokens a step, each of which is the sequence's own at `rate`, else another id below `every`."""
    drafts: list[list[int]] = [[]] if prefills else []
    length = prompt + prefills
    while length < len(ids) or not drafts:
        right = [generator.random() < rate for _ in ids[length : length + most]]
        following = ids[length : length + most]
        drafts.append([
            token if is_right else (token + generator.randrange(1, max(every, 2))) % max(every, 2)
            for token, is_right in zip(following, right, strict=True)
        ])  # fmt: skip
        length += (right.index(False) if False in right else len(right)) + 1
    return drafts


def _with_rows(tokens: TokenSet, added: Sequence[Sequence[int]]) -> TokenSet:
    """The tokens with unscored sequences behind them; nothing is recorded of these."""
    width = max([tokens.input_ids.shape[1], *map(len, added)])
    size = len(tokens.input_ids) + len(added)

    def block(old: Tensor | None, fill: float) -> Tensor | None:
        if old is None:
            return None
        new = torch.full((size, width, *old.shape[2:]), fill, dtype=old.dtype)
        new[: old.shape[0], : old.shape[1]] = old
        return new

    blank = {"loss_mask": 0, "labels": 0, "logprobs": torch.nan, "trainer_logprobs": torch.nan, "routed_experts": -1}
    blocks: dict[str, Any] = {key: block(getattr(tokens, key), fill) for key, fill in blank.items()}
    ids, mask = block(tokens.input_ids, 0), block(tokens.attention_mask, 0)
    assert ids is not None
    assert mask is not None
    for row, of_row in enumerate(added, start=len(tokens.input_ids)):
        ids[row, : len(of_row)] = torch.tensor(of_row)
        mask[row, : len(of_row)] = True
    return replace(tokens, input_ids=ids, attention_mask=mask, **blocks)


def step_lines(steps: Sequence[Step]) -> Iterator[str]:
    """The lines of a file that a recipe's `schedule: {file: ...}` reads as these steps."""
    for step in steps:
        fields: dict[str, Any] = {"spans": step.spans, "shape": step.shape, "phase": step.phase}
        fields |= {} if step.scored is None else {"scored": step.scored}
        fields |= {"drafted": step.drafted} if step.drafted else {}
        fields |= {"copies": step.copies} if step.copies else {}
        fields |= {"stale": True} if step.stale else {}
        yield json.dumps(fields)
