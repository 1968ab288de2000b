"""The package list is written by hand, so that the top-level folders can be mapped: it must name every folder."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAPPED = {"cli": "moeparity.cli", "graphs": "moeparity.graphs"}


def listed() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return set(project["tool"]["setuptools"]["packages"])


def test_every_folder_with_code_is_packaged() -> None:
    packages = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "moeparity").rglob("__init__.py")}
    packages |= {name for folder, name in MAPPED.items() if (ROOT / folder / "__init__.py").exists()}
    assert packages == listed()


def test_every_file_of_the_pages_is_packaged() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["moeparity.output.html"]
    folder = ROOT / "moeparity" / "output" / "html"
    packaged = {path for pattern in patterns for path in folder.glob(pattern)}
    assert packaged == {path for path in (folder / "static").rglob("*") if path.is_file()}


def test_shipped_data_is_found_from_anywhere(tmp_path: Path) -> None:
    code = "from moeparity.documents.checked import shipped; print(*shipped('models'), *shipped('profiles'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert {"qwen3", "qwen3_moe", "deepseek_v3", "hf-eager", "hf-default"} <= set(done.stdout.split())


def test_cli_folder_is_not_importable_as_cli() -> None:
    done = subprocess.run([sys.executable, "-c", "import cli"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "import this package as moeparity.cli" in done.stderr


@pytest.mark.parametrize("command", [["--help"], ["bisect", "--help"], ["show", "ops"], ["show", "ops", "combine"]])
def test_commands_that_compute_nothing_do_not_import_torch(command: list[str]) -> None:
    code = (
        "import sys\nfrom moeparity.cli import main\n"
        f"sys.argv = ['moeparity', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_show_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom moeparity.cli import main\n"
        "sys.argv = ['moeparity', 'show', 'plan', 'recipes/quickstart.yaml']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\n"
        "sys.exit(3 if 'torch' in sys.modules else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "layers[0:4].moe.combine" in done.stdout


def test_what_a_bisection_imports_takes_no_longer_than_torch() -> None:
    """These take as long again; guards of live ranks need them, and no bisection on simulated ones."""
    code = "import sys, moeparity.bisection.pipeline\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"torch", "moeparity.bisection.observe"} <= loaded
    assert not {"torch._dynamo", "torch.distributed.tensor", "sympy", "moeparity.ranks.guard"} & loaded


def test_nothing_in_the_package_imports_transformers() -> None:
    sources = [*(ROOT / "moeparity").rglob("*.py"), *(ROOT / "cli").rglob("*.py")]
    assert sources
    assert not [p for p in sources if "import transformers" in p.read_text() or "from transformers" in p.read_text()]
