"""The messages between a command and its workers, as bytes: plain data and tensors, never a pickle."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load, save

from moeparity.bisection.options import Options
from moeparity.bisection.resume.codec import Codec, CodecError, classes_of
from moeparity.bisection.resume.fingerprint import parts
from moeparity.bisection.study import Study
from moeparity.inputs.machine import numerics_key, precisions
from moeparity.inputs.tokens import TokenSet

_LENGTH = 8
SERVE: Final = "moeparity.bisection.workers.serve"
"""The module that a worker runs."""
DONE, REFUSED, FAILED, PART = (bytes([kind]) for kind in b"drfp")
"""The first byte of an answer: a result; why this worker computes nothing; an error; how much of the task is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker needs to prepare the same study as the command: the recipe, its folder, the options.

    tokens: those that the recipe asked to sample; None if they come from its file. precisions: by backend, in what
    torch multiplies fp32. machine: what decides bits on the command's machine. parts: hashes of what the study is made
    of.
    functions: SHA-256 of the files of users' functions.
    """

    recipe: str
    folder: str
    device: str
    options: Options
    tokens: TokenSet | None
    threads: int
    precisions: dict[str, str]
    machine: dict[str, str]
    parts: dict[str, str]
    functions: dict[str, str]


def job_of(study: Study, options: Options) -> Job:
    """The job of a study that was prepared with these options."""
    device = study.model.device
    return Job(
        recipe=str(study.path),
        folder=str(Path.cwd()),
        device=device.type,
        options=options,
        tokens=None if study.recipe.tokens.sample is None else study.tokens,
        threads=torch.get_num_threads(),
        precisions=precisions(),
        machine=numerics_key(device),
        parts=parts(study),
        functions=functions_of(study),
    )


def functions_of(study: Study) -> dict[str, str]:
    """By `module:function`, the SHA-256 of the file that a user's function is in; its imports are not looked at."""
    digests = {}
    for call in study.functions:
        file = getattr(sys.modules[call.partition(":")[0]], "__file__", None)
        digests[call] = "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()
    return digests


@dataclass(frozen=True, slots=True, kw_only=True)
class PointTask:
    """A point of a sweep: the whole report of a job."""

    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """The task of the waves `first` to `last` - 1 of a pass. parents: the toggles that were taken apart, pass by
    pass.
    """

    job: Job
    parents: tuple[tuple[str, ...], ...]
    first: int
    last: int


Task = PointTask | ShardTask
TASKS: Final = Codec(dict.fromkeys((*classes_of(PointTask), *classes_of(ShardTask))))


def packed(codec: Codec, value: object) -> bytes:
    """A value as bytes: the length of its JSON in 8 bytes, the JSON, its tensors as safetensors."""
    plain, tensors = codec.encode(value)
    text = json.dumps(plain, allow_nan=False).encode()
    return len(text).to_bytes(_LENGTH, "little") + text + save(tensors)


def unpacked(codec: Codec, data: bytes) -> Any:
    """The value that was packed. Raises CodecError for anything that `packed` does not write."""
    length = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    try:
        return codec.decode(json.loads(data[_LENGTH:length]), load(data[length:]))
    except ValueError as error:
        raise CodecError(f"no message of a worker: {error}") from None
