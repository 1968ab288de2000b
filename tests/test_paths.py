"""What is there is told from what is not, whatever the file system says; nothing is read beyond its limit."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from moeparity import paths
from moeparity.errors import MoeparityError, display_path
from tests.command import ROOT


@pytest.fixture
def zoo(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("nothing")
    names = ("file", "folder", "pipe", "loop", "nowhere", "nothing", "file/below", "x" * 300, "a\0b")
    return {name: tmp_path / name for name in names}


def test_what_is_present(zoo: dict[str, Path]) -> None:
    there = {name for name, path in zoo.items() if paths.present(path)}
    assert there == {"file", "folder", "pipe", "loop", "nowhere"}
    assert [name for name, path in zoo.items() if paths.is_file(path)] == ["file"]
    assert [name for name, path in zoo.items() if paths.is_folder(path)] == ["folder"]


def test_only_regular_files_are_read_and_the_rest_says_why(zoo: dict[str, Path]) -> None:
    reasons = {}
    for name, path in zoo.items():
        try:
            assert paths.contents(path, "YAML file") == b"12345"
        except OSError as error:
            reasons[name] = str(error.strerror)
    assert "file" not in reasons
    assert reasons["folder"] == "it is a folder"
    assert reasons["pipe"] == "it is a pipe, which can be read only once"
    assert "symbolic links" in reasons["loop"]
    assert reasons["a\0b"] == "no file can have such a name"
    assert set(reasons) == set(zoo) - {"file"}
    with pytest.raises(OSError, match="it is a device"):
        paths.opened(Path("/dev/zero"))


def test_nothing_is_read_beyond_its_limit(zoo: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(paths.LIMITS, "YAML file", 4)
    with pytest.raises(OSError, match="it holds 5 bytes; at most 4 are read"):
        paths.contents(zoo["file"], "YAML file")
    monkeypatch.setenv(paths.LIMIT_FACTOR, "2")
    assert paths.contents(zoo["file"], "YAML file") == b"12345"
    # A file that says it holds nothing, and never ends.
    with pytest.raises(OSError, match="at most 8 are read"):
        paths.contents(Path("/proc/cpuinfo"), "YAML file")


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "", "ten"])
def test_a_factor_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(paths.LIMIT_FACTOR, text)
    with pytest.raises(MoeparityError, match="expected a number above 0"):
        paths.limit(1)


def test_a_file_that_is_to_be_written_is_not_read(zoo: dict[str, Path], tmp_path: Path) -> None:
    os.link(zoo["file"], tmp_path / "same")
    reserved = paths.reserved({"--json": tmp_path / "same", "--map": tmp_path / "nothing"})
    with reserved, pytest.raises(MoeparityError, match=r"--json .*this run reads that file"):
        paths.contents(zoo["file"], "YAML file")
    assert paths.contents(zoo["file"], "YAML file") == b"12345"


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert display_path(Path("recipe.yaml")) == "recipe.yaml"


def test_the_page_lists_the_limits() -> None:
    page = (ROOT / "docs" / "trust.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+) \| ([\d,]+) MB \|$", page, re.MULTILINE)
    assert {limit_name: int(size.replace(",", "")) * 10**6 for limit_name, size in rows} == paths.LIMITS


def test_an_output_that_something_wanted_to_read_is_not_written(tmp_path: Path) -> None:
    """Whatever became of the refusal: `check` tells it of the one recipe and goes on with the others."""
    for name in ("read", "unread"):
        (tmp_path / name).write_text("x", "utf-8")
    outputs = {name: tmp_path / name for name in ("read", "unread", "new")}
    with paths.reserved(outputs):
        with pytest.raises(MoeparityError, match="this run reads that file"):
            paths.checked(tmp_path / "read")
        with pytest.raises(MoeparityError, match=r"^--json .*read: not written, since this run reads that file"):
            paths.refuse_asked_for("--json", tmp_path / "read")
        for name in ("unread", "new"):
            paths.refuse_asked_for("--json", tmp_path / name)
    paths.refuse_asked_for("--json", tmp_path / "read")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MOEPARITY_CACHE", str(tmp_path))
    assert paths.cache_folder() == tmp_path
    monkeypatch.delenv("MOEPARITY_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache_folder() == tmp_path / "moeparity"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_folder() == tmp_path / ".cache" / "moeparity"


@pytest.mark.parametrize("home", ["", None, "relative"])
def test_without_a_home_it_is_never_below_the_root(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    monkeypatch.delenv("MOEPARITY_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    if home is not None:
        monkeypatch.setenv("HOME", home)
    folder = paths.cache_folder()
    assert folder is not None
    assert folder.is_relative_to(Path(f"~{os.environ.get('USER', 'root')}").expanduser())
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert paths.cache_folder() is None
