"""The writer of one rank's trace: buffered, and valid to the last flush whenever the process ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from moeparity.errors import TraceError, Where
from moeparity.evidence.trace.records import Batch, Call, End, Head, Note, Record, Stack, Value, document
from moeparity.evidence.trace.tensors import TensorFile, storable

HEAD, EVENTS, TENSORS = "head.json", "events.jsonl", "tensors"

ROWS = "rows"
"""The key of a file under which the digests of all its values' rows lie behind each other."""

BUFFER = 64 << 20
"""Bytes of tensors, and as many records of some 200 bytes, that are held back before they are written."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=str)

_RECORD = 200
"""Bytes that a record is counted as."""


class TraceWriter:
    """Writes `FOLDER/rank-N`. Tensors are on disk before the line that names them; a line is whole when it ends.

    Use it as a context; leaving it by an exception writes what there is, without the end.

    Raises TraceError where that rank's folder is there already or can't be written.
    """

    def __init__(self, folder: Path, head: Head, *, buffer: int = BUFFER) -> None:
        self.rank = head.rank
        self.folder = folder / f"rank-{head.rank}"
        self._buffer, self._held_bytes = buffer, 0
        self._lines: list[str] = []
        self._tensors: TensorFile | None = None
        self._rows: list[torch.Tensor] = []
        self._at = 0
        self._stacks: dict[tuple[str, ...], int] = {}
        self._files = self._calls = self._values = 0
        try:
            (self.folder / TENSORS).mkdir(parents=True)
            _write_whole(self.folder / HEAD, json.dumps(document(head), indent=1))
            self._events = (self.folder / EVENTS).open("a", encoding="utf-8")
        except FileExistsError:
            raise TraceError(
                f"{Where(self.folder)}: there is something already. Name a folder that is not there."
            ) from None
        except OSError as error:
            raise TraceError(f"{Where(self.folder)}: can't be written: {error.strerror}.") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(whole=kind is None)

    @property
    def held_bytes(self) -> int:
        """No whole tensor is held: each is written when it comes."""
        return 0

    def value(self, value: Value, *, rows: torch.Tensor | None = None, tensor: torch.Tensor | None = None) -> None:
        """A value, with the digests of its rows and the whole tensor where these are to be kept.

        The digests are taken over as they are; the tensor is written at once.
        """
        held_bytes = 0
        places: dict[str, Any] = {}
        if tensor is not None:
            places |= {"tensor": True, "tensor_file": self.keep(value.id, tensor)}
            held_bytes += tensor.nbytes
        if rows is not None:
            places |= {"rows": True, "at": self._at, "file": self._files}
            self._rows.append(rows)
            self._at += len(rows)
            held_bytes += 8 * len(rows)
        self._values += 1
        self._append(value, held_bytes, places)

    def keep(self, number: int, tensor: torch.Tensor) -> int | None:
        """Write the whole tensor of a value that will be handed over later; the number of its file.

        None for a dtype that safetensors has not.
        """
        if not storable(tensor.dtype):
            self.note(f"values of {tensor.dtype} are not kept whole: safetensors has no such dtype")
            return None
        if self._tensors is not None and not self._tensors.has_room:
            self._close_tensors()
        self._file().add(str(number), tensor)
        return self._files

    def call(self, call: Call) -> None:
        """A call that has returned, whose values are written."""
        self._calls += 1
        self._append(call)

    def batch(self, batch: Batch) -> None:
        """The rows of a server's step."""
        self._append(batch)

    def stack(self, frames: Iterable[str]) -> int:
        """The number of a stack; one that was met before is not written again."""
        key = tuple(frames)
        if key not in self._stacks:
            self._stacks[key] = len(self._stacks)
            self._append(Stack(id=self._stacks[key], frames=key))
        return self._stacks[key]

    def note(self, text: str) -> None:
        """A sentence for the reader."""
        self._append(Note(text=text))

    def flush(self) -> None:
        """Hand everything held back to the operating system: a killed process has lost nothing before this."""
        self._close_tensors()
        self._events.write("".join(self._lines))
        self._events.flush()
        self._lines, self._held_bytes = [], 0

    def close(self, *, whole: bool = True) -> None:
        """Flush, and write the end where the program got there."""
        if self._events.closed:
            return
        if whole:
            self._append(End(calls=self._calls, values=self._values))
        self.flush()
        self._events.close()

    def _close_tensors(self) -> None:
        """End the file of tensors; what is kept from now on goes to the next."""
        if self._rows:
            self._file().add(ROWS, torch.cat(self._rows).cpu())
        if self._tensors is not None:
            self._tensors.close()
            self._files += 1
        self._tensors, self._rows, self._at = None, [], 0

    def _file(self) -> TensorFile:
        """The file of tensors that is being written."""
        if self._tensors is None:
            self._tensors = TensorFile(self.folder / TENSORS / f"{self._files:06}.safetensors")
        return self._tensors

    def _append(self, record: Record, held_bytes: int = 0, places: dict[str, Any] | None = None) -> None:
        self._lines.append(_ENCODER.encode(document(record) | (places or {})) + "\n")
        self._held_bytes += held_bytes + _RECORD
        if self._held_bytes >= self._buffer:
            self.flush()


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
