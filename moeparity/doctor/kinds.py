"""What a file or a folder of a run is, by its contents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from moeparity import paths
from moeparity.errors import LogError, MoeparityError, Where, did_you_mean, listed
from moeparity.evidence.trace.writer import HEAD
from moeparity.evidence.weights.fingerprint_files import SCHEMA as FINGERPRINT
from moeparity.logs.formats.registry import recognise
from moeparity.profiles.launch import read
from moeparity.ranks.journal import SCHEMA as JOURNAL

EvidenceKind = Literal[
    "checkpoint", "adapter", "log", "launch", "schedule", "trace", "fingerprint", "journal", "beside"
]
"""`beside` is what a server's plugin wrote beside its arguments and steps, and is read with these."""
_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_LOGS = {".jsonl", ".json", ".parquet", ".pt", ".safetensors", ".gz"}
_LAUNCHES = {".sh", ".bash", ".py", ".yaml", ".yml", ".toml", ".json", ".service", ".conf", ".log", ".txt", ".out"}
_ROWS = {"requests", "starts", "tokens", "padding"}
_WORKER = re.compile(r".+\.worker-\d+\.json")
_LINE = 4_000_000
"""Bytes of a first line that is looked at; a longer one is a log's or nobody's."""


def kind_of_folder(folder: Path) -> EvidenceKind | None:
    """What a folder is as a whole; None if it only holds other things."""
    if paths.present(folder / _CONFIG):
        return "checkpoint"
    if paths.present(folder / _ADAPTER):
        return "adapter"
    if any(folder.glob(f"rank-*/{HEAD}")):
        return "trace"
    return "fingerprint" if any(folder.glob("rank-*/weights.safetensors")) else None


def kind_of_file(path: Path) -> EvidenceKind:
    """What a file is. Raises MoeparityError with the reason if it is nothing that is known."""
    try:
        paths.checked(path)
    except OSError as error:
        raise LogError(f"{Where(path)}: cannot be read: {error.strerror}.") from None
    if _is_fingerprint(path):
        return "fingerprint"
    first = _first_object(path)
    if _schema(first).startswith(JOURNAL.partition("/")[0]):
        return "journal"
    if "spans" in first:
        return "schedule"
    if first.keys() == _ROWS or _is_of_worker(path):
        return "beside"
    return _log_or_launch(path)


def _log_or_launch(path: Path) -> EvidenceKind:
    reasons: list[str] = []
    if path.suffix in _LOGS:
        try:
            recognise(path, "rollout")
        except MoeparityError as error:
            reasons.append(str(error))
        else:
            return "log"
    if path.suffix in _LAUNCHES:
        try:
            read(path)
        except MoeparityError as error:
            reasons.append(str(error))
        else:
            return "launch"
    if reasons:
        raise LogError(reasons[0])
    endings = sorted(_LOGS | _LAUNCHES)
    raise LogError(
        f"{Where(path)}: no evidence by its ending; expected one of {listed(endings)}."
        f"{did_you_mean(path.suffix, endings)}"
    )


def _is_fingerprint(path: Path) -> bool:
    if path.suffix != ".safetensors":
        return False
    try:
        with safe_open(path, "pt") as file:
            head = json.loads((file.metadata() or {}).get("moeparity", "{}"))
    except (OSError, SafetensorError, ValueError, RecursionError):
        return False
    return _schema(head).startswith(FINGERPRINT.partition("/")[0])


def _is_of_worker(path: Path) -> bool:
    """Whether it is a worker's file, whose engine's file lies beside it."""
    return _WORKER.fullmatch(path.name) is not None and paths.is_file(
        path.with_name(path.name.partition(".worker-")[0] + ".json")
    )


def _schema(document: Any) -> str:
    return str(document.get("schema", "")) if isinstance(document, dict) else ""


def _first_object(path: Path) -> dict[str, Any]:
    """The JSON object on the first line; {} if there is none."""
    if path.suffix != ".jsonl":
        return {}
    try:
        with paths.opened(path) as file:
            document = json.loads(file.readline(_LINE))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
