"""How much memory is left: the machine's, or less where a control group allows less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeparity.inputs import machine

CPU = torch.device("cpu")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 GiB available, no control group yet."""
    for folder in ("proc/self", "cgroup/memory/job", "cgroup/outer/inner"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemAvailable:    8388608 kB\n")
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    return tmp_path


def test_the_machine_alone(system: Path) -> None:
    assert machine.available_bytes(CPU) == 8 << 30


def test_unknown_where_the_system_says_nothing(system: Path) -> None:
    (system / "proc/meminfo").unlink()
    assert machine.available_bytes(CPU) is None


def test_version_1(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("5:devices:/\n4:memory:/job\n0::/\n")
    group = system / "cgroup/memory/job"
    (group / "memory.limit_in_bytes").write_text("4000000000\n")
    (group / "memory.usage_in_bytes").write_text("3000000000\n")
    (group / "memory.stat").write_text(
        "inactive_file 1\nactive_file 2\ntotal_inactive_file 300\ntotal_active_file 400\n"
    )
    assert machine.available_bytes(CPU) == 1_000_000_700


def test_version_2_with_the_tightest_limit_around_it(system: Path) -> None:
    (system / "proc/self/cgroup").write_text("0::/outer/inner\n")
    outer, inner = system / "cgroup/outer", system / "cgroup/outer/inner"
    (inner / "memory.max").write_text("max\n")
    (inner / "memory.current").write_text("5\n")
    (outer / "memory.max").write_text("2000000000\n")
    (outer / "memory.current").write_text("500000000\n")
    (outer / "memory.stat").write_text("anon 7\ninactive_file 10\nactive_file 20\n")
    assert machine.available_bytes(CPU) == 1_500_000_030
