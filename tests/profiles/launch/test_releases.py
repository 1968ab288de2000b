"""A release that a launch file asks for, other than the one that was read, is a warning; `packaging` is the judge."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from moeparity.profiles.launch import read
from moeparity.profiles.launch.programs import RELEASES
from moeparity.profiles.launch.reading.releases import is_release

QWEN = "Qwen/Qwen3-30B-A3B"
SERVE = f"vllm serve {QWEN} -tp 2"
ENGINE = f"\nfrom vllm import LLM\nLLM('{QWEN}')\n"
READ = "options, defaults and profiles are read from"


def warned(folder: Path, text: str, name: str = "launch.sh") -> list[str]:
    (folder / name).write_text(text, "utf-8")
    return [warning.value for warning in read(folder / name).warnings if warning.says.startswith(READ)]


@pytest.mark.parametrize(
    "text",
    [
        f"pip install vllm==0.9.2 && {SERVE}",
        f"uv pip install --system 'vllm>=0.9,<0.10'; {SERVE}",
        f"pip install 'vllm~=0.9.0'; {SERVE}",
        f"pip install vllm==$VERSION; {SERVE}",
        f"uvx --from vllm==0.12.0 {SERVE}",
        f"uv run --with vllm==0.12.0 {SERVE}",
        f"conda install -y vllm=0.9; {SERVE}",
        f"pip install -U git+https://github.com/vllm-project/vllm.git@v0.12.0; {SERVE}",
        f"pip install git+https://github.com/vllm-project/vllm; {SERVE}",
        f"pip install 'vllm @ git+https://github.com/vllm-project/vllm@0a1b2c3'; {SERVE}",
        f"pip install https://wheels.vllm.ai/0.12.0/vllm-0.12.0-cp38-abi3-manylinux1_x86_64.whl; {SERVE}",
        f"pip install ./dist/vllm-0.12.0.tar.gz; {SERVE}",
        f"docker run vllm/vllm-openai:v0.9.2 --model {QWEN}",
        f"apptainer exec --nv docker://vllm/vllm-openai:v0.9.2 {SERVE}",
        f"srun --container-image=nvcr.io#nvidia/vllm:25.09-py3 {SERVE}",
        f"srun --container-image vllm/vllm-openai:v0.9.2 {SERVE}",
        f"pip install trl==0.21.0; trl vllm-serve --model {QWEN}",
        f"pip install 'sglang[all]==0.4.6.post5'; sglang serve {QWEN}",
        f"pip install -r requirements.txt; {SERVE}",
    ],
)
def test_a_release_that_is_asked_for_is_a_warning(text: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("# ours\ntorch==2.9\nvllm == 0.9.2  # for now\n", "utf-8")
    assert len(warned(tmp_path, f"{text}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"pip install vllm==0.33.0 sglang==0.4; {SERVE}",
        f"pip install 'vllm>=0.30'; {SERVE}",
        f"pip install vllm==0.33.0+cu129; {SERVE}",
        f"pip install https://x/vllm-0.33.0-cp38-abi3-manylinux1_x86_64.whl; {SERVE}",
        f"pip install git+https://github.com/vllm-project/vllm@v0.33.0; {SERVE}",
        f"pip install vllm flashinfer-python==0.7; {SERVE}",
        f"docker run vllm/vllm-openai:v0.33.0 --model {QWEN}",
        f"docker run vllm/vllm-openai:latest --model {QWEN}",
        f"pip install trl==0.21.0; {SERVE}",
    ],
)
def test_the_release_that_was_read_is_none(text: str, tmp_path: Path) -> None:
    assert warned(tmp_path, f"{text}\n") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('# /// script\n# requires-python = "3.11"\n# dependencies = [\n#   "vllm==0.1",\n# ]\n# ///', "vllm==0.1"),
        ("import modal\ni = modal.Image.debian_slim().pip_install('vllm==0.10.0', 'torch')", "vllm==0.10.0"),
        ("import modal\ni = modal.Image.debian_slim().uv_pip_install(['vllm<0.11'])", "vllm<0.11"),
        ("import modal\ni = modal.Image.from_registry('vllm/vllm-openai:v0.9.2')", "image vllm/vllm-openai:v0.9.2"),
        ("import modal\ni = modal.Image.debian_slim().run_commands('pip install vllm==0.9')", "vllm==0.9"),
        ('# /// script\n# dependencies = ["vllm==0.33.0"]\n# ///', ""),
        ("# /// script\n# dependencies = [broken\n# ///", ""),
    ],
)
def test_python_files_ask_for_releases(text: str, value: str, tmp_path: Path) -> None:
    assert warned(tmp_path, text + ENGINE, "serve.py") == ([value] if value else [])


@pytest.mark.parametrize("release", ["0.33.0", "0.5.23", "1.16.0", "0.9.1", "0.11.2"])
@pytest.mark.parametrize(
    "bounds",
    [
        *("==0.33.0", "==0.33.*", "==0.33", ">=0.9,<0.10", ">=0.9", "<0.34,>=0.33.0", "~=0.33.0", "~=0.33", "!=0.33.0"),
        *("<=0.33.0", ">0.33.0", "==1.16", "~=1.2", ">=0.5.20,!=0.5.23", "==0.5.23.*", ">=0.11.0,<=0.11.2"),
    ],
)
def test_bounds_hold_as_packaging_has_them(bounds: str, release: str) -> None:
    assert is_release(bounds, release) == (Version(release) in SpecifierSet(bounds))


def test_releases_of_packages_are_known() -> None:
    assert {"vllm", "sglang", "trl", "verl", "openrlhf"} <= set(RELEASES)
