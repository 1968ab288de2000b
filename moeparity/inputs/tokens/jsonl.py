"""Token files of JSON lines: one object per sequence.

| key | holds |
|---|---|
| `text` or `input_ids` | the sequence |
| `mask` | 0 or 1 per token: 1 where the token is scored (all by default) |
| `labels` | one word for the sequence, or one per token |
| `logprobs` | a number, null or NaN per token: log P(token i given those before it), in nats; null first |
| `trainer_logprobs` | the same, of the engine that did not sample the tokens |
| `routed_experts` | per token null, or a list of MoE layers, each a list of top_k expert ids |
| `id` | a name, of a log |
| `sampling_params` | how the tokens were drawn, of a log |
| `versions` | per token the version of the weights that sampled it, -1 unknown: one for all that is scored |
| `request` | what the request asked of its sampler by token ids (`moeparity.inputs.tokens.requests`) |
| `grammar` | per token null, or the ids that a grammar allowed as that token |
| `pads` | pads that an engine computed before and behind the sequence, and their id; all rows are then of one width |

A line of a reward model's file is a pair in place of a sequence: `chosen` and `rejected`, and optionally `prompt`,
which stands before both, each text or a list of ids, and nothing else but `id`.

Everything about token i stands at index i, prompts included. With `text` the lists must be as long as the text is in
tokens. Engines do not run the last token of a sequence: its routes are null.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from moeparity import paths
from moeparity.errors import TokensError, Where, counted, listed, shown
from moeparity.inputs.tokens.pads import Pads, one_width, pads
from moeparity.inputs.tokens.requests import as_fields, read_request
from moeparity.inputs.tokens.tokenizer import Tokenizer
from moeparity.inputs.tokens.tokenset import TokenSet, check_logprobs, check_routes, nested_routes
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.plan.spec.json_lines import json_object

BY_TOKEN = ("mask", "labels", "logprobs", "trainer_logprobs", "routed_experts", "versions", "grammar")
SIDES = ("chosen", "rejected")
PAIR = ("prompt", *SIDES)
KEYS = ("text", "input_ids", *BY_TOKEN, "request", "sampling_params", "pads", "id", *PAIR)
Padding = Literal["right", "left"]
_HINTS = {
    "labels": ", or one word for all",
    "routed_experts": "; null for the last, which engines do not run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One sequence of n tokens: ids int64 [n], mask bool [n], logprobs fp64 [n], routes int64 [n, L, K]."""

    where: Where
    ids: Tensor
    mask: Tensor
    labels: list[str] | None
    logprobs: Tensor | None
    trainer_logprobs: Tensor | None
    routes: Tensor | None
    pads: Pads | None
    versions: frozenset[int]
    request: SamplingRequest | None


def read(path: Path, tokenizer: Tokenizer | None, padding: Padding, pad_id: int, versions: int = 1) -> TokenSet:
    """Read a file of JSON lines; sequences are padded as `pads` says, or to the longest with `pad_id` at the `padding`
    end. Raises TokensError, which names the line, also if more than `versions` of the weights sampled what is scored.
    """
    objects = _objects(path)
    pairs = _are_pairs(objects)
    objects = [(where, part) for where, fields in objects for part in (_sides(where, fields) if pairs else (fields,))]
    lines = [_line(where, fields, tokenizer) for where, fields in objects]
    if not lines:
        raise TokensError(f"{Where(path)}: holds no sequence; expected one JSON object per line.")
    _check_alike(lines, versions)
    return replace(_block(lines, padding, pad_id), pairs=pairs)


