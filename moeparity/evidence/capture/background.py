"""A thread that writes what a slow program has recorded, so that its trace can be read while it runs or hangs."""

from __future__ import annotations

import threading

from moeparity.evidence.capture.recorder import SECONDS, Recorder


class Background:
    """Flushes a recorder from time to time, until it is stopped."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="moeparity capture", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for a flush that is going on."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(SECONDS):
            self._recorder.flush_if_due()
