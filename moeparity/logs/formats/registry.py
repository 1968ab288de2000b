"""All formats, and how a file's format is recognised: by its contents, never by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from moeparity import paths
from moeparity.errors import LogError, Where, did_you_mean, listed
from moeparity.logs.formats import dumps, nemo_rl, openai, own, parquet_files, prime_rl, sglang, vllm
from moeparity.logs.formats.fields import Address, Container, Fields
from moeparity.logs.formats.format import Format, Role
from moeparity.logs.formats.lines import GZIP, JsonFile
from moeparity.logs.record import Sequence

FORMATS: dict[str, Format] = {
    format_.name: format_
    for format_ in (
        nemo_rl.FORMAT,
        prime_rl.FORMAT,
        sglang.FORMAT,
        vllm.FORMAT,
        openai.FORMAT,
        dumps.ROLLOUT,
        dumps.TRAIN,
        parquet_files.MILES,
        own.FORMAT,
        parquet_files.PARQUET,
        own.TENSORS,
    )
}
UNREADABLE = (nemo_rl.DISTILLATION, parquet_files.TRL, own.VERL)
_OPENERS: dict[str, Callable[[Path], Container]] = {
    "json": JsonFile,
    "torch": dumps.TorchFile,
    "parquet": parquet_files.ParquetFile,
    "safetensors": own.TensorFile,
}


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a known format. role: whose log-probabilities it gives, if it has one side's only."""

    path: Path
    format: Format
    role: Role
    container: Container

    def sequences(self) -> Iterator[tuple[Address, Sequence]]:
        """All sequences, each with its address. Raises LogError."""
        for address, fields in self.container.records():
            for item, sequence in enumerate(self._read(fields)):
                yield (*address, item), sequence

    def at(self, address: Address) -> Sequence:
        """One sequence."""
        return self._read(self.container.at(address[:-1]))[address[-1]]

    def _read(self, fields: Fields) -> list[Sequence]:
        if not self.format.claims(fields.values):
            raise LogError(
                f"{fields.where}: no record of {self.format.producer}; it has {_keys(fields)}. One file, one format."
            )
        return self.format.read(fields, self.role)


def recognise(path: Path, role: Role, name: str | None = None) -> Source:
    """The file with its format: the one that claims its first record, or the one called `name`. Raises LogError."""
    kind = _container(path)
    container = _OPENERS[kind](path)
    formats = [format_ for format_ in FORMATS.values() if format_.container == kind]
    first = next((fields for _, fields in container.records()), None)
    if first is None:
        raise LogError(f"{Where(path)}: holds no record.")
    if name is not None:
        return Source(path, _by_name(path, kind, name), role, container)
    claimants = [format_ for format_ in formats if format_.claims(first.values)]
    if len(claimants) != 1:
        raise _unknown_format(first, claimants, formats)
    if claimants[0] is prime_rl.FORMAT:
        prime_rl.check_finished(path)
    return Source(path, claimants[0], role, container)


def _container(path: Path) -> str:
    """The kind of file, from its first bytes."""
    try:
        size = paths.checked(path).st_size
        with path.open("rb") as file:
            head = file.read(9)
    except OSError as error:
        raise LogError(f"{Where(path)}: cannot be read: {error.strerror}. Check the path.") from None
    if head.startswith(b"PK\x03\x04"):
        return "torch"
    if head.startswith(b"PAR1"):
        return "parquet"
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") < size:
        return "safetensors"
    if head.startswith(b"\x80"):
        raise LogError(
            f"{Where(path)}: a pickle, which can run any code, is not read. verl's DataProto? docs/logs.md has the "
            "lines that write it as moeparity's own format, to be run in the environment that made it."
        )
    if head.startswith(GZIP) or head.lstrip()[:1] in {b"{", b"["} or not head.strip():
        return "json"
    raise LogError(
        f"{Where(path)}: starts with {head!r}, which is none of JSON, gzip, parquet, safetensors and torch.save. "
        "JSON is read as UTF-8 without a byte order mark."
    )


def _by_name(path: Path, kind: str, name: str) -> Format:
    if name not in FORMATS:
        raise LogError(f"--format {name}: expected one of {listed(FORMATS)}.{did_you_mean(name, FORMATS)}")
    if FORMATS[name].container != kind:
        raise LogError(f"{Where(path)}: a {kind} file; --format {name} is {FORMATS[name].producer}, which is none.")
    return FORMATS[name]


def _unknown_format(first: Fields, claimants: list[Format], formats: list[Format]) -> LogError:
    if claimants:
        names = listed(format_.name for format_ in claimants)
        return LogError(f"{first.where}: could be any of {names}; it has {_keys(first)}. Say which: --format.")
    refused = next((format_ for format_ in UNREADABLE if format_.claims(first.values)), None)
    if refused is not None:
        return LogError(f"{first.where}: {refused.name}: {refused.reason}")
    producers = "; ".join(format_.producer for format_ in formats)
    return LogError(
        f"{first.where}: no log that is known; it has {_keys(first)}. Known of its kind: {producers}. Write anything "
        "else in moeparity's own format (docs/logs.md)."
    )


def _keys(fields: Fields) -> str:
    return listed(list(fields.values)[:20]) or "no keys"
