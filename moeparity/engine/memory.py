"""How much memory a pass was estimated to need, and the most that it took."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import torch

from moeparity.inputs.machine import anonymous_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes: how much a pass was estimated to need beside what the process held before, and how much was held at the
    peak. None if the system does not say.
    """

    estimated: int
    held_before: int | None
    peak: int | None

    def joined(self, further: Memory) -> Memory:
        """Of two passes, the one with the higher peak."""
        return max(self, further, key=lambda memory: memory.peak or 0)


class Peak:
    """The most memory that this process holds while the context lasts; `before` is what it holds on entering. None if
    the system does not say.

    On the CPU it is anonymous memory, read 50 times a second, since the kernel keeps no maximum without the pages of
    mapped files. On a GPU it is what torch has allocated.
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
