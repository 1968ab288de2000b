"""What a pass was estimated to take, and the most memory it took."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from moeparity.inputs.machine import anonymous_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes: what a pass was estimated to take at most beside what was held before, and what was held at its peak.

    None where the system does not say.
    """

    estimated: int
    held_before: int | None
    peak: int | None

    def joined(self, further: Memory) -> Memory:
        """Of two passes, the one with the greater peak."""
        return max(self, further, key=lambda memory: memory.peak or 0)


class Peak:
    """The most memory that this process holds while the context lasts, `bytes`; `before` is what it holds on entering.

    None where the system does not say.

    On the CPU anonymous memory, looked at 50 times a second: the kernel keeps no maximum that leaves out the pages of
    mapped files. On a GPU what torch has allocated.
    """

    _SECONDS = 0.02

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = self.bytes = _held_bytes(device)
        self._over = threading.Event()

    def __enter__(self) -> Self:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._thread = threading.Thread(target=self._watch, name="peak", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self.device)
        else:
            self._over.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._SECONDS):
            self.bytes = max(self.bytes or 0, anonymous_bytes() or 0) or None


def _held_bytes(device: torch.device) -> int | None:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else anonymous_bytes()
