"""Kept passes: whole or not there, trusted only when they are this run's, gone when the run is done."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from moeparity.bisection.resume.codec import Codec
from moeparity.bisection.resume.pieces import PieceStore
from moeparity.numerics.bits import same_bits
from tests.log_records import Records

PRINT = "a" * 64


@dataclass(slots=True)
class Seen:
    sums: dict[tuple[str, int], torch.Tensor]
    nan: float = float("nan")


CODEC = Codec([Seen])
SEEN = Seen({("trial", 0): torch.tensor([1.0, float("nan"), -0.0], dtype=torch.bfloat16)})


def passes(cache: Path, fingerprint: str = PRINT) -> PieceStore:
    return PieceStore(fingerprint, CODEC, cache)


def file(cache: Path, name: str = "0") -> Path:
    return cache / "passes" / PRINT / f"{name}.safetensors"


def test_saved_and_loaded(tmp_path: Path) -> None:
    assert passes(tmp_path).load("0") is None
    passes(tmp_path).save("0", SEEN)
    loaded = passes(tmp_path).load("0")
    assert isinstance(loaded, Seen)
    assert same_bits(loaded.sums["trial", 0], SEEN.sums["trial", 0])
    assert [path.name for path in file(tmp_path).parent.iterdir()] == ["0.safetensors"]


def test_a_pass_without_tensors(tmp_path: Path) -> None:
    passes(tmp_path).save("0", {"nothing": ()})
    assert passes(tmp_path).load("0") == {"nothing": ()}


def test_removed_when_the_run_is_done_and_kept_when_it_is_not(tmp_path: Path) -> None:
    for name in ("0", "1"):
        passes(tmp_path).save(name, SEEN)
    with pytest.raises(KeyboardInterrupt) as caught, passes(tmp_path):
        raise KeyboardInterrupt
    assert caught.value.__notes__ == [
        f"2 finished passes are kept in {file(tmp_path).parent}: the same command goes on from there."
    ]
    with passes(tmp_path) as store:
        assert store.load("1") is not None
    assert not file(tmp_path).parent.exists()


def test_nothing_is_claimed_where_nothing_was_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, passes(tmp_path):
        raise KeyboardInterrupt
    assert not getattr(caught.value, "__notes__", [])


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    save_file({"x": torch.ones(2)}, path)


def state_changed(path: Path) -> None:
    with safe_open(str(path), framework="pt") as opened:
        metadata = opened.metadata()
    save_file(load_file(path), path, {**metadata, "state": metadata["state"].replace("trial", "other")})


def another_format(path: Path) -> None:
    with safe_open(str(path), framework="pt") as opened:
        metadata = opened.metadata()
    save_file(load_file(path), path, {**metadata, "format": "moeparity.pass/0"})


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [truncated, emptied, one_bit, foreign, state_changed, another_format, a_folder])
def test_a_spoilt_file_is_ignored_with_a_line(tmp_path: Path, log_records: Records, spoil: object) -> None:
    passes(tmp_path).save("0", SEEN)
    assert callable(spoil)
    spoil(file(tmp_path))
    assert passes(tmp_path).load("0") is None
    (record,) = log_records.all
    assert record.levelno == logging.WARNING
    assert "0.safetensors: ignored, it is no pass of this run: " in record.getMessage()
    assert "\n" not in record.getMessage()


def test_a_pass_of_another_run_is_not_trusted(tmp_path: Path, log_records: Records) -> None:
    passes(tmp_path).save("0", SEEN)
    later_run = "b" * 64
    file(tmp_path).parent.rename(tmp_path / "passes" / later_run)
    assert passes(tmp_path, later_run).load("0") is None
    assert "fingerprint" in log_records.text


def test_a_class_that_has_changed_since_is_not_trusted(tmp_path: Path, log_records: Records) -> None:
    passes(tmp_path).save("0", SEEN)
    assert PieceStore(PRINT, Codec([]), tmp_path).load("0") is None
    assert "Seen" in log_records.text


def test_a_cache_that_cannot_be_written_costs_a_line(tmp_path: Path, log_records: Records) -> None:
    (tmp_path / "passes").write_text("in the way", "utf-8")
    with passes(tmp_path) as store:
        store.save("0", SEEN)
        assert store.load("0") is None
    assert "not kept, a killed run would start anew" in log_records.text


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path, log_records: Records) -> None:
    tmp_path.chmod(0o777)
    with passes(tmp_path) as store:
        store.save("0", SEEN)
        assert store.load("0") is None
    (record,) = log_records.all
    assert record.getMessage().startswith(
        f"{tmp_path}: no pass is kept there, a killed run would start anew: others may "
    )
    assert not list(tmp_path.iterdir())


def test_the_line_goes_to_standard_error_by_itself(tmp_path: Path) -> None:
    passes(tmp_path).save("0", SEEN)
    emptied(file(tmp_path))
    code = (
        "import sys; from pathlib import Path; from moeparity.bisection.resume.codec import Codec; "
        "from moeparity.bisection.resume.pieces import PieceStore; "
        "PieceStore(sys.argv[1], Codec([]), Path(sys.argv[2])).load('0')"
    )
    command = [sys.executable, "-c", code, PRINT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not done.stdout
    assert done.stderr.count("\n") == 1
    assert "ignored, it is no pass of this run" in done.stderr


def test_what_another_key_signed_is_not_trusted(tmp_path: Path, log_records: Records) -> None:
    """A file that somebody else made, with everything right but the key that only this user's runs have."""
    passes(tmp_path / "theirs").save("0", SEEN)
    passes(tmp_path / "ours").save("0", SEEN)
    file(tmp_path / "ours").write_bytes(file(tmp_path / "theirs").read_bytes())
    assert passes(tmp_path / "ours").load("0") is None
    assert "no run of this user wrote it" in log_records.text
