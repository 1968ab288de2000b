"""Inside a program that `moeparity capture` started: the capture of this process, from torch's import to its end."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from moeparity.errors import MoeparityError
from moeparity.evidence.capture.context import Capture
from moeparity.evidence.capture.settings import CaptureSettings, read, written
from moeparity.evidence.capture.verify.comparison import Tolerance
from moeparity.evidence.capture.verify.verifier import Verification

VARIABLE = "MOEPARITY_CAPTURE"


def message(
    folder: Path | None, settings: CaptureSettings, program: tuple[str, ...], verification: Verification | None
) -> str:
    """What a program is told of its capture, as the environment carries it."""
    verify = None
    if verification is not None:
        verify = {
            "recorded": str(verification.recorded.absolute()),
            "reports": str(verification.reports),
            "stop": verification.stop,
            "tolerance": [verification.tolerance.relative, verification.tolerance.absolute],
        }
    folder_name = None if folder is None else str(folder.absolute())
    return json.dumps({"folder": folder_name, "settings": written(settings), "program": program, "verify": verify})


def begin(text: str) -> None:
    """Start the capture that the environment asks for, and end it when the process ends."""
    document: dict[str, Any] = json.loads(text)
    verify = document["verify"]
    verification = None
    if verify is not None:
        verification = Verification(
            Path(verify["recorded"]),
            reports=Path(verify["reports"]),
            stop=verify["stop"],
            tolerance=Tolerance(*verify["tolerance"]),
        )
    folder = document["folder"]
    capture = Capture(
        None if folder is None else Path(folder),
        read(document["settings"]),
        program=tuple(document["program"]),
        verification=verification,
        started=True,
    )
    try:
        capture.start()
    except MoeparityError as error:
        sys.stderr.write(f"moeparity capture: {error}\n")
        os._exit(2)
    if multiprocessing.parent_process() is None:
        atexit.register(_end, capture)
    else:
        # A process that multiprocessing has forked ends without Python's own handlers.
        Finalize(None, _end, (capture,), exitpriority=-1)


def _end(capture: Capture) -> None:
    # Python sets these when a program ends by an exception that nobody took.
    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    capture.stop(whole=failed is None)
