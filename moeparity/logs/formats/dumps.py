"""slime and miles: files of torch.save, by `--save-debug-rollout-data` and `--save-debug-train-data`.

They are read with `weights_only=True`, which unpickles only tensors and plain containers. Their lists of
log-probabilities cover the response. A file is read as a whole; a run writes one per rollout.
Read in THUDM/slime 624b824a, slime/observability/{rollout,train}_data_utils.py, and radixark/miles 31f1ca96,
miles/ray/rollout/debug_data.py and miles/utils/train_dump_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, ZipFile, is_zipfile

import torch
from torch import Tensor

from moeparity.errors import LogError, Where, listed, shown
from moeparity.inputs.tokens.tokenset import check_routes, routed_layers
from moeparity.logs.formats import served
from moeparity.logs.formats.fields import Address, Fields
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.record import Sequence
from moeparity.paths import LIMITS, limit


class TorchFile:
    """The samples of a dump, each with the `rollout_id` of the file. Raises LogError."""

    def __init__(self, path: Path) -> None:
        self._where = Where(path)
        self._samples = _load(path)

    def records(self) -> Iterator[tuple[Address, Fields]]:
        """All samples, in order."""
        return (((number,), Fields(self._where, sample)) for number, sample in enumerate(self._samples))

    def at(self, address: Address) -> Fields:
        """One sample."""
        return Fields(self._where, self._samples[address[0]])


def _load(path: Path) -> list[dict[str, Any]]:
    where = Where(path)
    _check_sums(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001  torch raises many kinds for a file that is not its own
        raise LogError(
            f"{where}: holds more than tensors, lists and numbers, or is no whole file ({_cause(error)}). To unpickle "
            "the rest could run any code. Write it as moeparity's own format in the environment that made it; "
            "docs/logs.md has the lines for verl, slime and miles."
        ) from None
    if not isinstance(content, dict):
        raise LogError(f"{where}: {shown(content)} is no dump of slime or miles; expected a mapping with samples.")
    samples = _columns(where, content) if "rollout_data" in content else content.get("samples")
    if not isinstance(samples, list) or not samples or not all(isinstance(sample, dict) for sample in samples):
        raise LogError(f"{where}: holds no samples; it has {listed(content) or 'nothing'}.")
    return [{**sample, _STEP: content.get("rollout_id")} for sample in samples]


def _check_sums(path: Path) -> None:
    """Check the checksums that torch.save wrote, which torch.load ignores. Raises LogError for a damaged file."""
    where = Where(path)
    try:
        # is_zipfile also raises, for an archive in several parts.
        if not is_zipfile(path):
            return
        with ZipFile(path) as file:
            _refuse_packed(where, file)
            damaged = file.testzip()
    except LogError:
        raise
    except Exception:  # noqa: BLE001  damage shows as many kinds
        damaged = "its directory"
    if damaged is not None:
        raise LogError(f"{Where(path)}: {damaged} is not as it was written: its checksum fails. Copy the file again.")


def _refuse_packed(where: Where, file: ZipFile) -> None:
    """Refuse compressed entries, which torch.save never writes, and which may unpack to a thousand times their size.
    Raises LogError.
    """
    size, most = sum(part.file_size for part in file.infolist()), limit(LIMITS["torch.save"])
    if any(part.compress_type != ZIP_STORED for part in file.infolist()) or size > most:
        raise LogError(f"{where}: no file of torch.save: it is packed, or holds more than {most:,} bytes.")


_STEP = "rollout_id of the file"


def _cause(error: Exception) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line.strip() for line in lines if "GLOBAL" in line), lines[0])[:160].rstrip(".")


def _columns(where: Where, content: dict[str, Any]) -> list[dict[str, Any]]:
    """The samples of a rank's columns, as miles keeps them. Raises LogError if context is split over ranks, since then
    a file has only a part of each sequence.
    """
    columns, parts = content["rollout_data"], content.get("cp_size")
    if parts != 1:
        raise LogError(
            f"{where}: written with context parallelism over {shown(parts)} ranks, each holding a part of every "
            "sequence. Dump with --context-parallel-size 1."
        )
    if not isinstance(columns, dict) or not isinstance(columns.get("tokens"), list):
        raise LogError(f"{where}: rollout_data holds no list of tokens.")
    count = len(columns["tokens"])
    lists = {
        key: values
        for key, values in columns.items()
        if isinstance(values, list | tuple | Tensor) and len(values) == count
    }
    return [{key: values[row] for key, values in lists.items()} for row in range(count)]


def _rollout_claims(record: Mapping[str, Any]) -> bool:
    return "tokens" in record and "response_length" in record


def _train_claims(record: Mapping[str, Any]) -> bool:
    return "tokens" in record and "response_lengths" in record


def _read_rollout(fields: Fields, role: Role) -> list[Sequence]:
    return [
        _sequence(fields, "index", "response_length", "loss_mask", removed=fields.values.get("remove_sample") is True)
    ]


def _read_train(fields: Fields, role: Role) -> list[Sequence]:
    name = "sample_index" if fields.has("sample_index") else "sample_indices"
    return [_sequence(fields, name, "response_lengths", "loss_masks", removed=False)]


def _sequence(fields: Fields, index: str, length: str, mask: str, *, removed: bool) -> Sequence:
    ids, response = fields.tokens("tokens"), fields.whole(length, least=1)
    size = len(ids)
    prompt = size - response
    if prompt < 0:
        raise LogError(f"{fields.where}: {length} is {response}; tokens has {size} entries, prompt included.")
    scored = fields.mask(mask, response) if fields.has(mask) else torch.ones(response, dtype=torch.bool)
    step = fields.optional_whole(_STEP)
    columns = {key: _after(fields, key, prompt, response) for key in _SIDES if fields.has(key)}
    references = {"ref": columns["ref_log_probs"]} if "ref_log_probs" in columns else {}
    return Sequence(
        id=f"{step}/{fields.whole(index)}",
        where=fields.where,
        token_ids=ids,
        mask=torch.cat([torch.zeros(prompt, dtype=torch.bool), scored & (not removed)]),
        rollout=columns.get("rollout_log_probs"),
        trainer=columns.get("log_probs"),
        prompt=prompt,
        step=step,
        versions=_versions(fields, prompt, size),
        several=len(_calls(fields)) > 1,
        entropy=columns.get("entropy"),
        extra={**references, **_routes(fields, size)},
    )


_SIDES = ("rollout_log_probs", "log_probs", "ref_log_probs", "entropy")


def _after(fields: Fields, key: str, prompt: int, response: int) -> Tensor:
    """A column of the response, preceded by the prompt, for which nothing is known."""
    unknown = torch.full((prompt,), torch.nan, dtype=torch.float64)
    return torch.cat([unknown, fields.floats(key, response)])


def _versions(fields: Fields, prompt: int, size: int) -> Tensor | None:
    """The version of each token; it is known only if all calls of the engine had the same."""
    calls = _calls(fields)
    if not calls:
        return None
    versions = torch.full((size,), -1)
    if len(calls) == 1:
        versions[prompt:] = served.version(*calls)
    return versions


def _calls(fields: Fields) -> set[str]:
    """The versions of the engine calls that made a sample; the dump does not say which call made which tokens."""
    versions = fields.values.get("weight_versions")
    return set(map(str, versions)) if isinstance(versions, list) else set()


def _routes(fields: Fields, size: int) -> dict[str, Tensor]:
    """Routes of all tokens but the last, of all layers; layers without a router are filled with zeros and left out."""
    routes = fields.values.get("rollout_routed_experts")
    if not isinstance(routes, Tensor):
        return {}
    if routes.dim() != 3 or routes.is_floating_point() or len(routes) not in {size, size - 1} or not routes.numel():
        raise LogError(
            f"{fields.where}: rollout_routed_experts is {list(routes.shape)}; expected whole numbers "
            f"[{size - 1}, layers, top_k]."
        )
    routed, _ = routed_layers(fields.where, routes.to(torch.int64))
    missing = routed.new_full((size - len(routed), *routed.shape[1:]), -1)
    padded = torch.cat([routed, missing])
    check_routes(fields.where, padded)
    return {"routed_experts": padded}


_READ_AT = "THUDM/slime 624b824a, slime/observability; radixark/miles 31f1ca96, miles/ray/rollout, miles/utils"
ROLLOUT = Format(
    name="slime-rollout",
    producer="slime or miles --save-debug-rollout-data",
    container="torch",
    claims=_rollout_claims,
    read=_read_rollout,
    source=_READ_AT,
    fixture="made by slime 624b824a and miles 31f1ca96",
)
TRAIN = Format(
    name="slime-train",
    producer="slime or miles --save-debug-train-data",
    container="torch",
    claims=_train_claims,
    read=_read_train,
    source=_READ_AT,
    fixture="made by slime 624b824a and miles 31f1ca96",
)
