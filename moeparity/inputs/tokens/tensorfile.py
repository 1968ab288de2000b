"""Token files in the safetensors format."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from moeparity import paths
from moeparity.errors import TokensError, Where, did_you_mean, listed
from moeparity.inputs.tokens import images
from moeparity.inputs.tokens.requests import as_fields, read_request
from moeparity.inputs.tokens.tokenset import TokenSet, check_logprobs, check_routes
from moeparity.ops.kernels.text import SamplingRequest
from moeparity.plan.config import Config

KEYS = ("input_ids", "loss_mask", "attention_mask", "labels", "logprobs", "trainer_logprobs", "routed_experts")
LABEL_NAMES = "label_names"
"""Key of the file's metadata: a JSON list of words, the names of the classes in `labels`."""

REQUESTS = "requests"
"""Key of the file's metadata: a JSON list of objects, the `request` and the `grammar` of each sequence's line."""


def read(path: Path, checkpoint: Path | None = None) -> TokenSet:
    """Read a safetensors file: `input_ids` [B, T], any other field of TokenSet under its own name, and images as in
    `images.KEYS`, which the config.json of a `checkpoint` lays out.

    Masks may be any numbers 0 and 1, routed experts and labels any integers, log-probabilities any floats. Without
    names in the metadata, classes are named by their numbers; without classes those of a file with images are text and
    image. Raises TokensError, and CheckpointError for a config.json that can't be read.
    """
    where = Where(path)
    tensors, metadata = _load(path)
    keys = (*KEYS, *images.KEYS)
    for key in tensors:
        if key not in keys:
            raise TokensError(
                f"{where}: unknown tensor {key!r}; expected one of {listed(keys)}.{did_you_mean(key, keys)}"
            )
    if "input_ids" not in tensors:
        raise TokensError(f"{where}: holds no 'input_ids'; expected int64 [sequences, tokens].")
    ids = tensors["input_ids"]
    if ids.dtype != torch.int64 or ids.dim() != 2 or ids.numel() == 0:
        raise TokensError(
            f"{where}: input_ids is {_name(ids)} {list(ids.shape)}; expected int64 [sequences, tokens], not empty."
        )
    labels, names = _labels(where, tensors.get("labels"), ids, metadata.get(LABEL_NAMES))
    real = _mask(where, tensors, "attention_mask", ids)
    pictures = _images(where, tensors, ids, real, checkpoint)
    if pictures is not None and labels is None:
        labels, names = pictures.mask.long(), images.LABELS
    return TokenSet(
        input_ids=ids,
        loss_mask=_mask(where, tensors, "loss_mask", ids),
        attention_mask=real,
        labels=labels,
        label_names=names,
        logprobs=_logprobs(where, "logprobs", tensors, ids),
        trainer_logprobs=_logprobs(where, "trainer_logprobs", tensors, ids),
        routed_experts=_routes(where, tensors.get("routed_experts"), ids),
        images=pictures,
        requests=_requests(where, metadata.get(REQUESTS), real),
    )


