"""The bytes of Python's standard library, and windows of them."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from scripts.train_quickstart.configuration import BATCH, SEQ_LEN

TEST_FOLDERS = {"test", "tests", "idle_test"}


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes held out, with the number of files behind each.

    `held_out_source` leaves out the tables in `encodings/`, which are near-copies of tables in the training data.
    """

    train: Tensor
    held_out: Tensor
    held_out_source: Tensor
    train_files: int
    held_out_files: int


def is_source(relative: Path) -> bool:
    """Whether a standard library file belongs to the corpus."""
    # _sysconfigdata* is generated when Python is built and holds that machine's paths.
    excluded = "site-packages" in relative.parts or relative.name.startswith("_sysconfigdata")
    return not excluded and TEST_FOLDERS.isdisjoint(relative.parts)


def load_corpus() -> Corpus:
    """Read the standard library; about one file in twenty, chosen by the hash of its path, is held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    source: list[bytes] = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if is_source(relative):
            digest = hashlib.sha256(relative.as_posix().encode()).digest()
            is_held_out = int.from_bytes(digest[:4], "big") % 20 == 0
            parts[is_held_out].append(path.read_bytes())
            if is_held_out and "encodings" not in relative.parts:
                source.append(path.read_bytes())
    train, held_out, ordinary = (
        torch.frombuffer(bytearray(b"".join(p)), dtype=torch.uint8) for p in (parts[False], parts[True], source)
    )
    return Corpus(train, held_out, ordinary, len(parts[False]), len(parts[True]))


def windows(data: Tensor, starts: Tensor) -> Tensor:
    """Stack the windows of SEQ_LEN inputs plus one last target that begin at `starts`."""
    return data[starts[:, None] + torch.arange(SEQ_LEN + 1)].long()


def batches(data: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield training batches for ever; each pass visits disjoint windows, so nothing repeats within it."""
    while True:
        # A fresh offset per pass keeps the window borders from falling on the same bytes every time.
        offset = int(torch.randint(SEQ_LEN, (1,), generator=generator))
        count = (len(data) - 1 - offset) // SEQ_LEN
        order = torch.randperm(count, generator=generator) * SEQ_LEN + offset
        for chunk in order[: count - count % BATCH].split(BATCH):
            yield windows(data, chunk)
