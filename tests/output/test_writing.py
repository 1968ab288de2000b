"""Files are written whole or not at all, and nothing stays beside them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from moeparity.errors import MoeparityError
from moeparity.output import writing
from moeparity.progress import tidy_up


def test_written_and_replaced(tmp_path: Path) -> None:
    for text in ("one", "two"):
        writing.write_text(tmp_path / "a.json", text)
        assert (tmp_path / "a.json").read_text("utf-8") == f"{text}\n"
    writing.write_tensors(tmp_path / "b.safetensors", {"x": torch.ones(2)})
    assert load_file(tmp_path / "b.safetensors")["x"].tolist() == [1.0, 1.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.safetensors"]


def test_the_same_tensors_and_metadata_are_the_same_bytes(tmp_path: Path) -> None:
    """The library writes metadata in an order that no two processes share, and not even two calls."""
    metadata = {f"key {number}": 'of "any" \x1b\n\x7f模型\u2028' for number in range(20)}
    for name in "abc":
        writing.write_tensors(tmp_path / name, {"x": torch.arange(3.0)}, metadata)
        with safe_open(tmp_path / name, framework="pt") as file:
            assert file.metadata() == metadata
            assert file.get_tensor("x").tolist() == [0.0, 1.0, 2.0]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert b'"key 0":' in (tmp_path / "a").read_bytes()[8:40]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), ValueError("bug")])
def test_an_interruption_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path = tmp_path / "a.json"
    writing.write_text(path, "old")
    write = Path.write_text

    def half(self: Path, text: str, encoding: str, errors: str) -> None:
        write(self, text[: len(text) // 2], encoding, errors)
        raise error

    monkeypatch.setattr(Path, "write_text", half)
    expected = MoeparityError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        writing.write_text(path, "new and longer")
    monkeypatch.undo()
    assert path.read_text("utf-8") == "old\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("step", ["write_text", "replace", "unlink"])
def test_an_interruption_at_any_step_knows_what_to_discard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What a signal does ends the process: here it is looked at in the step that it came before."""
    original = getattr(Path, step)
    leftovers: list[Path] = []

    def signalled(self: Path, *arguments: object, **options: object) -> object:
        with monkeypatch.context() as inside:
            inside.setattr(Path, step, original)
            assert tidy_up() == []
        leftovers.extend(tmp_path.iterdir())
        self.touch()
        return original(self, *arguments, **options)

    monkeypatch.setattr(Path, step, signalled)
    writing.write_text(tmp_path / "a.json", "text")
    assert [path.name for path in leftovers] == (["a.json"] if step == "unlink" else [])
    leftovers.clear()
    assert tidy_up() == []


def test_an_interruption_before_the_name_is_known_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there before the library that makes it has returned its name."""
    make = tempfile.mkstemp
    moments: list[object] = []

    def signalled(**how: Any) -> tuple[int, str]:
        number, name = make(**how)
        if not moments:
            moments.append(Path(name).exists())
            assert tidy_up() == []
            moments.append(list(tmp_path.iterdir()))
        return number, name

    monkeypatch.setattr(tempfile, "mkstemp", signalled)
    writing.write_text(tmp_path / "a.json", "text")
    assert moments == [True, []]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_others_write_in_a_folder_is_no_leaving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors writes a file of its own and renames it over ours: what is held must outlive that."""
    (tmp_path / ".moeparity-old.safetensors").write_text("of a killed run")
    save = safetensors.torch.save_file

    def beside(tensors: dict[str, torch.Tensor], temporary: Path, metadata: dict[str, str] | None) -> None:
        save(tensors, temporary, metadata)
        writing.write_text(tmp_path / "b.json", "of another run, which tidies up first")
        assert temporary.exists()

    monkeypatch.setattr(safetensors.torch, "save_file", beside)
    writing.write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)}, {"k": "v"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "b.json"]
