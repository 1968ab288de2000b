"""vLLM: `RequestOutput` as JSON, one per line, written as docs/logs.md shows.

As the sampler's log `outputs` are read, as the trainer's the scored prompt (`prompt_logprobs`). A position is a mapping
from token id to {logprob, rank, decoded_token}, which always contains the position's own token. Read in vLLM 0.33.0,
vllm/outputs.py and vllm/logprobs.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import LogError, shown
from moeparity.logs.formats import further, served
from moeparity.logs.formats.fields import Fields, inner, numbers
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.record import Sequence


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is a RequestOutput."""
    return "request_id" in record and isinstance(record.get("outputs"), list)


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequences of a request: one per output, or the scored prompt. Raises LogError."""
    name = fields.word("id") if fields.has("id") else fields.word("request_id")
    prompt = fields.tokens("prompt_token_ids")
    if role == "trainer":
        return [prompt_scores(fields, fields, name, prompt)]
    parameters, several = served.sampling(fields), len(fields.need("outputs")) > 1
    sequences = []
    for output in (inner(fields, value, "outputs") for value in fields.need("outputs")):
        ids = output.tokens("token_ids")
        if not output.has("logprobs"):
            raise LogError(f"{fields.where}: no logprobs of the outputs. Sample with SamplingParams(logprobs=0).")
        values = of_positions(output, "logprobs", ids)
        number = f"{name}/{output.whole('index')}" if several else name
        tops = further.top_k(output, "logprobs", further.of_positions(output.need("logprobs")), len(prompt))
        sequences.append(
            served.sampled_sequence(output, number, ids, values, prompt=prompt, parameters=parameters, further=tops)
        )
    return sequences


def prompt_scores(fields: Fields, holder: Fields, name: str, prompt: Tensor) -> Sequence:
    """The scored prompt of a request: `prompt_logprobs` of `holder`, null for the first token. Raises LogError."""
    if not holder.has("prompt_logprobs"):
        raise LogError(
            f"{fields.where}: no prompt_logprobs, which the trainer's side takes. Send prompt and response as the "
            "prompt with prompt_logprobs=0 and one new token."
        )
    values = of_positions(holder, "prompt_logprobs", prompt)
    tops = further.top_k(holder, "prompt_logprobs", further.of_positions(holder.need("prompt_logprobs")))
    return served.scored_sequence(fields, name, prompt, values, tops)


def of_positions(fields: Fields, key: str, ids: Tensor) -> Tensor:
    """Log-probability of each position's own token, fp64 [n]; NaN for a position that is null. Raises LogError."""
    rows = fields.need(key)
    if not isinstance(rows, list) or len(rows) != len(ids):
        kind = f"{len(rows)} positions" if isinstance(rows, list) else shown(rows)
        raise LogError(f"{fields.where}: {key} is {kind}; expected one position for each of {len(ids)} tokens.")
    values: list[Any] = []
    for index, (row, token) in enumerate(zip(rows, map(str, ids.tolist()), strict=True)):
        if row is None:
            values.append(None)
            continue
        entry = row.get(token) if isinstance(row, Mapping) else row
        if not isinstance(entry, Mapping) or "logprob" not in entry:
            raise LogError(f"{fields.where}: {key}[{index}] holds no logprob of the token there, {token}.")
        values.append(entry["logprob"])
    return numbers(fields, key, values) if values else torch.empty(0, dtype=torch.float64)


FORMAT = Format(
    name="vllm",
    producer="vLLM RequestOutput as JSON",
    container="json",
    claims=claims,
    read=read,
    source="vLLM 0.33.0, vllm/outputs.py, vllm/logprobs.py",
    fixture="made by vLLM 0.33.0",
)
