"""What a report was made with; plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """A file by its name, its size, and the SHA-256 of its bytes; of a safetensors file of the weights that is too
    large to be read again, of its header alone (`of` says which).
    """

    name: str
    bytes: int
    sha256: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Files by their digests, versions of what computes, and the machine.

    capability: the instruction set that torch chooses its kernels by. threads: those of torch. trace: the files of a
    recorded candidate.
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
