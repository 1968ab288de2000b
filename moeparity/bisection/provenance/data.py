"""What a report was made from; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file: its name, size and SHA-256. For a safetensors file that is too large to be read again, the SHA-256 is of
    its header alone; `of` says which.
    """

    name: str
    bytes: int
    sha256: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Digests of files, versions of the programs that compute, and the machine.

    capability: the instruction set by which torch chooses its kernels. threads: torch's. trace: the files of a recorded
    candidate.
    """

    recipe: FileDigest
    tokens: FileDigest
    weights: tuple[FileDigest, ...]
    versions: tuple[tuple[str, str], ...]
    system: str
    cpu: str
    capability: str
    device: str
    threads: int
    trace: tuple[FileDigest, ...] = ()
