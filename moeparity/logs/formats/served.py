"""What responses of different engines have in common: prompts, request parameters, weight versions."""

from __future__ import annotations

import base64
import sys
from collections import ChainMap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from moeparity.errors import LogError, TokensError, shown, whole_number
from moeparity.inputs.tokens.requests import KEYS
from moeparity.inputs.tokens.routelog import decode
from moeparity.inputs.tokens.tokenset import check_routes, routed_layers
from moeparity.logs.formats.fields import Fields
from moeparity.logs.record import Sampling, Sequence

PARAMETERS = ("sampling_params", "request")
"""Keys under which a line may have the request's parameters beside the response."""


_SHAPED = ("nrlre1:", base64.b64encode(b"\x93NUMPY").decode())
"""How strings of NeMo Gym and of vLLM's server begin; the latter are *.npy files."""


def sampling(fields: Fields) -> Sampling:
    """The request's parameters, if the line has them under `sampling_params` or `request`."""
    parameters = _parameters(fields)
    mode = parameters.values.get("logprobs_mode")
    modes = {"raw": "raw", "raw_logprobs": "raw", "processed": "processed", "processed_logprobs": "processed"}
    if mode is not None and (not isinstance(mode, str) or mode not in modes):
        hint = " Logits are no log-probabilities: log those." if str(mode).endswith("logits") else ""
        raise LogError(f"{fields.where}: logprobs_mode is {shown(mode)}; expected raw or processed.{hint}")
    top_k = parameters.values.get("top_k")
    if top_k is not None and type(top_k) is not int:
        raise LogError(f"{fields.where}: top_k is {shown(top_k)}; expected a whole number.")
    return Sampling(
        temperature=_number(parameters, "temperature"),
        top_p=_number(parameters, "top_p"),
        # Engines write "no limit" as -1 or 0.
        top_k=None if top_k is None or top_k < 1 else top_k,
        min_p=_number(parameters, "min_p"),
        repetition_penalty=_number(parameters, "repetition_penalty"),
        presence_penalty=_number(parameters, "presence_penalty", least=-sys.float_info.max),
        frequency_penalty=_number(parameters, "frequency_penalty", least=-sys.float_info.max),
        logprobs_mode=None if mode is None else modes[mode],  # type: ignore[arg-type]
    )


def request_fields(fields: Fields) -> dict[str, Any]:
    """What the request asked for by token ids, as the line has it: keys of a token file's `request` that hold
    something. Tokens that are made of it check it.
    """
    parameters = _parameters(fields)
    return {key: value for key in KEYS if (value := parameters.values.get(key))}


def _parameters(fields: Fields) -> Fields:
    """What both keys hold, the first before the second."""
    stated = [fields.mapping(key).values for key in PARAMETERS if fields.has(key)]
    return Fields(fields.where, dict(ChainMap(*map(dict, stated))))


def _number(parameters: Fields, key: str, least: float = 0.0) -> float | None:
    value = parameters.values.get(key)
    if value is not None and (type(value) not in {int, float} or not least <= value <= sys.float_info.max):
        raise LogError(f"{parameters.where}: {key} is {shown(value)}; expected a number{'' if least else ' from 0'}.")
    return None if value is None else float(value)


def version(name: Any) -> int:
    """A weight version as a number; -1 if it is none, since engines accept any word."""
    is_name = isinstance(name, str) or (type(name) is int and abs(name) < 1 << 63)
    number = whole_number(str(name)) if is_name else None
    return -1 if number is None else number


def versions(fields: Fields, prompt: int, size: int) -> Tensor | None:
    """int64 [size], from `weight_versions` (spans [start, end) of the response) or one `weight_version` for all."""
    spans, single = fields.values.get("weight_versions"), fields.values.get("weight_version")
    if not spans and single is None:
        return None
    column = torch.full((size,), -1)
    if not spans:
        column[prompt:] = version(single)
        return column
    if not isinstance(spans, list):
        raise LogError(f"{fields.where}: weight_versions is {shown(spans)}; expected a list of spans.")
    for span in spans:
        name, start, end = _span(fields, span)
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= size - prompt:
            raise LogError(f"{fields.where}: weight_versions holds no span of {size - prompt} response tokens.")
        column[prompt + start : prompt + end] = version(name)
    return column


def _span(fields: Fields, span: Any) -> tuple[Any, Any, Any]:
    """The version, start and end of a span: SGLang writes a list, vLLM a mapping."""
    if isinstance(span, Mapping):
        return span.get("version"), span.get("start"), span.get("end")
    if not isinstance(span, list) or len(span) != 3:
        raise LogError(f"{fields.where}: weight_versions holds {shown(span)}; expected version, start and end.")
    return span[0], span[1], span[2]


def routes(fields: Fields, size: int) -> dict[str, Tensor]:
    """routed_experts, if the record gives their shape and they cover the whole sequence.

    SGLang's plain base64 of int32 does not tell the number of layers. Engines do not run the last token.
    """
    log = fields.values.get("routed_experts")
    if log is None or (isinstance(log, str) and not log.startswith(_SHAPED)):
        return {}
    try:
        ids, _ = routed_layers(fields.where, decode(fields.where, log, None, None))
        check_routes(fields.where, ids)
    except TokensError as error:
        raise LogError(str(error)) from None
    if len(ids) not in {size, size - 1}:
        return {}
    missing = ids.new_full((size - len(ids), *ids.shape[1:]), -1)
    return {"routed_experts": torch.cat([ids, missing])}


def sampled_sequence(
    fields: Fields,
    name: str,
    ids: Tensor,
    values: Tensor,
    *,
    prompt: Tensor | None,
    parameters: Sampling,
    routed: Fields | None = None,
    further: Mapping[str, Tensor] = MappingProxyType({}),
) -> Sequence:
    """The sequence of a response: prompt (None if the record lacks its ids) and completion; the completion is
    scored. further: columns of `formats.further`, of prompt and completion.
    """
    before = torch.empty(0, dtype=torch.int64) if prompt is None else prompt
    whole = torch.cat([before, ids])
    mask = torch.zeros(len(whole), dtype=torch.bool)
    mask[len(before) :] = True
    return Sequence(
        id=name,
        where=fields.where,
        token_ids=whole,
        mask=mask,
        rollout=torch.cat([torch.full((len(before),), torch.nan, dtype=torch.float64), values]),
        prompt=len(before),
        versions=versions(routed or fields, len(before), len(whole)),
        sampling=parameters,
        request=request_fields(fields),
        extra={**(routes(routed or fields, len(whole)) if prompt is not None else {}), **further},
    )


def scored_sequence(
    fields: Fields, name: str, ids: Tensor, values: Tensor, further: Mapping[str, Tensor] = MappingProxyType({})
) -> Sequence:
    """The sequence of a scored prompt. Tokens that the sampler did not make are dropped when both sides are joined."""
    weights = version(fields.values.get("weight_version"))
    return Sequence(
        id=name,
        where=fields.where,
        token_ids=ids,
        mask=torch.ones(len(ids), dtype=torch.bool),
        trainer=values,
        trainer_version=None if weights < 0 else weights,
        extra=further,
    )
