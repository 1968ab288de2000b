"""What a record holds beside its tokens' log-probabilities: those of other tokens there (top-k), and hidden states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor

from moeparity.errors import LogError, shown, whole_number
from moeparity.inputs.tokens.tokenset import LARGEST_LOGPROB
from moeparity.logs.formats.fields import LARGEST_TOKEN, Fields
from moeparity.logs.record import NONE_GIVEN

TOP_IDS, TOP_LOGPROBS, HIDDEN = "top_ids", "top_logprobs", "hidden_states"
FURTHER: Final = (TOP_IDS, TOP_LOGPROBS, HIDDEN)
"""Names in `Sequence.extra`; of the trainer's with `trainer_` before them."""
AS_ID = "token_id:"
"""How vLLM's server begins the text of a token whose id was asked for (`return_tokens_as_token_ids`)."""

Entries = Iterable[tuple[Any, Any]]
"""Token ids with their log-probabilities."""


def top_k(fields: Fields, key: str, rows: Iterable[Entries], before: int = 0) -> dict[str, Tensor]:
    """The log-probabilities of several tokens for each position: `top_ids` int64 [n, K], -1 where there are fewer, and
    `top_logprobs` fp64 [n, K] in nats, NaN there and where a server had none; {} if no position has more than one.

    before: how many positions without any stand ahead. Raises LogError for what is no id or no log-probability.
    """
    listed = [[*entries] for entries in rows]
    most = max(map(len, listed), default=0)
    if most <= 1:
        return {}
    ids = torch.full((before + len(listed), most), -1)
    logprobs = torch.full(ids.shape, torch.nan, dtype=torch.float64)
    for place, entries in enumerate(listed, before):
        if entries:
            ids[place, : len(entries)] = torch.tensor([_id(fields, key, token) for token, _ in entries])
            values = [_logprob(fields, key, value) for _, value in entries]
            logprobs[place, : len(entries)] = torch.tensor(values, dtype=torch.float64)
    return {TOP_IDS: checked_ids(fields, key, ids), TOP_LOGPROBS: checked_logprobs(fields, key, logprobs)}


def checked_ids(fields: Fields, key: str, ids: Tensor) -> Tensor:
    """Token ids, -1 where there is none. Raises LogError."""
    low, high = torch.aminmax(ids)
    if int(low) < -1 or int(high) >= LARGEST_TOKEN:
        bad = int(low) if int(low) < -1 else int(high)
        raise LogError(f"{fields.where}: {key} holds {bad}; expected token ids, from 0 to {LARGEST_TOKEN - 1}.")
    return ids


def checked_logprobs(fields: Fields, key: str, logprobs: Tensor) -> Tensor:
    """Log-probabilities in nats, NaN where there is none: where a server had none, or it is -inf. Raises LogError."""
    if bool((logprobs > LARGEST_LOGPROB).any()):
        highest = float(logprobs[logprobs > LARGEST_LOGPROB][0])
        raise LogError(f"{fields.where}: {key} holds {highest:g} as a log-probability; expected nats, at most 0.")
    return logprobs.where(logprobs > NONE_GIVEN, torch.nan)


def hidden(fields: Fields, key: str, rows: Any, size: int) -> dict[str, Tensor]:
    """Final hidden states as `hidden_states`, fp32 [size, H], NaN where there is none: rows of numbers, or lists of
    such rows, for the positions up to the last but one, which predict the response. Raises LogError.
    """
    if not isinstance(rows, list):
        raise LogError(f"{fields.where}: {key} is {shown(rows)}; expected a list of hidden states.")
    # SGLang has one list for the whole prompt, and then a row for each step.
    flat = [*chain.from_iterable(row if _is_nested(row) else [row] for row in rows)]
    if not flat or len(flat) > size - 1:
        raise LogError(
            f"{fields.where}: {key} has {len(flat)} rows; expected 1 to {size - 1}, one for each token with "
            "another behind it. Leave the key out if it holds more."
        )
    return {HIDDEN: per_token(fields, key, [*[None] * (size - 1 - len(flat)), *flat, None])}


def per_token(fields: Fields, key: str, rows: list[Any]) -> Tensor:
    """fp32 [n, H] of a row for each token, NaN where it is null. Raises LogError."""
    widths = {len(row) for row in rows if isinstance(row, list)}
    if len(widths) != 1 or not all(row is None or isinstance(row, list) for row in rows):
        raise LogError(f"{fields.where}: {key} has rows of {_sizes(widths)}; expected numbers, as many in each row.")
    (width,) = widths
    try:
        return torch.tensor([[math.nan] * width if row is None else row for row in rows], dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise LogError(f"{fields.where}: {key} holds something other than numbers.") from None


def of_positions(rows: Any) -> Iterator[Entries]:
    """Entries of vLLM's positions, each a mapping from token id to {logprob, ...}, or null; none where each position
    lists its own token alone, as most logs do.
    """
    if not isinstance(rows, list) or all(not isinstance(row, Mapping) or len(row) <= 1 for row in rows):
        return
    for row in rows:
        of_row = row.items() if isinstance(row, Mapping) else ()
        yield [
            (token, entry["logprob"]) for token, entry in of_row if isinstance(entry, Mapping) and "logprob" in entry
        ]


def of_triples(fields: Fields, key: str) -> Iterator[Entries]:
    """Entries of SGLang's positions, each a list of [log-probability, id, text], or null. Raises LogError."""
    for row in fields.entries(key):
        if row is not None and not (isinstance(row, list) and all(isinstance(e, list) and len(e) == 3 for e in row)):
            raise LogError(f"{fields.where}: {key} holds {shown(row)}; expected lists of [log-probability, id, text].")
        yield [(token, value) for value, token, _ in row or ()]


def _is_nested(row: Any) -> bool:
    return isinstance(row, list) and bool(row) and isinstance(row[0], list)


def _sizes(widths: set[int]) -> str:
    return " and ".join(map(str, sorted(widths))) or "no numbers"


def _id(fields: Fields, key: str, token: Any) -> int:
    # A mapping's keys are words in JSON.
    number = whole_number(token.removeprefix(AS_ID)) if isinstance(token, str) else token
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise LogError(f"{fields.where}: {key} holds {shown(token)} as a token id; expected a whole number from 0.")
    return number


def _logprob(fields: Fields, key: str, value: Any) -> float:
    if value is not None and type(value) not in {int, float}:
        raise LogError(f"{fields.where}: {key} holds {shown(value)}; expected a log-probability, or null.")
    return math.nan if value is None else float(value)
