"""moeparity's own format, for logs of any framework: the keys of a token file, and those a log needs besides.

JSON lines and parquet hold a sequence per line or row; safetensors the same keys as blocks [B, T] (`own_tensors`).
docs/logs.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import LogError, TokensError, shown
from moeparity.inputs.tokens.tokenset import check_routes, nested_routes
from moeparity.logs.formats import served
from moeparity.logs.formats.fields import Fields
from moeparity.logs.formats.format import Format, Refused, Role
from moeparity.logs.record import Sequence

PER_TOKEN = {
    "logprobs": "rollout",
    "trainer_logprobs": "trainer",
    "entropy": "entropy",
    "ref_logprobs": "ref",
    "current_logprobs": "current",
    "advantages": "advantages",
}
"""Lists of floats by key, and the field they fill."""
ROUTES = ("routed_experts", "trainer_routed_experts")
WHOLE = ("id", "prompt_tokens", "step", "trainer_version", "labels", "sampling_params")
KEYS = (*WHOLE, "input_ids", "mask", "versions", *PER_TOKEN, *ROUTES)


def claims(record: Mapping[str, Any]) -> bool:
    """Whether a record is of this format."""
    return (
        "input_ids" in record and ("logprobs" in record or "trainer_logprobs" in record) and "meta_info" not in record
    )


def read(fields: Fields, role: Role) -> list[Sequence]:
    """The sequence of a record. Raises LogError."""
    fields.only(KEYS)
    ids = fields.tokens("input_ids")
    size = len(ids)
    mask = fields.mask("mask", size) if fields.has("mask") else torch.ones(size, dtype=torch.bool)
    columns = {name: fields.floats(key, size) for key, name in PER_TOKEN.items() if fields.has(key)}
    label = fields.values.get("labels")
    if label is not None and not isinstance(label, str):
        raise LogError(f"{fields.where}: labels is {shown(label)}; expected one word for the sequence.")
    return [
        sequence(
            fields,
            ids=ids,
            mask=mask,
            columns=columns,
            versions=fields.integers("versions", size) if fields.has("versions") else None,
            routes={key: _routes(fields, key, size) for key in ROUTES if fields.has(key)},
            group=label,
        )
    ]


def sequence(
    fields: Fields,
    *,
    ids: Tensor,
    mask: Tensor,
    columns: dict[str, Tensor],
    versions: Tensor | None,
    routes: dict[str, Tensor],
    group: str | None,
) -> Sequence:
    """The sequence of columns that were read, with what `fields` says of it as a whole."""
    prompt = fields.optional_whole("prompt_tokens")
    if prompt is not None and prompt > len(ids):
        raise LogError(f"{fields.where}: prompt_tokens is {prompt}; the sequence has {len(ids)} tokens.")
    if prompt != 0:
        mask = mask.clone()
        mask[0] = False
    sides = {name: columns.pop(name, None) for name in ("rollout", "trainer", "entropy")}
    return Sequence(
        id=fields.word("id"),
        where=fields.where,
        token_ids=ids,
        mask=mask,
        rollout=sides["rollout"],
        trainer=sides["trainer"],
        entropy=sides["entropy"],
        prompt=prompt,
        step=fields.optional_whole("step"),
        versions=versions,
        trainer_version=fields.optional_whole("trainer_version"),
        sampling=served.sampling(fields),
        group=group,
        extra={**columns, **routes},
    )


def _routes(fields: Fields, key: str, size: int) -> Tensor:
    rows = fields.need(key)
    if not isinstance(rows, list) or len(rows) != size:
        count = f"{len(rows)} rows" if isinstance(rows, list) else shown(rows)
        raise LogError(f"{fields.where}: {key} is {count}; expected a row for each of {size} tokens, null for none.")
    try:
        routes = nested_routes(fields.where, rows)
        check_routes(fields.where, routes)
    except TokensError as error:
        raise LogError(str(error)) from None
    return routes


FORMAT = Format(
    name="moeparity",
    producer="moeparity's own JSON lines",
    container="json",
    claims=claims,
    read=read,
    source="docs/logs.md",
    fixture="made by moeparity",
)
VERL = Refused(
    name="verl's rollout JSONL",
    claims=lambda record: {"input", "output", "score"} <= set(record),
    reason="holds text but neither log-probabilities nor token ids. docs/logs.md has the lines that write a DataProto "
    "as moeparity's own format.",
)
