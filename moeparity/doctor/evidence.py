"""What a run left behind: which of the given files and folders is a log, which a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from moeparity import paths
from moeparity.errors import LogError, MoeparityError, Where, did_you_mean, display_path, listed
from moeparity.inputs.tokens.tokenset import TokenSet
from moeparity.logs.formats.registry import recognise
from moeparity.logs.opening import open_sampled
from moeparity.logs.record import Sampling
from moeparity.logs.tokens import tokens_of

_CONFIG = "config.json"
_LOGS = {".jsonl", ".json", ".parquet", ".pt", ".safetensors", ".gz"}
_PREVIOUS = "previous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The evidence, by what it was taken for.

    logs: files with log-probabilities. checkpoint: the folder of the weights that both sides were to have. previous:
    that of the weights before an update; None if there is none. strangers: files that are neither, with the reason.
    """

    logs: tuple[Path, ...]
    checkpoint: Path
    previous: Path | None
    strangers: tuple[tuple[Path, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The tokens of a log with what both engines recorded of them. sampling: as the log states it; None if it does not,
    or in several ways.
    """

    tokens: TokenSet
    left_out: int
    sampling: Sampling | None


def find(places: Sequence[Path], checkpoint: Path | None = None, previous: Path | None = None) -> Evidence:
    """Sort files and folders by their contents.

    A folder with a config.json is a checkpoint; of any other folder, each file and each folder in it is looked at. A
    checkpoint in a folder called `previous` is the one before the update. Raises MoeparityError if there is no log, no
    checkpoint, or more than one that could be meant.
    """
    logs: list[Path] = []
    strangers: list[tuple[Path, str]] = []
    checkpoints: list[Path] = []
    for path, by_name in _looked_at(places):
        if _is_checkpoint(path):
            checkpoints.append(path)
            continue
        reason = _no_log(path)
        if reason is None:
            logs.append(path)
        elif by_name:
            raise LogError(reason)
        else:
            strangers.append((path, reason))
    others = [folder for folder in checkpoints if folder not in (checkpoint, previous)]
    if previous is None:
        previous = next((folder for folder in others if folder.name == _PREVIOUS), None)
        others = [folder for folder in others if folder != previous]
    current = _current(others, checkpoint)
    if not logs:
        raise MoeparityError(
            f"doctor: no log of log-probabilities in {listed(display_path(path) for path in places)}. Give the file "
            "that the sampler or the trainer wrote (docs/logs.md)."
        )
    return Evidence(logs=tuple(logs), checkpoint=current, previous=previous, strangers=tuple(strangers))


def _looked_at(places: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Files and checkpoint folders; True for those that were named themselves."""
    for path in places:
        if not paths.present(path):
            raise MoeparityError(f"{Where(path)}: there is no such file or folder. Check the path.")
        if not paths.is_folder(path) or _is_checkpoint(path):
            yield path, True
            continue
        for inside in sorted(path.iterdir()):
            if _is_checkpoint(inside) or not paths.is_folder(inside):
                yield inside, False


def _is_checkpoint(path: Path) -> bool:
    return paths.is_folder(path) and paths.present(path / _CONFIG)


def _no_log(path: Path) -> str | None:
    """Why a file is no log; None if it is one."""
    if path.suffix not in _LOGS:
        message = f"{Where(path)}: no log by its ending; expected one of {listed(sorted(_LOGS))}."
        return message + did_you_mean(path.suffix, _LOGS)
    try:
        recognise(path, "rollout")
    except MoeparityError as error:
        return str(error)
    return None


def _current(folders: Sequence[Path], checkpoint: Path | None) -> Path:
    """The checkpoint that both sides were to have."""
    if checkpoint is not None:
        return checkpoint
    if len(folders) == 1:
        return folders[0]
    if not folders:
        raise MoeparityError(
            "doctor: no checkpoint. Give the folder of the weights that both sides were to have (config.json and "
            "safetensors), in the evidence or as --checkpoint."
        )
    raise MoeparityError(
        f"doctor: {len(folders)} checkpoints: {listed(display_path(folder) for folder in folders)}. Name the one that "
        "both sides were to have with --checkpoint, and the one before the update with --previous."
    )


def batch(evidence: Evidence, most: int) -> Batch:
    """The first `most` sequences of the logs. Raises LogError."""
    logged = tokens_of(open_sampled(evidence.logs), most=most)
    stated = [sampling for sampling, _ in logged.sampling]
    return Batch(tokens=logged.tokens, left_out=logged.left_out, sampling=stated[0] if len(stated) == 1 else None)