def file_contents(tokens: TokenSet) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file that reads as these tokens."""
    tensors = {key: getattr(tokens, key) for key in KEYS}
    tensors |= {} if tokens.images is None else tokens.images.tensors()
    metadata = {LABEL_NAMES: json.dumps(tokens.label_names)} if tokens.labels is not None else {}
    if tokens.requests:
        lengths = tokens.attention_mask.sum(1).tolist()
        of_rows = [as_fields(request, length) for request, length in zip(tokens.requests, lengths, strict=True)]
        metadata[REQUESTS] = json.dumps(of_rows)
    return {key: tensor.contiguous() for key, tensor in tensors.items() if tensor is not None}, metadata


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    where = Where(path)
    try:
        paths.measured(path, "token file of tensors")
        with safe_open(str(path), framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except OSError as error:
        raise TokensError(
            f"{where}: cannot be read: {error.strerror or error}. Expected a safetensors file with input_ids."
        ) from None
    except SafetensorError as error:
        reason = str(error).splitlines()[0].removeprefix("Error while deserializing header: ")
        raise TokensError(
            f"{where}: not a whole safetensors file ({reason[:200]}). Write it with safetensors.torch.save_file; a "
            "file of JSON lines must be called *.jsonl."
        ) from None


def _images(
    where: Where, tensors: dict[str, Tensor], ids: Tensor, real: Tensor, checkpoint: Path | None
) -> images.Images | None:
    of_images = {key: tensor for key, tensor in tensors.items() if key in images.KEYS}
    if not of_images:
        return None
    if checkpoint is None:
        raise TokensError(
            f"{where}: holds {listed(of_images)}, and which tokens are those of images is said in a config.json. Name "
            "its folder with --checkpoint."
        )
    return images.laid_out(of_images, ids, real, Config(checkpoint / "config.json").fields, where)


def _mask(where: Where, tensors: dict[str, Tensor], key: str, ids: Tensor) -> Tensor:
    mask = tensors.get(key)
    if mask is None:
        return torch.ones_like(ids, dtype=torch.bool)
    if mask.shape != ids.shape:
        raise TokensError(f"{where}: {key} is {list(mask.shape)}; expected {list(ids.shape)}, as input_ids.")
    # Floats of one byte or less can't even be compared.
    if mask.dtype.itemsize == 1 and mask.dtype not in {torch.bool, torch.uint8, torch.int8}:
        raise TokensError(f"{where}: {key} is {_name(mask)}; expected bool or int64.")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise TokensError(f"{where}: {key} holds values other than 0 and 1.")
    return mask.to(torch.bool)


def _labels(
    where: Where, labels: Tensor | None, ids: Tensor, words: str | None
) -> tuple[Tensor | None, tuple[str, ...]]:
    if labels is None:
        return None, ()
    if labels.shape != ids.shape or labels.is_floating_point() or labels.is_complex() or int(labels.min()) < 0:
        raise TokensError(
            f"{where}: labels is {_name(labels)} {list(labels.shape)}; expected whole numbers from 0, "
            f"{list(ids.shape)} as input_ids."
        )
    names, count = _words(words), int(labels.max()) + 1
    if words is not None and len(names) < count:
        raise TokensError(
            f"{where}: metadata {LABEL_NAMES!r} names {len(names)} classes; expected a JSON list of at least {count}, "
            "as many as `labels` counts."
        )
    return labels.to(torch.int64), names or tuple(map(str, range(count)))


def _words(text: str | None) -> tuple[str, ...]:
    """A JSON list of words; () for anything else."""
    try:
        words = json.loads(text or "[]")
    except (ValueError, RecursionError):
        words = []
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else ()


def _logprobs(where: Where, key: str, tensors: dict[str, Tensor], ids: Tensor) -> Tensor | None:
    logprobs = tensors.get(key)
    if logprobs is None:
        return None
    if logprobs.shape != ids.shape or not logprobs.is_floating_point():
        raise TokensError(
            f"{where}: {key} is {_name(logprobs)} {list(logprobs.shape)}; expected floats {list(ids.shape)}, as "
            "input_ids, NaN where there is none."
        )
    values = logprobs.double()
    check_logprobs(where, key, values)
    return values


def _requests(where: Where, text: str | None, real: Tensor) -> tuple[SamplingRequest, ...]:
    """What the metadata say that each sequence's request asked for."""
    if text is None:
        return ()
    rows = None
    with suppress(ValueError, RecursionError):
        rows = json.loads(text)
    keys = {"request", "grammar"}
    if (
        not isinstance(rows, list)
        or len(rows) != len(real)
        or not all(isinstance(row, dict) and row.keys() <= keys for row in rows)
    ):
        raise TokensError(
            f"{where}: metadata {REQUESTS!r} is {text[:40]!r}; expected a JSON list of {len(real)} objects with "
            f"{listed(sorted(keys))}, one for each sequence."
        )
    for row, length in zip(rows, real.sum(1).tolist(), strict=True):
        grammar = row.get("grammar")
        if grammar is not None and (not isinstance(grammar, list) or len(grammar) != length):
            raise TokensError(f"{where}: a grammar of metadata {REQUESTS!r} has not {length} entries, one per token.")
    return tuple(read_request(where, row.get("request"), row.get("grammar")) or SamplingRequest() for row in rows)


def _routes(where: Where, routes: Tensor | None, ids: Tensor) -> Tensor | None:
    if routes is None:
        return None
    no_integers = routes.is_floating_point() or routes.is_complex() or routes.dtype == torch.bool
    if no_integers or routes.dim() != 4 or routes.shape[:2] != ids.shape or not routes.numel():
        raise TokensError(
            f"{where}: routed_experts is {_name(routes)} {list(routes.shape)}; expected whole numbers "
            f"[{ids.shape[0]}, {ids.shape[1]}, MoE layers, top_k], -1 where there is none."
        )
    values = routes.to(torch.int64)
    check_routes(where, values)
    return values


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
