"""Responses of OpenAI-style servers, one per line: completions and chat.

Both name tokens by text, which does not identify a token. Ids come from `token_ids` (vLLM: `return_token_ids: true` in
the request) or from texts `token_id:123` (vLLM: `return_tokens_as_token_ids: true`). As the trainer's log, a scored
prompt is read: `prompt_logprobs`, or a completion with `echo`. Read in vLLM 0.33.0, vllm/entrypoints/openai.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import LogError, listed, whole_number
from moeparity.logs.formats import further, served
from moeparity.logs.formats.fields import Fields, inner, integers, numbers
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.formats.vllm import prompt_scores
from moeparity.logs.record import Sequence


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is such a response."""
    return isinstance(record.get("choices"), list) and "object" in record


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequences of a response, one per choice. Raises LogError."""
    name, choices = fields.word("id"), fields.need("choices")
    sequences = []
    for choice in (inner(fields, value, "choices") for value in choices):
        number = f"{name}/{choice.whole('index')}" if len(choices) > 1 else name
        sequences.append(_scored(fields, choice, number) if role == "trainer" else _sampled(fields, choice, number))
    if role == "rollout" and fields.has("usage"):
        generated = sum(int(sequence.mask.sum()) for sequence in sequences)
        usage = fields.mapping("usage").whole("completion_tokens")
        if generated != usage:
            raise LogError(
                f"{fields.where}: logprobs of {generated} generated tokens; usage has {usage} completion_tokens. A "
                "piece of a stream? Keep whole responses."
            )
    return sequences


def _sampled(fields: Fields, choice: Fields, name: str) -> Sequence:
    ids, values = _tokens(choice)
    size = len(ids)
    prompt, echoed = _prompt(fields, choice), _echoed(fields, ids, values)
    if echoed:
        if prompt is not None and not torch.equal(prompt, ids[:echoed]):
            raise LogError(f"{fields.where}: prompt_token_ids are not the echoed tokens.")
        prompt, ids, values = ids[:echoed], ids[echoed:], values[echoed:]
    if choice.has("token_ids") and not torch.equal(choice.tokens("token_ids"), ids):
        raise LogError(f"{fields.where}: token_ids are not the tokens of logprobs.")
    if not len(ids):
        raise LogError(f"{fields.where}: no generated token, only a scored prompt. Is it the trainer's side?")
    before = 0 if prompt is None else len(prompt)
    tops = {} if echoed else _top_k(choice, size, before)
    return served.sampled_sequence(
        choice, name, ids, values, prompt=prompt, parameters=served.sampling(fields), further=tops
    )


def _scored(fields: Fields, choice: Fields, name: str) -> Sequence:
    prompt = _prompt(fields, choice)
    holder = next((place for place in (choice, fields) if place.has("prompt_logprobs")), None)
    if prompt is not None and holder is not None:
        return prompt_scores(fields, holder, name, prompt)
    ids, values = _tokens(choice)
    echoed = _echoed(fields, ids, values)
    if not echoed:
        raise LogError(
            f"{fields.where}: no scored prompt, which the trainer's side takes. Send prompt and response as the "
            "prompt, with prompt_logprobs: 0 and return_token_ids: true."
        )
    return served.scored_sequence(fields, name, ids[:echoed], values[:echoed])


def _prompt(fields: Fields, choice: Fields) -> Tensor | None:
    """The prompt's ids. Completions have them in the choice, chat beside the choices."""
    holder = next((place for place in (choice, fields) if place.has("prompt_token_ids")), None)
    return None if holder is None else holder.tokens("prompt_token_ids")


def _echoed(fields: Fields, ids: Tensor, values: Tensor) -> int:
    """How many tokens of the prompt a completion with `echo` repeats; its first token has no log-probability."""
    if not values[:1].isnan().any():
        return 0
    prompt = fields.mapping("usage").whole("prompt_tokens", least=1)
    if prompt > len(ids):
        raise LogError(f"{fields.where}: usage has {prompt} prompt_tokens; logprobs has {len(ids)} tokens in all.")
    return prompt


def _tokens(choice: Fields) -> tuple[Tensor, Tensor]:
    """Ids int64 [n] and log-probabilities fp64 [n] of the tokens that the choice lists."""
    if not choice.has("logprobs"):
        raise LogError(f"{choice.where}: no logprobs. Ask: logprobs: 1 for completions, logprobs: true for chat.")
    lists = choice.mapping("logprobs")
    if lists.has("content"):
        entries = [inner(lists, entry, "logprobs.content").values for entry in lists.entries("content")]
        texts, values = ([entry.get(key) for entry in entries] for key in ("token", "logprob"))
    else:
        texts, values = lists.need("tokens"), lists.need("token_logprobs")
    if not isinstance(texts, list) or not isinstance(values, list) or len(texts) != len(values) or not texts:
        raise LogError(f"{choice.where}: logprobs lists no tokens, or not as many as log-probabilities.")
    return _ids(choice, texts), numbers(choice, "logprobs", values)


def _top_k(choice: Fields, size: int, before: int) -> dict[str, Tensor]:
    """The columns of `further.top_k`, if tokens are named by ids; a text does not identify a token. Raises LogError."""
    lists = choice.mapping("logprobs")
    if lists.has("content"):
        entries = [inner(lists, entry, "logprobs.content") for entry in lists.entries("content")]
        of_entries = [entry.entries("top_logprobs") if entry.has("top_logprobs") else [] for entry in entries]
        items = [[inner(lists, top, "top_logprobs").values for top in tops] for tops in of_entries]
        rows = [[(top.get("token"), top.get("logprob")) for top in tops] for tops in items]
    else:
        listed_tops = lists.values.get("top_logprobs")
        tops_of = listed_tops if isinstance(listed_tops, list) else []
        rows = [[*row.items()] if isinstance(row, Mapping) else [] for row in tops_of]
    words = [token for row in rows for token, _ in row]
    if len(rows) != size or not all(isinstance(word, str) and word.startswith(further.AS_ID) for word in words):
        return {}
    return further.top_k(choice, "top_logprobs", rows, before)


def _ids(choice: Fields, texts: list[Any]) -> Tensor:
    if choice.has("token_ids") and choice.length("token_ids") == len(texts):
        ids = choice.tokens("token_ids")
        id_texts = [text for text in texts if isinstance(text, str) and text.startswith(further.AS_ID)]
        if not id_texts or [f"{further.AS_ID}{token}" for token in ids.tolist()] == texts:
            return ids
        raise LogError(f"{choice.where}: token_ids are not the tokens of logprobs.")
    words = [
        text.removeprefix(further.AS_ID) for text in texts if isinstance(text, str) and text.startswith(further.AS_ID)
    ]
    numbers = [number for word in words if (number := whole_number(word)) is not None]
    if len(numbers) != len(texts):
        examples = listed(repr(text) for text in texts[:3])
        raise LogError(
            f"{choice.where}: tokens are text ({examples}), which several tokens may share. Ask for ids: "
            "return_token_ids: true, or return_tokens_as_token_ids: true (vLLM)."
        )
    return integers(choice, "tokens", numbers)


FORMAT = Format(
    name="openai",
    producer="OpenAI-style completions and chat responses",
    container="json",
    claims=claims,
    read=read,
    source="vLLM 0.33.0, vllm/entrypoints/openai/completion/protocol.py, chat_completion/protocol.py",
    fixture="made by vLLM 0.33.0",
)
