"""SGLang: responses of `/generate` with `return_logprob`, one per line.

As the sampler's log the generated tokens are read (`output_token_logprobs`). As the trainer's log the scored prompt is
read (`input_token_logprobs`); the request's input is then prompt and response. Entries are [log-probability, token id,
text or null]. Read in SGLang 0.5.23, srt/managers/tokenizer_manager.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import LogError, shown
from moeparity.logs.formats import further, served
from moeparity.logs.formats.fields import Fields, integers, numbers
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.record import Sequence


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is such a response."""
    meta = record.get("meta_info")
    return isinstance(meta, Mapping) and ("output_ids" in record or "text" in record or "prompt_tokens" in meta)


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequence of a response. Raises LogError."""
    meta = fields.mapping("meta_info")
    # The engine's own id is new for every request, so files are joined by an id that the user wrote, if there is one.
    name = fields.word("id") if fields.has("id") else meta.word("id")
    return [_scored(fields, meta, name) if role == "trainer" else _sampled(fields, meta, name)]


def _sampled(fields: Fields, meta: Fields, name: str) -> Sequence:
    if not meta.has("output_token_logprobs"):
        raise LogError(f"{fields.where}: no output_token_logprobs. Ask for them with return_logprob: true.")
    values, ids = _entries(meta, "output_token_logprobs")
    if meta.has("completion_tokens") and meta.whole("completion_tokens") != len(ids):
        raise LogError(
            f"{fields.where}: output_token_logprobs has {len(ids)} entries for {meta.whole('completion_tokens')} "
            "completion_tokens. A piece of a stream? Keep whole responses."
        )
    if fields.has("output_ids") and not torch.equal(fields.tokens("output_ids"), ids):
        raise LogError(f"{fields.where}: output_ids are not the tokens of output_token_logprobs.")
    parameters, prompt = served.sampling(fields), _prompt(fields, meta)
    before = 0 if prompt is None else len(prompt)
    columns = _top_k(meta, "output_top_logprobs", len(ids), before)
    if prompt is not None and meta.has("hidden_states"):
        columns |= further.hidden(meta, "hidden_states", meta.need("hidden_states"), before + len(ids))
    return served.sampled_sequence(
        fields, name, ids, values, prompt=prompt, parameters=parameters, routed=meta, further=columns
    )


def _prompt(fields: Fields, meta: Fields) -> Tensor | None:
    """The prompt's ids: from `input_ids` of the request, or from a prompt that was scored from its start."""
    if fields.has("input_ids"):
        ids = fields.tokens("input_ids")
    elif meta.values.get("input_token_logprobs"):
        ids = _entries(meta, "input_token_logprobs")[1]
        if meta.optional_whole("prompt_tokens") != len(ids):
            return None
    else:
        return None
    if meta.has("prompt_tokens") and meta.whole("prompt_tokens") != len(ids):
        raise LogError(
            f"{fields.where}: input_ids has {len(ids)} tokens; prompt_tokens is {meta.whole('prompt_tokens')}."
        )
    return ids


def _scored(fields: Fields, meta: Fields, name: str) -> Sequence:
    if not meta.values.get("input_token_logprobs"):
        raise LogError(
            f"{fields.where}: no input_token_logprobs, which the trainer's side takes. Send prompt and response as "
            "input_ids with return_logprob: true, logprob_start_len: 0 and max_new_tokens: 0."
        )
    values, ids = _entries(meta, "input_token_logprobs")
    return served.scored_sequence(meta, name, ids, values, _top_k(meta, "input_top_logprobs", len(ids)))


def _top_k(meta: Fields, key: str, size: int, before: int = 0) -> dict[str, Tensor]:
    """The columns of `further.top_k`; {} without any. Raises LogError."""
    if not meta.values.get(key):
        return {}
    if meta.length(key) != size:
        raise LogError(f"{meta.where}: {key} has {meta.length(key)} positions; expected one for each of {size} tokens.")
    return further.top_k(meta, key, further.of_triples(meta, key), before)


def _entries(meta: Fields, key: str) -> tuple[Tensor, Tensor]:
    """[[log-probability, id, text], ...] -> fp64 [n], int64 [n]."""
    rows = meta.need(key)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and len(row) == 3 for row in rows):
        kind = shown(rows) if not isinstance(rows, list) else "something else"
        raise LogError(f"{meta.where}: {key} holds {kind}; expected [log-probability, token id, text] for each token.")
    values, ids, _ = zip(*rows, strict=True)
    column = integers(meta, f"ids of {key}", list(ids))
    if int(column.min()) < 0:
        raise LogError(f"{meta.where}: {key} holds token id {int(column.min())}; expected whole numbers from 0.")
    return numbers(meta, key, list(values)), column


FORMAT = Format(
    name="sglang",
    producer="SGLang /generate responses",
    container="json",
    claims=claims,
    read=read,
    source="SGLang 0.5.23, srt/managers/tokenizer_manager.py",
    fixture="made by SGLang 0.5.23",
)
