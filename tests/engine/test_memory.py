"""Freed memory is kept: a large temporary that comes and goes is not faulted in again."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, torch
from moeparity.engine.memory import keep_freed_memory
assert keep_freed_memory()
for _ in range(6):
    blocks = [torch.ones(4 << 20) for _ in range(3)]
    del blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    blocks = [torch.ones(4 << 20) for _ in range(3)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt(3) is glibc's; elsewhere the function returns False")
def test_large_temporaries_are_not_faulted_in_again() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Three blocks of 16 MB, ten times over, are 122,880 pages.
    assert int(done.stdout) < 13_000