def lines(tokens: TokenSet) -> Iterator[str]:
    """JSON lines, one per sequence, that read as these tokens; pads are stated where some stand on the left."""
    has_pads = not bool(tokens.attention_mask[:, 0].all())
    for row, real in enumerate(tokens.attention_mask):
        fields: dict[str, Any] = {
            "input_ids": tokens.input_ids[row][real].tolist(),
            "mask": tokens.loss_mask[row][real].int().tolist(),
        }
        if tokens.labels is not None:
            fields["labels"] = [tokens.label_names[label] for label in tokens.labels[row][real].tolist()]
        for key, logprobs in (("logprobs", tokens.logprobs), ("trainer_logprobs", tokens.trainer_logprobs)):
            if logprobs is not None:
                fields[key] = [None if math.isnan(value) else value for value in logprobs[row][real].tolist()]
        if tokens.routed_experts is not None:
            routes = tokens.routed_experts[row][real]
            absent = routes.eq(-1).flatten(1).all(1).tolist()
            fields["routed_experts"] = [None if no else ids for no, ids in zip(absent, routes.tolist(), strict=True)]
        if tokens.requests:
            fields |= as_fields(tokens.requests[row], int(real.sum()))
        if has_pads:
            fields["pads"] = _pads_of(tokens.input_ids[row], real).as_json()
        yield json.dumps(fields)


def _pads_of(ids: Tensor, real: Tensor) -> Pads:
    """The pads of a row of ids [T]: those that are not real."""
    before, count = int(real.int().argmax()), int(real.sum())
    return Pads(before, len(ids) - before - count, int(ids[~real][0]) if count < len(ids) else 0)


def _objects(path: Path) -> list[tuple[Where, dict[str, Any]]]:
    try:
        text = paths.contents(path, "token file of JSON lines").decode("utf-8")
    except OSError as error:
        raise TokensError(f"{Where(path)}: cannot be read: {error.strerror}. Expected a file of JSON lines.") from None
    except UnicodeDecodeError as error:
        raise TokensError(f"{Where(path)}: not JSON lines: byte {error.start} is not UTF-8.") from None
    # splitlines() would also cut at characters that JSON allows inside a string.
    numbered = enumerate(text.split("\n"), start=1)
    return [(Where(path, number), _object(Where(path, number), line)) for number, line in numbered if line.strip()]


def _object(where: Where, line: str) -> dict[str, Any]:
    return json_object(where, line, keys=KEYS, thing="sequence", example='{"text": "Hello"}', error=TokensError)


def _are_pairs(objects: Sequence[tuple[Where, dict[str, Any]]]) -> bool:
    """Whether the lines are pairs. Raises TokensError where some are and others are not."""
    pairs = [any(key in fields for key in PAIR) for _, fields in objects]
    if any(pairs) and not all(pairs):
        at, pair = objects[pairs.index(False)][0], objects[pairs.index(True)][0]
        raise TokensError(f"{at}: no pair, as {pair} is. Expected 'chosen' and 'rejected' in every line, or in none.")
    return any(pairs)


