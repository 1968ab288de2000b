"""Scales and codes held to llm-compressor, ModelOpt and torchao, in a process of their own: these change torch and
transformers when they are imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import live

HERE = Path(__file__).parent


@pytest.mark.live
@pytest.mark.parametrize("name", ["test_scale_search.py", "test_two_levels.py"])
def test_none_is_left_out_beside_the_libraries(name: str) -> None:
    folders = ("quantisers", "triton")
    live.need(folders)
    paths = os.pathsep.join(str(live.FOLDER / folder) for folder in folders)
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-n", "0", "--all", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, HERE / name],
        cwd=HERE.parents[1],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout, done.stdout[-4000:]
