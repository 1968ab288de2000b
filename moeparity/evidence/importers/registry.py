"""The kinds of files that are made into traces, by the word that `moeparity import` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from moeparity.errors import TraceError, Where, did_you_mean, listed
from moeparity.evidence.importers.msprobe import import_msprobe
from moeparity.evidence.importers.sglang import import_sglang
from moeparity.evidence.importers.transformers import import_transformers
from moeparity.evidence.importers.vllm import import_vllm
from moeparity.paths import present

KINDS: Mapping[str, Callable[[Path, Path], None]] = {
    "sglang": import_sglang,
    "vllm": import_vllm,
    "transformers": import_transformers,
    "msprobe": import_msprobe,
}
"""By kind: from the files and the folder of the trace that is made of them."""


def import_trace(kind: str, path: Path, out: Path) -> None:
    """Make a trace of another tool's files. Raises TraceError."""
    if kind not in KINDS:
        raise TraceError(f"import: {kind!r}; expected one of {listed(KINDS)}.{did_you_mean(kind, KINDS)}")
    if not present(path):
        raise TraceError(f"{Where(path)}: does not exist. Expected what {kind} wrote.")
    if present(out):
        raise TraceError(f"--out {Where(out)}: there is something already. Name a folder that is not there.")
    try:
        KINDS[kind](path, out)
    except RecursionError:
        raise TraceError(f"{Where(path)}: it is nested deeper than any program. Expected what {kind} wrote.") from None
