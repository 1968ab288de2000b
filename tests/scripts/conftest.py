"""The documentation as a site, built once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="pip install 'moeparity[docs]'")
    folder = tmp_path_factory.mktemp("site")
    mkdocs = (sys.executable, "-m", "tests.uncollected", "mkdocs")
    command = [*mkdocs, "build", "--strict", "--quiet", "--site-dir", str(folder)]
    # The extra `docs` does not bring what others do.
    absent = tmp_path_factory.mktemp("absent")
    for module in ("pandas", "matplotlib", "pyarrow", "tokenizers", "transformers"):
        (absent / f"{module}.py").write_text(f"raise ModuleNotFoundError({module!r}, name={module!r})\n", "utf-8")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(absent)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout + done.stderr == ""
    return folder