def _sides(where: Where, fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The chosen and the rejected sequence of a line, each as a line of its own."""
    for key in SIDES:
        if key not in fields:
            raise TokensError(f"{where}: no {key!r}; a pair needs 'chosen' and 'rejected'.")
    for key in fields.keys() - {*PAIR, "id"}:
        raise TokensError(f"{where}: {key!r} in a pair; expected {listed(PAIR)} alone.")
    kinds = {type(fields[key]) for key in PAIR if key in fields}
    if kinds not in ({str}, {list}):
        raise TokensError(
            f"{where}: a pair holds {shown(fields['chosen'])}; expected text in all of it, or lists of ids."
        )
    (kind,) = kinds
    prompt = fields.get("prompt", kind())
    chosen, rejected = ({"text" if kind is str else "input_ids": prompt + fields[key]} for key in SIDES)
    return chosen, rejected


def _line(where: Where, fields: dict[str, Any], tokenizer: Tokenizer | None) -> _Line:
    if ("text" in fields) == ("input_ids" in fields):
        keys = "both 'text' and 'input_ids'" if "text" in fields else "neither 'text' nor 'input_ids'"
        raise TokensError(f"{where}: holds {keys}; expected exactly one of them.")
    ids = _ids(where, fields["input_ids"]) if "input_ids" in fields else _ids_of_text(where, fields["text"], tokenizer)
    words = fields.get("labels")
    for key in BY_TOKEN:
        one_word = key == "labels" and isinstance(words, str)
        if key in fields and not one_word and (not isinstance(fields[key], list) or len(fields[key]) != len(ids)):
            entry = fields[key]
            fault = f"has {len(entry)} entries" if isinstance(entry, list) else f"is {shown(entry)}"
            raise TokensError(
                f"{where}: {key} {fault}; expected a list of {len(ids)}, one entry per token"
                f"{' of the text' if 'text' in fields else ''}{_HINTS.get(key, '')}."
            )
    return _Line(
        where=where,
        ids=ids,
        mask=_mask(where, fields.get("mask", [1] * len(ids))),
        labels=_labels(where, [words] * len(ids) if isinstance(words, str) else words),
        logprobs=_logprobs(where, "logprobs", fields.get("logprobs")),
        trainer_logprobs=_logprobs(where, "trainer_logprobs", fields.get("trainer_logprobs")),
        routes=_routes(where, fields.get("routed_experts")),
        pads=_pads(where, fields.get("pads")),
        versions=_versions(where, fields.get("versions", ()), fields.get("mask")),
        request=read_request(where, fields.get("request"), fields.get("grammar")),
    )


def _versions(where: Where, versions: Sequence[Any], mask: list[int] | None) -> frozenset[int]:
    """The known versions of what is scored."""
    for version in versions:
        if type(version) is not int:
            raise TokensError(f"{where}: versions holds {shown(version)}; expected a whole number per token.")
    scored_versions = versions if mask is None else itertools.compress(versions, mask)
    return frozenset(version for version in scored_versions if version >= 0)


def _pads(where: Where, value: Any) -> Pads | None:
    try:
        return None if value is None else pads(value)
    except ValueError as error:
        raise TokensError(f"{where}: pads is {shown(value)}; {error}.") from None


def _ids(where: Where, ids: Any) -> Tensor:
    if not isinstance(ids, list) or not ids or not all(type(i) is int and 0 <= i < 2**31 for i in ids):
        raise TokensError(f"{where}: input_ids is no list of token ids; expected whole numbers from 0, at least one.")
    return torch.tensor(ids, dtype=torch.int64)


def _ids_of_text(where: Where, text: Any, tokenizer: Tokenizer | None) -> Tensor:
    if not isinstance(text, str) or not text or not _is_unicode(text):
        fault = shown(text) if not isinstance(text, str) or not text else "not text: it holds half of a character pair"
        raise TokensError(f"{where}: text is {fault}; expected a string of at least one character.")
    if tokenizer is None:
        raise TokensError(
            f"{where}: 'text' needs a tokenizer. Name one, `bytes`, `checkpoint` or a path to a tokenizer.json, under "
            "`tokenizer:` beside the file, or on the command line with --tokenizer; or give 'input_ids'."
        )
    ids = tokenizer.encode(text)
    if not ids:
        raise TokensError(f"{where}: the tokenizer makes no token of text {shown(text)}. Leave the line out.")
    return torch.tensor(ids, dtype=torch.int64)


def _is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can spell and UTF-8 can't."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _mask(where: Where, mask: list[Any]) -> Tensor:
    for entry in mask:
        if type(entry) not in {int, bool} or entry not in {0, 1}:
            raise TokensError(f"{where}: mask holds {shown(entry)}; expected 0 or 1 per token, 1 where it is scored.")
    return torch.tensor(mask, dtype=torch.bool)


def _labels(where: Where, labels: list[Any] | None) -> list[str] | None:
    for entry in labels or ():
        if not isinstance(entry, str) or not entry:
            raise TokensError(f"{where}: labels holds {shown(entry)}; expected a word per token, or one word for all.")
    return labels


def _logprobs(where: Where, key: str, logprobs: list[Any] | None) -> Tensor | None:
    if logprobs is None:
        return None
    for entry in logprobs:
        if entry is not None and type(entry) not in {int, float}:
            raise TokensError(
                f"{where}: {key} holds {shown(entry)}; expected a number or null per token. Of entries like "
                "[logprob, id, text] keep the first part."
            )
    values = torch.tensor([float("nan") if entry is None else entry for entry in logprobs], dtype=torch.float64)
    check_logprobs(where, key, values)
    return values


def _routes(where: Where, entries: list[Any] | None) -> Tensor | None:
    if entries is None:
        return None
    if all(entry is None for entry in entries):
        return None
    routes = nested_routes(where, entries)
    check_routes(where, routes)
    return routes


def _block(lines: list[_Line], padding: Padding, pad_id: int) -> TokenSet:
    width = max(len(line.ids) + (line.pads.before + line.pads.behind if line.pads else 0) for line in lines)
    places = [_place(line, width, padding) for line in lines]

    def block(rows: list[Tensor | None], fill: float) -> Tensor | None:
        """[B, T, ...] of rows [n, ...], which all have the same trailing shape, or None; None if all rows are None."""
        example = next((row for row in rows if row is not None), None)
        if example is None:
            return None
        values = torch.full((len(rows), width, *example.shape[1:]), fill, dtype=example.dtype)
        for number, (row, place) in enumerate(zip(rows, places, strict=True)):
            if row is not None:
                values[number, place] = row
        return values

    names = tuple(dict.fromkeys(word for line in lines for word in line.labels or ()))
    numbered = [None if line.labels is None else torch.tensor([names.index(w) for w in line.labels]) for line in lines]
    input_ids, loss_mask = block([line.ids for line in lines], pad_id), block([line.mask for line in lines], False)
    attention_mask = block([torch.ones_like(line.mask) for line in lines], False)
    assert input_ids is not None and loss_mask is not None and attention_mask is not None  # noqa: PT018
    for row, line in enumerate(lines):
        if line.pads is not None:
            input_ids[row, ~attention_mask[row]] = line.pads.id
    return TokenSet(
        input_ids=input_ids,
        loss_mask=loss_mask,
        attention_mask=attention_mask,
        labels=block(numbered, 0),
        label_names=names,
        logprobs=block([line.logprobs for line in lines], torch.nan),
        trainer_logprobs=block([line.trainer_logprobs for line in lines], torch.nan),
        routed_experts=block([line.routes for line in lines], -1),
        requests=_requests(lines),
    )


def _requests(lines: list[_Line]) -> tuple[SamplingRequest, ...]:
    """The request of each line; empty if none has one. A line without one asks for nothing."""
    if all(line.request is None for line in lines):
        return ()
    return tuple(line.request or SamplingRequest() for line in lines)


def _place(line: _Line, width: int, padding: Padding) -> slice:
    length = len(line.ids)
    start = line.pads.before if line.pads is not None else 0 if padding == "right" else width - length
    return slice(start, start + length)


def _check_alike(lines: list[_Line], most: int) -> None:
    """Check that all lines or none have labels, that pads fill rows of one width, that routes have one shape, and that
    at most `most` versions of the weights sampled what is scored.
    """
    rows = [(len(line.ids), line.pads) for line in lines]
    if any(pads is not None for _, pads in rows) and not one_width(rows):
        raise TokensError(
            f"{lines[0].where}: pads do not fill all rows to one width. Give every line those of one batch, or none."
        )
    labelled, unlabelled = ([line for line in lines if (line.labels is None) == without] for without in (False, True))
    if labelled and unlabelled:
        raise TokensError(
            f"{unlabelled[0].where}: no 'labels', which {labelled[0].where} has. Label every line, or none."
        )
    versions = sorted(frozenset().union(*(line.versions for line in lines)))
    if len(versions) > most:
        at = next(line.where for line in lines if versions[-1] in line.versions)
        raise TokensError(
            f"{at}: tokens sampled by version {versions[-1]} of the weights, others by version {versions[0]}; "
            f"expected at most {counted(most, 'version')}, since a recipe's checkpoint is one, and its `earlier` are "
            "others. Keep the sequences of one version, or name the others."
        )
    shapes = {line.routes.shape[1:]: line.where for line in reversed(lines) if line.routes is not None}
    if len(shapes) > 1:
        (first, at), (second, other_place) = list(shapes.items())[:2]
        raise TokensError(
            f"{at}: routed_experts is {list(first)} per token; {other_place} has {list(second)}. Expected [MoE layers, "
            "top_k], the same in every line."
        )
