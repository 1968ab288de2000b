"""Files are written whole or not at all, and nothing stays beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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
    assert [one.name for one in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("step", ["write_text", "replace", "unlink"])
def test_an_interruption_at_any_step_knows_what_to_discard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What a signal does ends the process: here it is looked at in the step that it came before."""
    original = getattr(Path, step)
    left: list[Path] = []

    def signalled(self: Path, *given: object, **named: object) -> object:
        with monkeypatch.context() as inside:
            inside.setattr(Path, step, original)
            assert tidy_up() == []
        left.extend(tmp_path.iterdir())
        self.touch()
        return original(self, *given, **named)

    monkeypatch.setattr(Path, step, signalled)
    writing.write_text(tmp_path / "a.json", "text")
    assert [path.name for path in left] == (["a.json"] if step == "unlink" else [])
    left.clear()
    assert tidy_up() == []
