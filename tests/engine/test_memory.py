"""The most memory a pass takes is what is told; freed memory is kept: large temporaries are not faulted in again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moeparity.engine.memory import Memory

CODE = """
import resource, torch
from moeparity.inputs.machine import keep_freed_memory
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


PEAK = """
import torch
from moeparity.engine.memory import Peak
with Peak(torch.device("cpu")) as peak:
    block = torch.ones(64 << 20, dtype=torch.uint8)
    for _ in range(20):
        block += 1
print(peak.bytes - peak.before)
"""


def test_the_peak_is_that_of_anonymous_memory() -> None:
    """In a process of its own: here other tests may have left as much free memory as the block takes."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 50 << 20 < int(done.stdout) < 100 << 20


def test_of_two_passes_the_greater_peak_counts() -> None:
    first, second = (Memory(estimated=e, held_before=1, peak=p) for e, p in ((9, 5), (3, 7)))
    assert first.joined(second) == second.joined(first) == second
